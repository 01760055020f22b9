"""Prepare the data of the attention task: read images, check and split them, generate a phantom."""
