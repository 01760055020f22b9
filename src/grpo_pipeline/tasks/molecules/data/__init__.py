"""Prepare the data of the molecule task: read molecules, check and split them, enumerate small ones."""
