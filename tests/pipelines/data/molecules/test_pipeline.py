"""The molecule data under Kedro's own loader, validator, catalogue and runner, with the committed configuration."""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from kedro.io import DataCatalog, DatasetError

from grpo_pipeline.tasks.molecules.graphs.encoding import decode

Run = Callable[..., DataCatalog]


@pytest.fixture
def run(run_data: Run) -> Run:
    return partial(run_data, "molecules")


def test_generated_data_from_nothing_to_model_input(run: Run, data_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(os.sep)
    catalog = run("smoke")
    examples, splits, report = (catalog.load(f"molecules.{name}") for name in ("examples", "splits", "data_report"))
    table = examples.table
    # All 8 of two and 23 of three atoms, then 40 of each size.
    assert report["molecules"] == len(table) == sum(map(len, splits.values())) == 151
    assert (report["refused"], report["duplicates"], report["lost_stereo"]) == (0, 0, 0)
    assert {name: sorted(part["smiles"]) for name, part in table.groupby("split")} == splits
    decoded = decode(examples.graphs(range(len(table))), examples.vocabulary)
    assert [molecule.smiles for molecule in decoded] == list(table["smiles"])
    assert examples.vocabulary.max_atoms == 6
    assert json.loads((data_project / "data/01_raw/molecules_smoke/generated.json").read_text())["molecules"] == 151


def test_a_table_of_ones_own(run: Run, data_project: Path, tmp_path: Path) -> None:
    root = tmp_path / "mine"
    root.mkdir()
    (root / "mine.csv").write_text("id,structure\na,CCO\nb,OCC\nc,C[N+](C)(C)C\nd,c1cc[nH]c1\ne,[Na+].[Cl-]\nf,CC(=O)[O-]\n")
    with (data_project / "conf/base/globals.yml").open("a") as file:
        file.write("molecules_file: mine.csv\n")
    data = {"root": str(root), "source": "csv", "on_bad_row": "quarantine", "columns": {"smiles": "structure", "name": "id"}}
    fractions = {"train": 0.5, "val": 0.25, "test": 0.25}
    catalog = run("smoke", {"data": data, "split": {"fractions": fractions}})
    quarantine = catalog.load("molecules.quarantine")
    assert quarantine[["row", "name", "kind"]].to_numpy().tolist() == [["3", "b", "duplicate"], ["6", "e", "refused"]]
    table = catalog.load("molecules.examples").table
    assert table["name"].tolist() == ["a", "c", "d", "f"]
    assert catalog.load("molecules.vocabulary")["charges"] == [0, -1, 1]
    assert not (data_project / "data/01_raw/molecules_smoke/enumerated").exists()


def test_a_folder_that_is_not_there_is_named(run: Run) -> None:
    with pytest.raises(DatasetError, match="must be an existing folder, got nothing at .*nowhere; set molecules_root"):
        run("smoke", {"data": {"root": "nowhere", "source": "smiles"}})
