"""The attention task's reward: its parameters, and a file for each component."""
