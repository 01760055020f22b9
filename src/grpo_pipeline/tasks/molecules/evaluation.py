"""Score sampled graphs: those of the trained and of the initial policy, with the training molecules beside them.

Policy and start draw with the same noise, so that what training changed is compared draw by draw.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

import numpy as np
import pandas as pd
import torch

from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.rng import Stream, numpy_generator, step_generator
from grpo_pipeline.core.training.micro_batches import PerPrompt
from grpo_pipeline.core.types import Rewards, Rollouts
from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.runs.progress import track
from grpo_pipeline.statistics.unscored_rewards import unscored_columns
from grpo_pipeline.tasks.base import Task
from grpo_pipeline.tasks.frames import shown_rewards, text_tensor
from grpo_pipeline.tasks.molecules.batch import MoleculeBatch, MoleculeData
from grpo_pipeline.tasks.molecules.denoiser.denoiser import GraphPolicy
from grpo_pipeline.tasks.molecules.diffusion.noise import GraphNoise
from grpo_pipeline.tasks.molecules.diffusion.trajectories import Trajectories, graphs_at
from grpo_pipeline.tasks.molecules.graphs.encoding import Decoded
from grpo_pipeline.tasks.molecules.graphs.graphs import GraphPrompts, MoleculeGraphs
from grpo_pipeline.tasks.molecules.graphs.molecule_table import tabulate_molecules
from grpo_pipeline.tasks.molecules.graphs.vocabulary import Vocabulary
from grpo_pipeline.tasks.molecules.metrics import TRAINING
from grpo_pipeline.tasks.molecules.params import (
    GraphPromptParams,
    MoleculeRewardParams,
    SamplingParams,
)
from grpo_pipeline.tasks.shared import Cache


class GraphTask(Task, Protocol):
    """A task whose samples are graphs: what scoring them asks for beside the protocol of every task."""

    @property
    def prompt(self) -> GraphPromptParams:
        """Properties that a prompt names."""
        ...

    @property
    def rewards(self) -> MoleculeRewardParams:
        """Parts of the reward and their weights."""
        ...

    @property
    def sampling(self) -> SamplingParams:
        """How many graphs are drawn, and how."""
        ...

    @property
    def vocabulary(self) -> Vocabulary:
        """Meaning of the classes of atoms and bonds."""
        ...

    @property
    def nodes(self) -> int:
        """Width to which every graph is padded."""
        ...

    @property
    def known(self) -> frozenset[str]:
        """Canonical SMILES of the training split."""
        ...

    @property
    def diffusion(self) -> GraphNoise:
        """The noise, on the CPU."""
        ...

    @property
    def pool(self) -> RewardPool:
        """Measures the rewards."""
        ...

    @property
    def cache(self) -> Cache:
        """The start's graphs, once they were drawn."""
        ...

    def build_policy(self, seed: int) -> GraphPolicy:
        """Return a policy with the weights that training begins with."""
        ...

    def draw(
        self,
        policy: GraphPolicy,
        prompts: GraphPrompts,
        group_size: int,
        *,
        temperature: float,
        generator: torch.Generator,
    ) -> Trajectories:
        """Return G whole trajectories for each prompt."""
        ...

    def molecules(self, rollouts: Rollouts) -> PerPrompt:
        """Return the decoded molecules: of each prompt a tuple of G."""
        ...


# Draw graphs for held-out prompts, batch by batch: what validation, audit, evaluation and showcase share.


@dataclass(frozen=True)
class SampledGraphs:
    """P x G graphs, row n = p * G + g, and what they earned.

    Attributes:
        graphs: N of them.
        molecules: P groups of G decoded graphs.
        rewards: named parts and their weighted sum, [P, G].
    """

    graphs: MoleculeGraphs
    molecules: Sequence[Sequence[Decoded]]
    rewards: Rewards


def choose_prompts(rows: np.ndarray, count: int, *, seed: int) -> np.ndarray:
    """Return ``count`` of the rows, or all where there are fewer, drawn by the seed and sorted."""
    return np.sort(numpy_generator(seed, Stream.EVALUATION_ROWS).permutation(rows)[:count])


def prompt_batches(
    task: GraphTask, data: MoleculeData, rows: np.ndarray, group_size: int
) -> Iterator[MoleculeBatch]:
    """Yield the rows in batches of at most ``sampling.graphs_at_once`` graphs, of one prompt at least."""
    size = max(1, task.sampling.graphs_at_once // group_size)
    for start in range(0, len(rows), size):
        yield task.make_batch(data, rows[start : start + size])


def draw_graphs(
    task: GraphTask,
    policy: GraphPolicy,
    batch: MoleculeBatch,
    group_size: int,
    *,
    seed: int,
    number: int,
    stream: Stream,
) -> SampledGraphs:
    """Draw G graphs for each prompt of a batch and score them as in training; the same numbers give the same noise."""
    generator = step_generator(seed, number, stream=stream, device=task.device)
    context, temperature = task.encode(policy, batch), task.sampling.temperature
    rollouts = task.sample(
        policy, context, group_size, temperature=temperature, proposal="policy", generator=generator
    )
    outcomes = task.decode(policy, context, rollouts, batch)
    return SampledGraphs(
        graphs_at(cast(Trajectories, rollouts), 0),
        outcomes.molecules,
        combine_rewards(*task.reward(batch, rollouts, outcomes)),
    )


# Sampled graphs as a table that a person reads.


def prompt_names(rows: np.ndarray) -> list[str]:
    """Return the names of prompts: that of row 12 is p00012."""
    return [f"p{row:05d}" for row in rows]


def tabulate(
    task: GraphTask, data: MoleculeData, batch: MoleculeBatch, rollouts: Rollouts
) -> pd.DataFrame:
    """Return one row per graph, n = p*G + g.

    Columns: ``prompt_id``, ``size`` and ``molecule`` (whose size it is), the properties that the prompt names, ``group`` (row
    number in the data), ``sample`` (g), ``smiles`` ("" if not valid), ``is_valid``, ``cause`` (why not) and ``decisions`` (steps
    that an update scores); without a step there is no molecule, and ``is_valid`` is NaN.
    """
    prompts, group_size, decisions = rollouts.actions.shape
    rows = batch.rows.reshape(prompts, -1)[:, 0].cpu().numpy()
    decoded = [molecule for group in task.molecules(rollouts) for molecule in group]
    examples = data.examples.table.iloc[rows.repeat(group_size)].reset_index(drop=True)
    told = {f"wanted_{name}": examples[name] for name in task.prompt.conditions}
    return pd.DataFrame({"prompt_id": np.repeat(prompt_names(rows), group_size)}).assign(
        size=examples["atoms"],
        molecule=examples["smiles"],
        **told,
        group=rows.repeat(group_size),
        sample=np.tile(np.arange(group_size), prompts),
        smiles=[one.smiles for one in decoded] or "",
        is_valid=[float(one.is_valid) for one in decoded] or np.nan,
        cause=[one.cause for one in decoded] or "",
        decisions=decisions,
    )


@torch.no_grad()
def evaluate(
    task: GraphTask,
    policy: GraphPolicy,
    data: MoleculeData,
    rows: np.ndarray,
    *,
    seed: int,
    n_samples: int,
) -> pd.DataFrame:
    """Return one row per graph and rule (columns: docs/molecules_rewards.md).

    Rules: ``policy`` and ``start``, ``n_samples`` graphs for each of at most ``molecules.sampling.prompts`` prompts, a group as
    in training; ``training``, the molecules of the training split, without a prompt and a reward.

    Args:
        task: the task; its start is the policy that it builds, and draws once for all arms.
        policy: the trained policy.
        data: the data set.
        rows: row numbers of the held-out molecules whose sizes are the prompts, int64 [n].
        seed: of the choice of prompts and of the noise.
        n_samples: G.
    """
    chosen = choose_prompts(rows, task.sampling.prompts, seed=seed)
    batches = list(prompt_batches(task, data, chosen, n_samples))

    def drawn_by(model: GraphPolicy, rule: str) -> pd.DataFrame:
        draw = partial(
            draw_graphs, task, model, group_size=n_samples, seed=seed, stream=Stream.EVALUATION
        )
        frames = [
            sample_rows(task, batch, draw(batch, number=number))
            for number, batch in enumerate(track(batches, f"evaluate molecules, {rule}"))
        ]
        return pd.concat(frames, ignore_index=True).assign(rule=rule)

    start = task.cache.take(
        data,
        (seed, n_samples, chosen.tobytes()),
        lambda: drawn_by(task.build_policy(seed), "start"),
    )
    frames = [drawn_by(policy, "policy"), start, training_rows(data)]
    return pd.concat(frames, ignore_index=True).sort_values(
        ["rule", "sample_id"], ignore_index=True
    )


def sample_rows(task: GraphTask, batch: MoleculeBatch, sampled: SampledGraphs) -> pd.DataFrame:
    """Return the rows of drawn graphs, n = p*G + g."""
    group_size = len(sampled.molecules[0])
    names = np.repeat(prompt_names(batch.rows.cpu().numpy()), group_size)
    decoded = [molecule for group in sampled.molecules for molecule in group]
    samples = np.tile(np.arange(group_size), len(sampled.molecules))
    earned = {"reward": sampled.rewards.total} | {
        f"reward_{name}": part for name, part in sampled.rewards.components.items()
    }
    asked = np.asarray([[molecule.is_valid] for molecule in decoded])  # [n, 1]: a row is one graph
    own = {
        name: sampled.rewards.components[name].reshape(-1, 1).cpu().numpy()
        for name in task.rewards.own_measures
    }
    return tabulate_molecules(sampled.graphs, decoded, task.vocabulary, task.known).assign(
        sample_id=[f"{name}-{sample:03d}" for name, sample in zip(names, samples, strict=True)],
        prompt_id=names,
        **{name: values.flatten().cpu().numpy() for name, values in earned.items()},
        **unscored_columns(own, asked),
    )


def training_rows(data: MoleculeData) -> pd.DataFrame:
    """Return one row per training molecule; what it would earn depends on a group that it has not."""
    rows = data.training_rows
    names = [f"t{number:06d}" for number in range(len(rows))]
    return rows.assign(sample_id=names, prompt_id="", rule=TRAINING, reward=np.nan)


# How a few molecules come out of noise, as arrays for the report.

SHOWN_SAMPLES, FRAMES = 4, 6


@torch.no_grad()
def showcase(
    task: GraphTask, policy: GraphPolicy, data: MoleculeData, rows: np.ndarray, *, seed: int
) -> dict[str, np.ndarray]:
    """Return the molecules drawn for these prompts, and the graphs that the first of each went through.

    ``prompt_id`` and ``size`` [n]; ``smiles`` [n, 4], "" if not valid; ``times`` [F], from T to 0; the classes at these times:
    ``atoms`` and ``charges`` [n, F, nodes], ``bonds`` [n, F, pairs], pairs in the order of ``entries.pair_index``.
    """
    batch = task.make_batch(data, rows)
    generator = step_generator(seed, stream=Stream.SHOWCASE, device=task.device)
    sampled = task.draw(
        policy,
        batch.prompts,
        SHOWN_SAMPLES,
        temperature=task.sampling.temperature,
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
    """Return one molecule for each of these prompts, drawn from the same noise in every frame.

    ``smiles`` and ``cause`` (why it is not valid) are texts (``tasks.frames.text_tensor``), ``reward`` is float64 [m].
    """
    batch = task.make_batch(data, rows)
    generator = step_generator(seed, stream=Stream.FRAMES, device=task.device)
    drawn = task.draw(
        policy, batch.prompts, 1, temperature=task.sampling.temperature, generator=generator
    )
    decoded = [molecule for (molecule,) in task.molecules(drawn)]
    return {
        "smiles": text_tensor([one.smiles for one in decoded]),
        "cause": text_tensor([one.cause for one in decoded]),
        "reward": shown_rewards(task, policy, batch, drawn)[:, 0],
    }


# A few cheap numbers on held-out prompts to watch while training.


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
    """Return means over graphs drawn for held-out prompts, and how well x0 is predicted of held-out molecules.

    Keys: ``reward/mean``, ``reward/<component>/mean`` (NaN where nothing could be measured), ``molecule/validity``,
    ``molecule/uniqueness`` (different among valid ones), ``molecule/novelty`` (not in the training split, among different ones;
    both NaN without a valid one), ``molecule/vun`` (valid, different and novel, among all) and ``x0/loss`` (nats). Drawn at
    ``molecules.sampling.temperature``, with the same noise whenever it is called.
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
