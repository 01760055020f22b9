"""Many arms on many seeds: a grid of trials that can be stopped and gone on with, and one table of it."""
