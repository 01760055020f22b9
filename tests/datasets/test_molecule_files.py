import json

import pandas as pd
import pytest
from kedro.io import DatasetError

from grpo_pipeline.datasets.examples import ExamplesDataset
from grpo_pipeline.datasets.raw_file import RawFileDataset
from grpo_pipeline.tasks.molecules.data.build_examples import build_examples

MOLECULES = "grpo_pipeline.tasks.molecules.data.examples:MoleculeExamples"
SMILES = ["CCO", "CC#N", "CCC"]
VOCABULARY = {"atoms": ["C", "N", "O"], "charges": [0], "bonds": ["none", "single", "double", "triple"], "max_atoms": 3}


def examples():
    checked = pd.DataFrame({"smiles": SMILES, "name": "", "atoms": 3, "lost_stereo": [True, False, False], "row": [1, 2, 3]})
    properties = pd.DataFrame({"smiles": SMILES, "qed": [0.1, 0.2, 1 / 3], "logp": -1.0, "sa": 2.0})
    return build_examples(VOCABULARY, checked, properties, {"train": ["CCO"], "val": ["CC#N"], "test": ["CCC"]})


def test_examples_come_back_exactly(tmp_path):
    dataset = ExamplesDataset(filepath=str(tmp_path / "examples"), holds=MOLECULES)
    assert not dataset.exists()
    dataset.save(examples())
    found = dataset.load()
    assert found.digest == examples().digest
    assert found.vocabulary == examples().vocabulary
    pd.testing.assert_frame_equal(found.table, examples().table)
    assert found.arrays["bonds"].equal(examples().arrays["bonds"])


def test_examples_that_were_changed_are_refused(tmp_path):
    dataset = ExamplesDataset(filepath=str(tmp_path / "examples"), holds=MOLECULES)
    with pytest.raises(DatasetError, match="got nothing there; run the data pipeline of the task first"):
        dataset.load()
    dataset.save(examples())
    meta = json.loads((tmp_path / "examples" / "meta.json").read_text())
    meta["vocabulary"]["atoms"] = ["C", "O", "N"]
    (tmp_path / "examples" / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(DatasetError, match="must hold what was saved, got another digest"):
        dataset.load()


def test_a_raw_file_is_read_as_it_is(tmp_path):
    dataset = RawFileDataset(filepath=str(tmp_path / "raw"), file="mine.smi", task="molecules")
    dataset.save({})
    assert not (tmp_path / "raw").exists()
    with pytest.raises(
        DatasetError, match=r"must be an existing folder, got nothing at .*raw; set molecules_root in globals.yml"
    ):
        dataset.load()
    dataset.save({"other.smi": b"C\xff"})
    with pytest.raises(
        DatasetError, match=r"mine.smi must hold the data, got \['other.smi'\].*; set molecules_file in globals.yml"
    ):
        dataset.load()
    dataset.save({"mine.smi": b"C\xff\n"})
    assert dataset.load().open().read() == b"C\xff\n"
    assert dataset.load().path == str(tmp_path / "raw" / "mine.smi")
    assert not (tmp_path / "raw" / "other.smi").exists()
