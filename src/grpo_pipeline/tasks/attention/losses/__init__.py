"""The attention task's supervised loss: its parameters, and a file for each term."""
