"""Generated ultrasound-like images with known lesions (docs/phantom.md)."""
