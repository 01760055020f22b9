"""The attention task: choose points on ultrasound images, from which decoders tell cancer."""
