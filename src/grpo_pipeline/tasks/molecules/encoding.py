"""Sketches of molecules to tensors of classes, and back."""

from collections.abc import Iterator, Sequence

import torch

from grpo_pipeline.tasks.molecules.graphs import MoleculeGraphs
from grpo_pipeline.tasks.molecules.sketch import Sketch
from grpo_pipeline.tasks.molecules.vocabulary import Vocabulary
from grpo_pipeline.tasks.row_error import RowError


def check_covered(sketch: Sketch, vocabulary: Vocabulary) -> None:
    """Refuse a molecule that the vocabulary cannot write.

    Raises:
        RowError: for an element, charge or kind of bond without a class, or too many atoms.
    """
    if len(sketch.atoms) > vocabulary.max_atoms:
        raise RowError(
            f"a molecule must have at most {vocabulary.max_atoms} heavy atoms, got {len(sketch.atoms)}; "
            "raise molecules.data.max_atoms or leave it out"
        )
    kinds = [kind for _, _, kind in sketch.bonds]
    for name, found in (("atoms", sketch.atoms), ("charges", sketch.charges), ("bonds", kinds)):
        known = getattr(vocabulary, name)
        if strangers := sorted({*found} - {*known}, key=str):
            raise RowError(f"{name} must be among {list(known)}, got {strangers}; widen molecules.data or leave the molecule out")


def encode(sketches: Sequence[Sketch], vocabulary: Vocabulary, *, nodes: int | None = None) -> MoleculeGraphs:
    """Return graphs of classes, padded to ``nodes``, or else to the largest of them.

    Raises:
        RowError: as ``check_covered``.
        ValueError: if there is no sketch.
    """
    if not sketches:
        raise ValueError("sketches must hold at least one molecule, got none; give those that are to be encoded")
    for sketch in sketches:
        check_covered(sketch, vocabulary)
    width = max(len(sketch.atoms) for sketch in sketches) if nodes is None else nodes
    places = {
        name: {value: place for place, value in enumerate(getattr(vocabulary, name))} for name in ("atoms", "charges", "bonds")
    }
    atoms, charges = (
        torch.tensor([_padded([places[name][value] for value in getattr(sketch, name)], width) for sketch in sketches])
        for name in ("atoms", "charges")
    )
    bonds = torch.zeros(len(sketches), width, width, dtype=torch.int64)
    entries = [
        (row, first, second, places["bonds"][kind]) for row, sketch in enumerate(sketches) for first, second, kind in sketch.bonds
    ]
    if entries:
        row, first, second, kind = torch.tensor(entries).unbind(dim=1)
        bonds[row, first, second] = kind
        bonds[row, second, first] = kind
    return MoleculeGraphs(atoms, charges, bonds, torch.tensor([len(sketch.atoms) for sketch in sketches]))


def read_sketches(graphs: MoleculeGraphs, vocabulary: Vocabulary) -> Iterator[Sketch]:
    """Yield the sketch of every graph; ``encode`` of it gives the same classes.

    Raises:
        ValueError: if a class is outside the vocabulary.
    """
    _check_classes(graphs, vocabulary)
    atoms, charges, sizes = graphs.atoms.tolist(), graphs.charges.tolist(), graphs.sizes.tolist()
    pairs: list[list[tuple[int, int, str]]] = [[] for _ in sizes]
    where = graphs.bonds.triu(diagonal=1).nonzero()
    kinds = graphs.bonds[where.unbind(dim=1)].tolist()
    for (row, first, second), kind in zip(where.tolist(), kinds, strict=True):
        pairs[row].append((first, second, vocabulary.bonds[kind]))
    for row, size in enumerate(sizes):
        symbols = tuple(vocabulary.atoms[place] for place in atoms[row][:size])
        yield Sketch(symbols, tuple(vocabulary.charges[place] for place in charges[row][:size]), tuple(pairs[row]))


def _padded(classes: list[int], width: int) -> list[int]:
    return classes + [0] * (width - len(classes))


def _check_classes(graphs: MoleculeGraphs, vocabulary: Vocabulary) -> None:
    for name in ("atoms", "charges", "bonds"):
        classes, known = getattr(graphs, name), getattr(vocabulary, name)
        if classes.numel() and int(classes.max()) >= len(known):
            raise ValueError(
                f"{name} must be classes below {len(known)}, got {int(classes.max())}; use the vocabulary of these graphs"
            )
