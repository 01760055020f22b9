"""Measure a few cheap numbers on held-out prompts, to watch training."""

import numpy as np
import torch

from grpo_pipeline.core.rng import Stream
from grpo_pipeline.tasks.molecules.denoiser.graph_policy import GraphPolicy
from grpo_pipeline.tasks.molecules.evaluation.graph_draws import (
    choose_prompts,
    draw_graphs,
    prompt_batches,
)
from grpo_pipeline.tasks.molecules.evaluation.graph_task import GraphTask
from grpo_pipeline.tasks.molecules.molecule_data import MoleculeData


@torch.no_grad()
def validate(
    task: GraphTask,
    policy: GraphPolicy,
    data: MoleculeData,
    rows: np.ndarray,
    *,
    seed: int,
    n_samples: int,
) -> dict[str, float]:
    """Measure means over graphs drawn for held-out prompts, and the loss of x0 on held-out molecules.

    Keys: ``reward/mean`` and ``reward/<component>/mean`` (NaN without any measurement). ``molecule/validity``;
    ``molecule/uniqueness`` (different among valid ones); ``molecule/novelty`` (not in the training split, among different ones).
    Both are NaN without a valid molecule. ``molecule/vun`` (valid, different and novel, among all); ``x0/loss`` (nats). Graphs
    are drawn at temperature 1, always with the same noise.
    """
    rows = choose_prompts(rows, task.sampling.prompts, seed=seed)
    found: dict[str, list[torch.Tensor]] = {}
    smiles: list[str] = []
    losses = []
    for number, batch in enumerate(prompt_batches(task, data, rows, n_samples)):
        sampled = draw_graphs(
            task, policy, batch, n_samples, seed=seed, number=number, stream=Stream.VALIDATION
        )
        measured = {"reward/mean": sampled.rewards.total} | {
            f"reward/{k}/mean": part for k, part in sampled.rewards.components.items()
        }
        for name, values in measured.items():
            found.setdefault(name, []).append(values.double().flatten().cpu())
        smiles += [molecule.smiles for group in sampled.molecules for molecule in group]
        losses += [float(task.supervised_loss(policy, batch.prompts, batch, None))] * len(
            batch.times
        )
    means = {name: float(torch.cat(values).nanmean()) for name, values in found.items()}
    return means | _variety(smiles, task.known) | {"x0/loss": float(np.mean(losses))}


def _variety(smiles: list[str], known: frozenset[str]) -> dict[str, float]:
    valid = [text for text in smiles if text]
    different = set(valid)
    return {
        "molecule/validity": len(valid) / len(smiles),
        "molecule/uniqueness": len(different) / len(valid) if valid else np.nan,
        "molecule/novelty": len(different - known) / len(different) if different else np.nan,
        "molecule/vun": len(different - known) / len(smiles),
    }
