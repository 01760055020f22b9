"""The molecule task's reward: its parameters, and a file for each term."""
