"""Prepare the data of the dialogue task: read conversations, check and split them, retrieve stories, generate dialogues."""
