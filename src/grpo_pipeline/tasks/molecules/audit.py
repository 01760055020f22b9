"""Graphs of the reward audit: those of the initial policy, of policies without a model, and held-out molecules."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.rng import Stream, numpy_generator
from grpo_pipeline.core.types import Rewards
from grpo_pipeline.statistics.metric import Direction
from grpo_pipeline.tasks.defaults import AuditPlan, Role
from grpo_pipeline.tasks.molecules.batch import MoleculeBatch, MoleculeData
from grpo_pipeline.tasks.molecules.data.examples import MoleculeExamples
from grpo_pipeline.tasks.molecules.denoiser.denoiser import GraphPolicy
from grpo_pipeline.tasks.molecules.evaluation import (
    GraphTask,
    draw_graphs,
    prompt_batches,
    prompt_names,
)
from grpo_pipeline.tasks.molecules.graphs.encoding import decode
from grpo_pipeline.tasks.molecules.graphs.graphs import MoleculeGraphs, graphs_of
from grpo_pipeline.tasks.molecules.graphs.molecule_table import tabulate_molecules
from grpo_pipeline.tasks.molecules.graphs.vocabulary import Vocabulary
from grpo_pipeline.tasks.molecules.params import MoleculeRewardParams
from grpo_pipeline.tasks.molecules.rewards import submit_rewards

# Graphs that need no learning, for the reward audit: chains of carbon, random trees and copies of training molecules.

# Bonds that a neutral atom of a chain or tree may have.
VALENCES = {
    "B": 3,
    "C": 4,
    "N": 3,
    "O": 2,
    "F": 1,
    "Si": 4,
    "P": 3,
    "S": 2,
    "Cl": 1,
    "Br": 1,
    "I": 1,
}


def chains(sizes: NDArray[np.int64], vocabulary: Vocabulary, nodes: int) -> MoleculeGraphs:
    """Return an unbranched chain of carbons of each size, or of the element with the most bonds where there is no carbon."""
    element = (
        "C"
        if "C" in vocabulary.atoms
        else max(vocabulary.atoms, key=lambda symbol: VALENCES.get(symbol, 0))
    )
    parents = [np.arange(size - 1) for size in sizes]
    return _trees(
        [np.full(size, vocabulary.atoms.index(element)) for size in sizes], parents, nodes
    )


def random_trees(
    sizes: NDArray[np.int64], vocabulary: Vocabulary, nodes: int, *, generator: np.random.Generator
) -> MoleculeGraphs:
    """Return a tree of single bonds of each size: elements by chance, each new atom on one that still has room for a bond.

    An atom with one bond alone ends a branch, so the first ones are of elements with two or more; all of them are valid.
    """
    open_ended = [i for i, symbol in enumerate(vocabulary.atoms) if VALENCES.get(symbol, 0) >= 2]
    any_atom = [i for i, symbol in enumerate(vocabulary.atoms) if VALENCES.get(symbol, 0) >= 1]
    grown = [
        _grow(int(size), vocabulary, open_ended or any_atom, any_atom, generator) for size in sizes
    ]
    return _trees([atoms for atoms, _ in grown], [parents for _, parents in grown], nodes)


def training_copies(
    sizes: NDArray[np.int64],
    examples: MoleculeExamples,
    nodes: int,
    *,
    generator: np.random.Generator,
) -> MoleculeGraphs:
    """Return a training molecule of each size by chance, of the nearest size where there is none."""
    train = examples.rows("train")
    held = examples.arrays["sizes"].numpy()[train].astype(np.int64)
    known = np.unique(held)
    nearest = {size: known[np.abs(known - size).argmin()] for size in np.unique(sizes)}
    places: Mapping[int, NDArray[np.int64]] = {
        size: train[held == nearest[size]] for size in nearest
    }
    chosen = np.asarray([generator.choice(places[size]) for size in sizes])
    return examples.graphs(chosen).padded_to(nodes)


def _grow(
    size: int,
    vocabulary: Vocabulary,
    open_ended: list[int],
    any_atom: list[int],
    generator: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the classes of the atoms, and for each atom but the first the one that it is bonded to."""
    atoms, parents, room = [int(generator.choice(open_ended))], [], []
    room.append(VALENCES[vocabulary.atoms[atoms[0]]])
    for place in range(1, size):
        # Without an element of two bonds there is no tree: what is left then is a graph that is not valid.
        parent = int(
            generator.choice([i for i, left in enumerate(room) if left > 0] or range(place))
        )
        # The last place that is open must not be closed before the last atom.
        left = sum(room) - 1
        classes = any_atom if left > 0 or place == size - 1 else open_ended
        atoms.append(int(generator.choice(classes)))
        parents.append(parent)
        room[parent] -= 1
        room.append(VALENCES[vocabulary.atoms[atoms[-1]]] - 1)
    return np.asarray(atoms), np.asarray(parents, dtype=np.int64)


def _trees(
    atoms: list[NDArray[np.int64]], parents: list[NDArray[np.int64]], nodes: int
) -> MoleculeGraphs:
    """Return neutral graphs with a single bond from every atom but the first to its parent."""
    count = len(atoms)
    classes = torch.zeros(count, nodes, dtype=torch.int64)
    bonds = torch.zeros(count, nodes, nodes, dtype=torch.int64)
    for row, (symbols, ends) in enumerate(zip(atoms, parents, strict=True)):
        classes[row, : len(symbols)] = torch.as_tensor(symbols)
        first, second = torch.as_tensor(ends), torch.arange(1, len(symbols))
        bonds[row, first, second] = 1
        bonds[row, second, first] = 1
    sizes = torch.tensor([len(symbols) for symbols in atoms])
    return MoleculeGraphs(classes, torch.zeros_like(classes), bonds, sizes)


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


def audit_plan(rewards: MoleculeRewardParams) -> AuditPlan:
    """Return the policies, the weights of the reward and what single molecules are read by.

    ``noise`` is what a trajectory starts from; ``carbon_chain`` the same unbranched chain in the whole group; ``random_tree`` a
    tree of single bonds by chance; ``training_copy`` a training molecule of the size; ``held_out`` the molecule of the prompt,
    alone in its group.
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
    """Return one row per prompt, policy and graph; ``AuditPlan`` has the columns, and ``smiles`` is the molecule.

    Args:
        task: the task.
        policy: the policy that training starts from.
        data: the data set.
        rows: row numbers whose sizes are the prompts, int64 [n].
        seed: of the samples.
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
    """Return the graphs of every policy without a model, ``n_samples`` for each prompt, and the held-out molecules."""
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
    """Return the rows of P groups of E graphs; row p*E + e."""
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
