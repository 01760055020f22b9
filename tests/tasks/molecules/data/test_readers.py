import re
from contextlib import nullcontext

import pytest
from rdkit import Chem

from grpo_pipeline.tasks.molecules.data.params import MoleculeDataParams
from grpo_pipeline.tasks.molecules.data.readers import read_entry, read_records
from grpo_pipeline.tasks.molecules.data.standardise import has_stereo, standardise
from grpo_pipeline.tasks.row_error import RowError
from grpo_pipeline.tasks.text_lines import TextFile


def read(content, source, **columns):
    limits = {"bonds": "kekulised", "atoms": None, "charges": None, "min_atoms": 2, "max_atoms": None}
    params = MoleculeDataParams(source={"kind": source, **columns}, root="", on_bad_row="fail", **limits)
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
    found = read(b'id,structure\n1,CCO\n2,"C\nC"\n3,\n', "csv", smiles="structure", name="id")
    read_as = [(entry.row, entry.name, entry.molecule is None) for entry in found]
    assert read_as == [(2, "1", False), (3, "2", True), (5, "3", True)]
    said = r"data/file must have the columns of molecules.data.source, got none named \['smiles'\]"
    with pytest.raises(ValueError, match=said):
        read(b"structure\nCCO\n", "csv", smiles="smiles", name=None)


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


CX_READ = {
    # line -> name; why it is refused, "" where it is read
    "CCO |(0,0,;1,0,;2,0,)| named": ("named", ""),
    "CCO |$;;OH$|": ("", ""),
    "C[C@H](O)F |&1:1| x y": ("x y", ""),
    "CCO |^1:1|": ("", "a graph cannot hold a radical, got 1 unpaired electrons on atom 1"),
    "CC* |$;;_AP1$| end": ("end", "which leaves something open"),
    "CCN |$;;R1$|": ("", "got '|$;;R1$|' behind it, which leaves something open"),
    "CCO |Sg:n:1::ht|": ("", "which leaves something open"),
    "CCO |LN:1:1.3|": ("", "which leaves something open"),
    "CC |s:0:1|": ("", "which leaves something open"),
    "CCO |no such thing|": ("", "must be one that RDKit reads, got 'CCO |no such thing|'"),
    "CCO |^1:1 broken": ("", "must be one that RDKit reads, got 'CCO |^1:1 broken'"),
}


@pytest.mark.parametrize("source", ["smiles", "csv"])
@pytest.mark.parametrize(("line", "name", "reason"), [(line, *told) for line, told in CX_READ.items()], ids=CX_READ)
def test_a_cxsmiles_extension_is_read_or_refused_in_every_source(source, line, name, reason):
    if source == "smiles":
        (entry,) = read(f"{line}\n".encode(), source)
        assert entry.name == name
    else:
        cell = line.removesuffix(name).strip()
        (entry,) = read(f'id,structure\n{name},"{cell}"\n'.encode(), source, smiles="structure", name="id")
    with pytest.raises(RowError, match=re.escape(reason)) if reason else nullcontext():
        if entry.molecule is None:
            raise RowError(entry.reason)
        standardise(entry.molecule)


def test_a_double_bond_that_is_said_to_be_of_either_kind_loses_nothing():
    for stereo, loses in (
        (Chem.BondStereo.STEREONONE, False),
        (Chem.BondStereo.STEREOANY, False),
        (Chem.BondStereo.STEREOE, True),
    ):
        molecule = Chem.MolFromSmiles("CC=CO")
        bond = molecule.GetBondWithIdx(1)
        bond.SetStereoAtoms(0, 3)
        bond.SetStereo(stereo)
        assert has_stereo(molecule) == loses


def test_blank_lines_between_records_are_skipped_and_an_empty_name_is_not():
    molecule = Chem.MolFromSmiles("CCO")
    named, nameless = Chem.MolToMolBlock(molecule).replace("\n", "m\n", 1), Chem.MolToMolBlock(molecule)
    text = f"{named}$$$$\n\n{named}$$$$\n\n\n{named}$$$$\n{nameless}$$$$\n\n{nameless}$$$$\n"
    found = read(text.encode(), "sdf")
    assert [entry.name for entry in found] == ["m", "m", "m", "", ""]
    assert all(entry.molecule is not None and entry.molecule.GetNumAtoms() == 3 for entry in found)


def test_a_row_of_another_width_than_its_header_is_refused():
    found = read(b"id,structure,x\n1,CCO,2,3\n2\n3,CC\n", "csv", smiles="structure", name="id")
    reasons = [entry.reason for entry in found]
    assert reasons[0] == "the row must have 3 cells as the header has, got 4; put cells with commas in quotes"
    assert reasons[1] == "the row must have 3 cells as the header has, got 1; complete it or leave it out"
    assert reasons[2] == ""  # what it lacks is not read


def test_other_encodings_and_line_ends_are_refused_by_name():
    for source in ("smiles", "sdf"):
        for encoding in ("utf-16", "utf-16-le", "utf-32"):
            with pytest.raises(ValueError, match=r"data/file must be UTF-8 text, got .*; save it again as UTF-8"):
                read("CCO\nCC\n".encode(encoding), source)
    with pytest.raises(ValueError, match="got carriage returns alone"):
        read(b"CCO\rCC\r", "smiles")
