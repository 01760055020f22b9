"""Convert parsed molecules to tensors of classes, and back."""

from collections.abc import Iterator, Sequence

import torch

from grpo_pipeline.tasks.molecules.graphs.graphs import MoleculeGraphs
from grpo_pipeline.tasks.molecules.graphs.parsed_molecules import ParsedMolecule, check_covered
from grpo_pipeline.tasks.molecules.graphs.vocabulary import Vocabulary


def encode(
    parsed_molecules: Sequence[ParsedMolecule], vocabulary: Vocabulary, *, nodes: int | None = None
) -> MoleculeGraphs:
    """Encode molecules as graphs of classes, padded to ``nodes``, or else to the largest of them.

    Raises:
        RowError: as ``check_covered``.
        ValueError: if there is no parsed molecule.
    """
    if not parsed_molecules:
        raise ValueError(
            "parsed molecules must hold at least one molecule, got none; give those that are to be encoded"
        )
    for parsed in parsed_molecules:
        check_covered(parsed, vocabulary)
    width = max(len(parsed.atoms) for parsed in parsed_molecules) if nodes is None else nodes
    places = {
        name: {value: place for place, value in enumerate(getattr(vocabulary, name))}
        for name in ("atoms", "charges", "bonds")
    }
    atoms, charges = (
        torch.tensor(
            [
                _padded([places[name][value] for value in getattr(parsed, name)], width)
                for parsed in parsed_molecules
            ]
        )
        for name in ("atoms", "charges")
    )
    bonds = torch.zeros(len(parsed_molecules), width, width, dtype=torch.int64)  # [B, n, n]
    entries = [
        (row, first, second, places["bonds"][kind])
        for row, parsed in enumerate(parsed_molecules)
        for first, second, kind in parsed.bonds
    ]
    if entries:
        # A row for each bond: [bonds, 4] -> four tensors [bonds]; both directions are written.
        row, first, second, kind = torch.tensor(entries).unbind(dim=1)
        bonds[row, first, second] = kind
        bonds[row, second, first] = kind
    return MoleculeGraphs(
        atoms, charges, bonds, torch.tensor([len(parsed.atoms) for parsed in parsed_molecules])
    )


def read_parsed_molecules(
    graphs: MoleculeGraphs, vocabulary: Vocabulary
) -> Iterator[ParsedMolecule]:
    """Yield the parsed molecule of every graph; ``encode`` of it gives the same classes.

    Raises:
        ValueError: if a class is outside the vocabulary.
    """
    _check_classes(graphs, vocabulary)
    atoms, charges, sizes = graphs.atoms.tolist(), graphs.charges.tolist(), graphs.sizes.tolist()
    pairs: list[list[tuple[int, int, str]]] = [[] for _ in sizes]
    # Above the diagonal each bond is there once: [bonds, 3] of graph, first node, second node.
    where = graphs.bonds.triu(diagonal=1).nonzero()
    kinds = graphs.bonds[where.unbind(dim=1)].tolist()
    for (row, first, second), kind in zip(where.tolist(), kinds, strict=True):
        pairs[row].append((first, second, vocabulary.bonds[kind]))
    for row, size in enumerate(sizes):
        symbols = tuple(vocabulary.atoms[place] for place in atoms[row][:size])
        yield ParsedMolecule(
            symbols,
            tuple(vocabulary.charges[place] for place in charges[row][:size]),
            tuple(pairs[row]),
        )


def _padded(classes: list[int], width: int) -> list[int]:
    return classes + [0] * (width - len(classes))


def _check_classes(graphs: MoleculeGraphs, vocabulary: Vocabulary) -> None:
    for name in ("atoms", "charges", "bonds"):
        classes, known = getattr(graphs, name), getattr(vocabulary, name)
        if classes.numel() and int(classes.max()) >= len(known):
            raise ValueError(
                f"{name} must be classes below {len(known)}, got {int(classes.max())}; use the vocabulary of these graphs"
            )
