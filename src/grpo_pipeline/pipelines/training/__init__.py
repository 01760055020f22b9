"""Training of one arm: the loop over steps, checkpoints, validation and export."""
