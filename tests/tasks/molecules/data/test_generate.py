from itertools import combinations, product

import networkx as nx
import numpy as np
import pytest
from rdkit import Chem

from grpo_pipeline.tasks.molecules.data import generate
from grpo_pipeline.tasks.molecules.data.charged_forms import charge_some, charged_form
from grpo_pipeline.tasks.molecules.data.generate import draw_order, enumerate_molecules
from grpo_pipeline.tasks.molecules.data.params import GeneratorParams

ALL_LINKS = {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0}
VALENCES = {"C": 4, "N": 3, "O": 2, "F": 1}


def make(**changes):
    section = {
        "seed": 0, "atoms": {"C": 1.0, "N": 1.0, "O": 1.0, "F": 1.0}, "min_atoms": 2, "max_atoms": 3, "per_size": 100_000,
    }  # fmt: skip
    return GeneratorParams.model_validate(section | changes)


@pytest.fixture
def grows_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to four bonds of a new atom, nothing forbidden, nothing charged."""
    for name, value in (("LINKS", ALL_LINKS), ("FORBIDDEN", ()), ("CHARGED", 0.0)):
        monkeypatch.setattr(generate, name, value)


def every_graph(size, symbols):
    """Build every connected graph with bonds 0 to 3 within the valences, and name it by RDKit's canonical SMILES."""
    pairs, found = list(combinations(range(size), 2)), set()
    for atoms, orders in product(product(symbols, repeat=size), product(range(4), repeat=len(pairs))):
        bonds = [(*pair, order) for pair, order in zip(pairs, orders, strict=True) if order]
        used = [sum(order for first, second, order in bonds if place in (first, second)) for place in range(size)]
        graph = nx.Graph([(first, second) for first, second, _ in bonds])
        is_whole = graph.number_of_nodes() == size and nx.is_connected(graph)
        if is_whole and all(count <= VALENCES[symbol] for count, symbol in zip(used, atoms, strict=True)):
            molecule = Chem.RWMol()
            for symbol in atoms:
                molecule.AddAtom(Chem.Atom(symbol))
            for first, second, order in bonds:
                molecule.AddBond(first, second, Chem.BondType.values[order])
            if not Chem.SanitizeMol(molecule, catchErrors=True):
                found.add(Chem.MolToSmiles(molecule))
    return found


@pytest.mark.usefixtures("grows_everything")
def test_levels_are_complete_but_for_what_is_forbidden(monkeypatch: pytest.MonkeyPatch):
    found = enumerate_molecules(make())
    assert len(found) == len({*found})
    assert {*found} == every_graph(2, "CNOF") | every_graph(3, "CNOF")
    # Carbon alone up to four atoms, tetrahedrane among them.
    found = {*enumerate_molecules(make(atoms={"C": 1.0}, max_atoms=4))}
    assert found == every_graph(2, "C") | every_graph(3, "C") | every_graph(4, "C")
    assert Chem.CanonSmiles("C12C3C1C23") in found
    with monkeypatch.context() as patched:
        patched.setattr(generate, "LINKS", {1: 1.0})
        trees = enumerate_molecules(make(atoms={"C": 1.0}, max_atoms=5))
    assert not any(character.isdigit() for smiles in trees for character in smiles)
    monkeypatch.setattr(generate, "FORBIDDEN", ["[N,O,F]~[N,O,F]"])
    sparse = enumerate_molecules(make(max_atoms=4, per_size=200))
    assert len(sparse) > 200
    assert not any(Chem.MolFromSmiles(text).HasSubstructMatch(Chem.MolFromSmarts("[N,O,F]~[N,O,F]")) for text in sparse)


@pytest.mark.usefixtures("grows_everything")
def test_what_is_kept_follows_from_the_seed_and_small_ones_are_grown_on_the_way(monkeypatch: pytest.MonkeyPatch):
    few = make(max_atoms=5, per_size=30)
    found = enumerate_molecules(few)
    assert found == enumerate_molecules(few)
    assert {*found} != {*enumerate_molecules(few.model_copy(update={"seed": 1}))}
    sizes = [Chem.MolFromSmiles(smiles).GetNumAtoms() for smiles in found]
    # two atoms: C with C 3, N 3, O 2, F 1; N with N 3, O 2, F 1; O with O 2, F 1; FF
    assert sizes == [2] * 19 + [3] * 30 + [4] * 30 + [5] * 30
    assert enumerate_molecules(make(max_atoms=5, per_size=30, min_atoms=4)) == found[49:]
    # All of a size are kept whatever the seed, which of them are charged follows from it.
    assert enumerate_molecules(make()) == enumerate_molecules(make(seed=1))
    with monkeypatch.context() as patched:
        patched.setattr(generate, "CHARGED", 0.5)
        charged, other = (enumerate_molecules(make(seed=seed)) for seed in (0, 1))
    assert {*charged} != {*other}
    # Rings come of two links, which are drawn as often as their weight says: here all but never.
    has_ring = []
    for links in ({1: 1.0, 2: 1.0}, {1: 1.0, 2: 1e-9}):
        monkeypatch.setattr(generate, "LINKS", links)
        found = enumerate_molecules(make(max_atoms=4, per_size=30))
        has_ring.append([any(sign.isdigit() for sign in smiles) for smiles in found])
    assert any(has_ring[0])
    assert not any(has_ring[1])
    # A kind of weight 3 with 90 members against one of weight 1 with 10: first with probability 3/4, not 9/10.
    kinds, shares = [("C", 1)] * 90 + [("N", 1)] * 10, {("C", 1): 3.0, ("N", 1): 1.0}
    firsts = [draw_order(kinds, shares, np.random.default_rng(seed))[0] < 90 for seed in range(1000)]
    assert abs(np.mean(firsts) - 0.75) < 4 * np.sqrt(0.75 * 0.25 / 1000)
    assert sorted(draw_order(kinds, shares, np.random.default_rng(0))) == list(range(100))


def test_a_share_is_charged_acids_and_amines():
    charged = {"CC(=O)O": "CC(=O)[O-]", "CCN": "CC[NH3+]", "CN(C)C": "C[NH+](C)C", "NCC(=O)O": "[NH3+]CC(=O)[O-]"}
    charged |= {smiles: smiles for smiles in ("CC(N)=O", "CON", "CCO", "C=CN")}
    for smiles, wanted in charged.items():
        assert charged_form(Chem.CanonSmiles(smiles)) == Chem.CanonSmiles(wanted)
    level = [Chem.CanonSmiles("C" * n + "N") for n in range(1, 60)]
    none, some, all_ = (charge_some(level, share, generator=np.random.default_rng(0)) for share in (0.0, 0.5, 1.0))
    assert none == sorted(level)
    assert all("+" in smiles for smiles in all_)
    assert 15 < sum("+" in smiles for smiles in some) < 45


def test_refuses():
    for changes, message in (
        ({"atoms": {"He": 1.0}}, "elements of valence 1 to 4, got 'He'"),
        ({"atoms": {"C": 0.0}}, "atoms.C"),
        ({"max_atoms": 1}, "max_atoms"),
        ({"min_atoms": 4}, "max_atoms must be at least min_atoms, 4, got 3"),
    ):
        with pytest.raises(ValueError, match=message):
            enumerate_molecules(make(**changes))
