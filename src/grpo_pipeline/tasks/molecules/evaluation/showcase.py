"""Record how a few molecules are drawn from noise, as arrays for the report and as frames of the training."""

import numpy as np
import torch

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.tasks.frames import shown_rewards, text_tensor
from grpo_pipeline.tasks.molecules.denoiser.graph_policy import GraphPolicy
from grpo_pipeline.tasks.molecules.evaluation.graph_table import prompt_names
from grpo_pipeline.tasks.molecules.evaluation.graph_task import GraphTask
from grpo_pipeline.tasks.molecules.molecule_data import MoleculeData

SHOWN_SAMPLES, FRAMES = 4, 6


@torch.no_grad()
def showcase(
    task: GraphTask, policy: GraphPolicy, data: MoleculeData, rows: np.ndarray, *, seed: int
) -> dict[str, np.ndarray]:
    """Draw molecules for these prompts, and keep the intermediate graphs of each prompt's first molecule.

    Arrays: ``prompt_id`` and ``size`` [n]; ``smiles`` [n, 4], "" if not valid; ``times`` [F], from T to 0. The classes at these
    times: ``atoms`` and ``charges`` [n, F, nodes], ``bonds`` [n, F, pairs], in the order of ``graph_entries.pair_index``.
    """
    batch = task.make_batch(data, rows)
    generator = step_generator(seed, stream=Stream.SHOWCASE, device=task.device)
    sampled = task.draw(
        policy,
        batch.prompts,
        SHOWN_SAMPLES,
        temperature=1.0,
        generator=generator,
    )
    times = np.unique(np.linspace(0, sampled.steps, FRAMES).round().astype(np.int64))[::-1].copy()
    shown = {
        name: getattr(sampled, name)[:, 0, torch.as_tensor(times)]
        for name in ("atoms", "charges", "bonds")
    }
    return {
        "prompt_id": np.asarray(prompt_names(rows), dtype=str),
        "size": sampled.sizes.cpu().numpy(),
        "smiles": np.asarray(
            [[one.smiles for one in group] for group in task.molecules(sampled)], dtype=str
        ),
        "times": times,
        **{name: classes.cpu().numpy() for name, classes in shown.items()},
    }


@torch.no_grad()
def training_frame(
    task: GraphTask, policy: GraphPolicy, data: MoleculeData, rows: np.ndarray, *, seed: int
) -> dict[str, torch.Tensor]:
    """Draw a molecule for each of these prompts, from the same noise in every frame.

    ``smiles`` and ``cause`` (reason if not valid) are texts (``tasks.frames.text_tensor``), ``reward`` is float64 [m].
    """
    batch = task.make_batch(data, rows)
    generator = step_generator(seed, stream=Stream.FRAMES, device=task.device)
    drawn = task.draw(policy, batch.prompts, 1, temperature=1.0, generator=generator)
    decoded = [molecule for (molecule,) in task.molecules(drawn)]
    return {
        "smiles": text_tensor([one.smiles for one in decoded]),
        "cause": text_tensor([one.cause for one in decoded]),
        "reward": shown_rewards(task, policy, batch, drawn)[:, 0],
    }
