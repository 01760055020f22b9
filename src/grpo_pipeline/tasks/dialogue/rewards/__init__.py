"""The dialogue task's reward: its parameters, and how its terms are measured; each term is a file of ``scores``."""
