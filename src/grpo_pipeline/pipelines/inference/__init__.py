"""Scores of images without labels."""
