"""Conversations of several turns: an environment answers each reply of the language model, and pays for it."""
