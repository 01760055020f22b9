"""The training loop's parts: state, optimiser, micro-batches, replay, and where a step is computed."""
