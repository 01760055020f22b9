"""Read single file formats of medical images, and share their checks."""
