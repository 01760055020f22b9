"""Say which rows a step reads: a function of seed and step alone."""

import numpy as np

from grpo_pipeline.core.rng import Stream, numpy_generator


def steps_per_epoch(n_rows: int, batch_size: int) -> int:
    """Return the number of whole batches in one pass, at least one; the rest of a shuffled pass is left out."""
    return max(1, n_rows // batch_size)


def rows_of_step(rows: np.ndarray, step: int, *, batch_size: int, seed: int) -> np.ndarray:
    """Return the rows of a batch: a function of (seed, step) alone, so that a resumed run sees the same order."""
    per_epoch = steps_per_epoch(len(rows), batch_size)
    epoch, position = divmod(step, per_epoch)
    order = numpy_generator(seed, Stream.ORDER, epoch).permutation(len(rows))
    return rows[order[position * batch_size : (position + 1) * batch_size]]
