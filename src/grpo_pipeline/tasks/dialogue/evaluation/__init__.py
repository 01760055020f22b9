"""Evaluate the dialogue task: replies of every rule to held-out examples, their metrics, and the sentences about them."""
