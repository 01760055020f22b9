import pytest
from rdkit import Chem

from grpo_pipeline.tasks.molecules.data.checks import check_molecules, find_vocabulary
from grpo_pipeline.tasks.molecules.data.params import MoleculeDataParams
from grpo_pipeline.tasks.text_lines import TextFile

SECTION = {
    "source": {"kind": "smiles"}, "root": "data", "bonds": "kekulised", "atoms": None, "charges": None,
    "min_atoms": 2, "max_atoms": None, "on_bad_row": "quarantine",
}  # fmt: skip
LINES = ("CCO a", "OCC b", "C[C@H](N)O c", "C", "x", "CC.O", "[13CH3]O", "C[CH2]", "C[SiH](C)C", "CC(=O)[O-]", "CCCCCCC")


def make(**changes):
    return MoleculeDataParams.model_validate(SECTION | changes)


def check(lines=LINES, **changes):
    return check_molecules(TextFile("data/mine.smi", "\n".join(lines).encode()), {}, make(**changes))


def test_nothing_is_dropped_silently(monkeypatch):
    """And processes change neither order nor messages."""
    limits = {"atoms": ["C", "N", "O"], "max_atoms": 5}
    alone = check(**limits)
    monkeypatch.setattr("grpo_pipeline.tasks.molecules.data.checks.CHUNK", 3)
    monkeypatch.setattr("grpo_pipeline.tasks.molecules.data.checks.usable_cores", lambda: 2)
    checked, quarantine, vocabulary, report = check(**limits)
    assert all(one.equals(other) for one, other in zip(alone[:2], (checked, quarantine), strict=True))
    assert list(checked["smiles"]) == ["CCO", "CC(N)O", "CC(=O)[O-]"]
    assert list(checked["lost_stereo"]) == [False, True, False]
    assert list(quarantine["row"]) == [2, 4, 5, 6, 7, 8, 9, 11]
    assert list(quarantine["kind"]) == ["duplicate", *["refused"] * 7]
    wanted = ["that of line 1", "at least 2 heavy atoms", "RDKit reads", "in one part", "isotope", "radical", "Si", "at most 5"]
    assert [part for part, reason in zip(wanted, quarantine["reason"], strict=True) if part not in reason] == []
    assert len(checked) + len(quarantine) == report["rows"] == len(LINES)
    assert (report["molecules"], report["refused"], report["duplicates"], report["lost_stereo"]) == (3, 7, 1, 1)
    bonds = ["none", "single", "double", "triple"]
    assert vocabulary == {"atoms": ["C", "N", "O"], "charges": [0, -1], "bonds": bonds, "max_atoms": 5}
    assert report["atoms"] == {"C": 6, "N": 1, "O": 4}
    assert report["sizes"] == {"3": 1, "4": 2}
    assert report["kinds_of_bonds"] == {"double": 1, "single": 7}


def test_classes_are_those_of_the_data_and_one_giant_does_not_widen_all_graphs():
    checked, _, vocabulary, _ = check()
    assert len(checked) == 5
    assert (vocabulary["atoms"], vocabulary["max_atoms"]) == (["C", "N", "O", "Si"], 7)
    _, _, vocabulary, _ = check(["c1cc[nH]c1", "CCN"], bonds="aromatic", atoms=["C", "N", "F"])
    assert (vocabulary["atoms"], vocabulary["bonds"][-1]) == (["C", "N", "[nH]", "F"], "aromatic")
    assert find_vocabulary([], make()).atoms == ("C",)
    checked, quarantine, vocabulary, _ = check(["CCO a", "C" * 2000 + " giant", "C" * 128 + " long"])
    assert (list(checked["name"]), vocabulary["max_atoms"]) == (["a", "long"], 128)
    (reason,) = quarantine["reason"]
    assert reason == "a molecule must have at most 128 heavy atoms, got 2000; leave it out"


def test_the_quarantine_is_in_the_order_of_the_file_whatever_refuses_a_row():
    """The first molecule is refused last: for an element that the vocabulary of all others has not."""
    _, quarantine, _, _ = check(("C[SiH](C)C", "x", "CCO", "OCC", "CC", "C", "CCCCCCC"), atoms=["C", "O"], max_atoms=3)
    assert list(quarantine["row"]) == [1, 2, 4, 6, 7]
    assert list(quarantine["kind"]) == ["refused", "refused", "duplicate", "refused", "refused"]


def test_a_molecule_of_exactly_the_least_or_the_largest_size_is_kept():
    """Hydrogens that are written count for neither."""
    lines = ("CC", "CCC", "CCCC", "CCCCC", "C", "[H]OC([H])([H])C", "[H]C([H])([H])[H]")
    checked, quarantine, vocabulary, _ = check(lines, min_atoms=2, max_atoms=4)
    assert list(checked["smiles"]) == ["CC", "CCC", "CCCC", "CCO"]
    assert list(quarantine["row"]) == [4, 5, 7]
    assert vocabulary["max_atoms"] == 4
    written = Chem.MolToSmiles(Chem.AddHs(Chem.MolFromSmiles("C" * 100)))  # 302 atoms
    assert list(check((written,), max_atoms=128)[0]["smiles"]) == ["C" * 100]


def test_bad_rows_stop_where_that_is_asked_for():
    message = r"data/mine.smi line 4: .* heavy atoms, got 1; leave it out \(5 of 10 rows are bad: correct them"
    with pytest.raises(ValueError, match=message):
        check(on_bad_row="fail")
    checked, quarantine, _, _ = check(["CCO", "OCC"], on_bad_row="fail")
    assert (len(checked), list(quarantine["kind"])) == (1, ["duplicate"])


def test_refuses():
    for lines, changes, message in (
        ([], {}, "data/mine.smi must hold molecules, got none"),
        (["C", "xx"], {}, r"line 1: .*\(all rows are bad, 2 of 2"),
        (["CC"], {"root": "elsewhere"}, "molecules.data.root must be the folder of the dataset molecules.raw"),
        (["CC"], {"source": {"kind": "generated"}}, "must hold the None generated molecules .* got 1 rows"),
        (["CC"], {"charges": [-1, 1]}, r"charges must hold 0, got \[-1, 1\]"),
        (["CC"], {"max_atoms": 129}, "max_atoms\n.*less than or equal to 128"),
        (["CC"], {"max_atoms": 3, "min_atoms": 4}, "max_atoms must be at least min_atoms, 4, got 3"),
        (["CC"], {"source": {"kind": "smiles", "smiles": "s"}}, "source.smiles.smiles"),
        (["CC"], {"source": {"kind": "csv"}}, r"source.csv.smiles\n.*Field required"),
        (["CC"], {"atoms": ["C", "Xx"]}, r"atoms must be elements, got \['Xx'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            check(lines, **changes)


def test_a_graph_that_is_not_that_of_its_molecule_is_refused():
    for smiles, bonds, comes_back in (
        ("CP", "kekulised", True),
        ("C[PH4]", "kekulised", False),  # hydrogens beyond the smallest valence
        ("C[SH4]C", "aromatic", False),
        ("c1cc[cH-]c1", "kekulised", True),
        # Which of the five carbons has the charge is known, whether it has a hydrogen is not.
        ("c1cc[cH-]c1", "aromatic", False),
    ):
        checked, quarantine, _, _ = check(["CCO", smiles], bonds=bonds)
        assert (smiles in set(checked["smiles"])) == comes_back
        assert ["the graph must be that of one molecule" in said for said in quarantine["reason"]] == [True] * (not comes_back)
