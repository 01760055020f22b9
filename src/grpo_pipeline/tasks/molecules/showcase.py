"""How a few molecules come out of noise, as arrays for the report."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.tasks.molecules.molecule_data import MoleculeData
from grpo_pipeline.tasks.molecules.policy import GraphPolicy
from grpo_pipeline.tasks.molecules.trajectory_table import prompt_names

if TYPE_CHECKING:
    from grpo_pipeline.tasks.molecules.task import MoleculeTask

SHOWN_SAMPLES, FRAMES = 4, 6


@torch.no_grad()
def showcase(
    task: "MoleculeTask", policy: GraphPolicy, data: MoleculeData, rows: np.ndarray, *, seed: int
) -> dict[str, np.ndarray]:
    """Return the molecules drawn for these prompts, and the graphs that the first of each went through.

    ``prompt_id`` and ``size`` [n]; ``smiles`` [n, 4], "" if not valid; ``times`` [F], from T to 0; the classes at these times:
    ``atoms`` and ``charges`` [n, F, nodes], ``bonds`` [n, F, pairs], pairs in the order of ``entries.pair_index``.
    """
    batch = task.make_batch(data, rows)
    generator = step_generator(seed, stream=Stream.SHOWCASE, device=task.device)
    drawn = task.draw(policy, batch.prompts, SHOWN_SAMPLES, temperature=task.sampling.temperature, generator=generator)
    times = np.unique(np.linspace(0, drawn.steps, FRAMES).round().astype(np.int64))[::-1].copy()
    shown = {name: getattr(drawn, name)[:, 0, torch.as_tensor(times)] for name in ("atoms", "charges", "bonds")}
    return {
        "prompt_id": np.asarray(prompt_names(rows), dtype=str),
        "size": drawn.sizes.cpu().numpy(),
        "smiles": np.asarray([[one.smiles for one in group] for group in task.molecules(drawn)], dtype=str),
        "times": times,
        **{name: classes.cpu().numpy() for name, classes in shown.items()},
    }
