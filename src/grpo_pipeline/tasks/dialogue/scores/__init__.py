"""Scores of single replies against their reference answers, and of how different replies are."""
