"""Evaluate the molecule task: graphs drawn for held-out prompts, their metrics, and the sentences about them."""
