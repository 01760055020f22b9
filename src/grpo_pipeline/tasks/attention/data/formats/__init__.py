"""Readers of single file formats of medical images, and what they share."""
