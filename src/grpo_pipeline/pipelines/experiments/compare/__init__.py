"""Many arms on many seeds: a grid of cells that can be stopped and gone on with, and one table of it."""
