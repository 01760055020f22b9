"""Guess how a folder of images is described."""
