"""Generate ultrasound-like images with known lesions (docs/attention/phantom.md)."""
