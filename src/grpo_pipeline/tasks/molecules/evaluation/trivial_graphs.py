"""Draw graphs without learning for the reward audit: chains of carbon, random trees and copies of training molecules."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from grpo_pipeline.tasks.molecules.data.examples import MoleculeExamples
from grpo_pipeline.tasks.molecules.graphs.graphs import MoleculeGraphs
from grpo_pipeline.tasks.molecules.graphs.vocabulary import Vocabulary

# Largest number of bonds of a neutral atom in a chain or tree.
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
    """Build an unbranched chain of carbons of each size; without carbon, of the element with the most bonds."""
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
    """Draw a tree of single bonds of each size: random elements, each new atom bonded to an atom with a free valence.

    An atom with a single bond ends a branch, so the first atoms are of elements with two or more. All graphs are valid.
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
    """Draw a training molecule of each size, or of the nearest size if there is none."""
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
    """Draw the classes of the atoms of a tree, and the parent of each atom but the first."""
    atoms, parents, room = [int(generator.choice(open_ended))], [], []
    room.append(VALENCES[vocabulary.atoms[atoms[0]]])
    for place in range(1, size):
        # Without an element of two bonds there is no tree, and the graph is not valid.
        parent = int(
            generator.choice([i for i, left in enumerate(room) if left > 0] or range(place))
        )
        # The last free valence may only be used by the last atom.
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
    """Build neutral graphs with a single bond from every atom but the first to its parent."""
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
