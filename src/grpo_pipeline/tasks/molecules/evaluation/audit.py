"""Draw and score the graphs of the reward audit: of the initial policy, of policies without a model, and held-out molecules."""

import numpy as np
import pandas as pd
import torch

from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.rng import Stream, numpy_generator
from grpo_pipeline.core.types import Rewards
from grpo_pipeline.statistics.metric import Direction
from grpo_pipeline.tasks.audit_plan import AuditPlan, Role
from grpo_pipeline.tasks.molecules.batch import MoleculeBatch
from grpo_pipeline.tasks.molecules.denoiser.graph_policy import GraphPolicy
from grpo_pipeline.tasks.molecules.evaluation.graph_draws import draw_graphs, prompt_batches
from grpo_pipeline.tasks.molecules.evaluation.graph_table import prompt_names
from grpo_pipeline.tasks.molecules.evaluation.graph_task import GraphTask
from grpo_pipeline.tasks.molecules.evaluation.trivial_graphs import (
    chains,
    random_trees,
    training_copies,
)
from grpo_pipeline.tasks.molecules.graphs.decoding import decode
from grpo_pipeline.tasks.molecules.graphs.graph_entries import graphs_of
from grpo_pipeline.tasks.molecules.graphs.graphs import MoleculeGraphs
from grpo_pipeline.tasks.molecules.graphs.molecule_table import tabulate_molecules
from grpo_pipeline.tasks.molecules.molecule_data import MoleculeData
from grpo_pipeline.tasks.molecules.rewards.params import MoleculeReward
from grpo_pipeline.tasks.molecules.rewards.reward import submit_rewards

ROLES: dict[str, Role] = {
    "start": "start",
    "noise": "trivial",
    "carbon_chain": "trivial",
    "random_tree": "trivial",
    "training_copy": "trivial",
    "held_out": "ceiling",
}
METRICS: dict[str, Direction] = {
    "is_valid": "higher",
    "is_new": "higher",
    "qed": "higher",
    "sa": "lower",
    "n_atoms": "none",
}


def audit_plan(rewards: MoleculeReward) -> AuditPlan:
    """Plan the audit: its policies, the weights of the reward, and the metrics of single molecules.

    ``noise`` is the start of a trajectory. ``carbon_chain`` is the same unbranched chain for the whole group. ``random_tree`` is
    a random tree of single bonds. ``training_copy`` is a training molecule of the same size. ``held_out`` is the molecule of the
    prompt, alone in its group.
    """
    return AuditPlan(
        "prompt_id", "prompt_id", policies=ROLES, weights=rewards.all_weights, metrics=METRICS
    )


@torch.no_grad()
def audit(
    task: GraphTask,
    policy: GraphPolicy,
    data: MoleculeData,
    rows: np.ndarray,
    *,
    seed: int,
    n_samples: int,
) -> pd.DataFrame:
    """Score the policies of the plan: a row per prompt, policy and graph, with the columns of ``AuditPlan`` and ``smiles``.

    Args:
        task: the task.
        policy: the policy that training starts from.
        data: the data set.
        rows: row numbers whose sizes are the prompts, int64 [n].
        seed: seed of the samples.
        n_samples: graphs of each policy in a group; the held-out molecule is alone.
    """
    frames = []
    for number, batch in enumerate(prompt_batches(task, data, rows, n_samples)):
        sampled = draw_graphs(
            task, policy, batch, n_samples, seed=seed, number=number, stream=Stream.AUDIT
        )
        frames.append(_rows(task, batch, sampled.graphs, sampled.rewards).assign(policy="start"))
        for name, graphs in _trivial(
            task, data, batch, n_samples, numpy_generator(seed, Stream.AUDIT_BASELINES, number)
        ).items():
            frames.append(
                _rows(task, batch, graphs, _score(task, batch, graphs)).assign(policy=name)
            )
    return pd.concat(frames, ignore_index=True)


def _trivial(
    task: GraphTask,
    data: MoleculeData,
    batch: MoleculeBatch,
    n_samples: int,
    generator: np.random.Generator,
) -> dict[str, MoleculeGraphs]:
    """Draw the graphs of every policy without a model, ``n_samples`` for each prompt, and add the held-out molecules."""
    sizes = batch.prompts.sizes.cpu().repeat_interleave(n_samples)
    numbers, nodes = sizes.numpy(), task.nodes
    noise = torch.Generator().manual_seed(int(generator.integers(2**31)))
    start = task.diffusion.draw_start(batch.prompts.to("cpu").repeated(n_samples), generator=noise)
    return {
        "noise": graphs_of(start, sizes),
        "carbon_chain": chains(numbers, task.vocabulary, nodes),
        "random_tree": random_trees(numbers, task.vocabulary, nodes, generator=generator),
        "training_copy": training_copies(numbers, data.examples, nodes, generator=generator),
        "held_out": data.examples.graphs(batch.rows.cpu().numpy()).padded_to(nodes),
    }


def _score(task: GraphTask, batch: MoleculeBatch, graphs: MoleculeGraphs) -> Rewards:
    decoded = decode(graphs, task.vocabulary)
    n_samples = len(decoded) // len(batch.rows)
    molecules = [decoded[p * n_samples : (p + 1) * n_samples] for p in range(len(batch.rows))]
    pending = submit_rewards(
        task.rewards, task.pool, molecules=molecules, known=task.known, references=batch.targets
    )
    measured = pending.result()
    return combine_rewards(measured.components, measured.weights)


def _rows(
    task: GraphTask, batch: MoleculeBatch, graphs: MoleculeGraphs, rewards: Rewards
) -> pd.DataFrame:
    """Build the rows of P groups of E graphs; row p*E + e."""
    table = tabulate_molecules(graphs, decode(graphs, task.vocabulary), task.vocabulary, task.known)
    n_samples = len(table) // len(batch.rows)
    earned = {"reward": rewards.total} | {
        f"reward_{name}": component for name, component in rewards.components.items()
    }
    return (
        table[["is_valid", "qed", "sa", "n_atoms"]]
        .assign(is_new=1.0 - table["is_known"])
        .assign(
            prompt_id=np.repeat(prompt_names(batch.rows.cpu().numpy()), n_samples),
            sample=np.tile(np.arange(n_samples), len(batch.rows)),
            smiles=table["smiles"],
            **{name: values.flatten().cpu().numpy() for name, values in earned.items()},
        )
    )
