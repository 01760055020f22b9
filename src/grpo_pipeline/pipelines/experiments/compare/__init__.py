"""Compare many arms on many seeds: a grid of trials that can be stopped and resumed, and a table of its results."""
