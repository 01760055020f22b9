import pytest
from rdkit import Chem

from grpo_pipeline.tasks.molecules.data.params import ColumnParams, MoleculeDataParams
from grpo_pipeline.tasks.molecules.data.readers import read_entry, read_records, standardise
from grpo_pipeline.tasks.text_lines import RowError, TextFile


def read(content, source, columns=None):
    limits = {"bonds": "kekulised", "atoms": None, "charges": None, "min_atoms": 2, "max_atoms": None, "size_limit": 128}
    params = MoleculeDataParams(source=source, root="", columns=columns, on_bad_row="fail", **limits)
    return [*map(read_entry, read_records(TextFile("data/file", content), params))]


def test_lines_hold_a_smiles_and_perhaps_a_name():
    found = read(b"\xef\xbb\xbfCCO ethanol, pure\n\nc1cc[nH]c1\r\nC(C\nC\xff x\n", "smiles")
    assert [(entry.row, entry.name, entry.text) for entry in found] == [
        *((1, "ethanol, pure", "CCO"), (3, "", "c1cc[nH]c1"), (4, "", "C(C"), (5, "x", "C\\udcff"))
    ]
    assert [entry.molecule is None for entry in found] == [False, False, True, True]
    assert found[2].reason == "the SMILES must be one that RDKit reads, got 'C(C'; correct it"
    assert "must be UTF-8" in found[3].reason


def test_a_column_of_a_table():
    found = read(b'id,structure\n1,CCO\n2,"C\nC"\n3,\n', "csv", ColumnParams(smiles="structure", name="id"))
    read_as = [(entry.row, entry.name, entry.molecule is None) for entry in found]
    assert read_as == [(2, "1", False), (3, "2", True), (5, "3", True)]
    said = r"data/file must have the columns of molecules.data.columns, got none named \['smiles'\]"
    with pytest.raises(ValueError, match=said):
        read(b"structure\nCCO\n", "csv", ColumnParams(smiles="smiles", name=None))


def test_records_of_an_sd_file():
    blocks = []
    for name, smiles in (("a", "CCO"), ("b", "C[N+](=O)[O-]"), ("c", "c1cc[nH]c1")):
        molecule = Chem.AddHs(Chem.MolFromSmiles(smiles)) if name == "a" else Chem.MolFromSmiles(smiles)
        molecule.SetProp("_Name", name)
        blocks.append(f"{Chem.MolToMolBlock(molecule)}> <price>\n7\n\n$$$$\n")
    text = "".join([*blocks[:2], "d\n\n\nno counts here\nM  END\n$$$$\n", blocks[2]])
    found = read(text.encode(), "sdf")
    assert [entry.name for entry in found] == [text.split("\n")[entry.row - 1] for entry in found] == ["a", "b", "d", "c"]
    sound = [Chem.RemoveHs(entry.molecule) for entry in found if entry.molecule is not None]
    assert [Chem.MolToSmiles(molecule) for molecule in sound] == ["CCO", "C[N+](=O)[O-]", "c1cc[nH]c1"]
    assert "the record must be a molecule that RDKit reads" in found[2].reason
    block = Chem.MolToMolBlock(Chem.MolFromSmiles("CCO"))  # the last record needs no end
    assert [len(read(text.encode(), "sdf")) for text in (block, f"{block}$$$$", f"{block}$$$$\n\n")] == [1, 1, 1]


def of(smiles):
    return standardise(Chem.MolFromSmiles(smiles, sanitize=False))


def test_one_form():
    for smiles, wanted, lost_stereo in (
        ("OCC", "CCO", False), ("C1=CC=CN1", "c1cc[nH]c1", False), ("C[C@H](N)C(=O)O", "CC(N)C(=O)O", True),
        ("C/C=C/C", "CC=CC", True), ("[H]C([H])([H])O[H]", "CO", False), ("[CH3:7]O", "CO", False),
        ("CC(=O)[O-]", "CC(=O)[O-]", False), ("[H]/N=C/C", "CC=N", True),
    ):  # fmt: skip
        for text in {smiles, *(Chem.MolToSmiles(Chem.MolFromSmiles(smiles), doRandom=True) for _ in range(10))}:
            found = of(text)
            assert (found.smiles, found.lost_stereo, Chem.MolToSmiles(found.molecule)) == (wanted, lost_stereo, wanted)


def test_what_a_graph_cannot_hold_is_refused():
    for smiles, message in (
        ("C[N](C)(C)C", "possible valences and rings, got 'Explicit valence for atom # 1 N, 4"),
        ("c1cccc1", "got .*Can't kekulize"),
        ("C*", r"every atom must be of an element, got a dummy as atom 1"),
        ("[13CH3]O", "cannot hold an isotope, got mass 13 for atom 0"),
        ("C[CH2]", "cannot hold a radical, got 1 unpaired electrons on atom 1"),
        ("[Na+].[Cl-]", "must be in one part, got 2"),
        ("[H][H]", r"every hydrogen must belong to one heavy atom, got one that does not in '\[H\]\[H\]'"),
    ):
        with pytest.raises(RowError, match=message):
            of(smiles)
