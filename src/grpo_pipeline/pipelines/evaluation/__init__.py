"""Held-out scores, controls and paired differences with intervals."""
