"""Held-out scores of the attention task, their metrics, the audit of its reward, and arrays for pictures."""
