"""A run reads what it saved itself and what was made together; what it makes appears at its end, as a whole."""

from pathlib import Path
from typing import Any

import pytest
import torch
from kedro.io import DataCatalog
from kedro.pipeline import Node, Pipeline

from grpo_pipeline.core.storage.checkpoint import Checkpoint, save_checkpoint
from grpo_pipeline.hooks.run_ownership import RunHooks
from grpo_pipeline.runs.artefact_records import (
    Entry,
    ProvenanceError,
    Record,
    finish_moves,
    load_record,
    refuse_mixture,
    save_record,
)
from grpo_pipeline.runs.provenance import Provenance
from grpo_pipeline.runs.result_folders import LOOKS_UP

JSON, TEXT = "json.JSONDataset", "text.TextDataset"


def keep(*values: Any) -> Any:
    return values[0] if len(values) == 1 else values


def catalog_of(data: Path, *, save: str | None = "v1", load: dict[str, str] | None = None) -> DataCatalog:
    folder = {"checkpoint": "06_models/t", "table": "07_out/t", "splits": "03_primary/t", "page": "08_reporting/t"}
    kind = {"checkpoint": "grpo_pipeline.datasets.checkpoint.CheckpointDataset", "page": TEXT}
    entries: dict[str, Any] = {
        name: {"type": kind.get(name, JSON), "filepath": str(data / place / name)} for name, place in folder.items()
    }
    entries["table"]["versioned"] = True
    entries["resume_from"] = entries["checkpoint"]
    catalog = DataCatalog.from_config(entries, save_version=save, load_versions=load)
    catalog["params:seed"] = 0
    return catalog


def pipeline() -> Pipeline:
    return Pipeline(
        [
            Node(lambda: False, None, "resume_from", name="find", tags=[LOOKS_UP]),
            Node(keep, ["params:seed"], "splits", name="split"),
            Node(keep, ["splits", "resume_from"], "checkpoint", name="train"),
            Node(keep, ["checkpoint"], "table", name="predict"),
            Node(keep, ["table"], "page", name="report"),
        ]
    )


def begin(
    data: Path, *, run: str, save: str = "v1", nodes: tuple[str, ...] = ("find", "split", "train", "predict", "report")
) -> Any:
    catalog, part = catalog_of(data, save=save), pipeline().filter(node_names=nodes)
    provenance = Provenance(run=run, since="noon", data=data, pipeline=part, catalog=catalog)
    provenance.begin(chosen=(), stages=True)

    def put(name: str, value: Any) -> None:
        provenance.saving(name, value)
        catalog.save(name, value)
        provenance.saved(name, value)

    def get(name: str) -> Any:
        value = catalog.load(name)
        provenance.loaded(name, value)
        return value

    return provenance, put, get


def checkpoint(step: int, value: float = 0.0) -> Checkpoint:
    policy = {"w": torch.full((2,), value)}
    scalars = {"tensors": {}, "scalars": {}, "groups": []}
    return Checkpoint(policy, scalars, None, {}, {"step": step, "epoch": 0, "seed": 0})


def finish(data: Path, *, run: str, save: str, page: str = "page") -> None:
    provenance, put, get = begin(data, run=run, save=save)
    put("splits", {"train": [1]})
    get("splits")
    get("resume_from")
    put("checkpoint", checkpoint(1))
    put("checkpoint", checkpoint(2))
    assert get("checkpoint").extra["run"] == run
    put("table", {"auroc": save})
    assert get("table") == {"auroc": save}
    put("page", page)
    provenance.commit()
    provenance.end()


@pytest.mark.parametrize("step", [2, 999])
def test_another_runs_checkpoint_is_not_taken_for_this_ones(tmp_path: Path, step: int) -> None:
    """Between training and calibration something writes a sound checkpoint of another seed or step."""
    _, put, get = begin(tmp_path, run="mine")
    put("splits", {})
    get("resume_from")
    put("checkpoint", checkpoint(2))
    other = checkpoint(step, value=1.0)
    other.extra["run"] = "other"
    save_checkpoint(tmp_path / "06_models/t/checkpoint", other)
    with pytest.raises(ProvenanceError, match=rf"this run mine saved, got other content \(of run other, step {step}\)"):
        get("checkpoint")


def test_an_arm_that_was_complete_uses_what_it_found(tmp_path: Path) -> None:
    finish(tmp_path, run="first", save="v1")
    _, put, get = begin(tmp_path, run="second", save="v2")
    put("splits", {"train": [1]})
    get("resume_from")
    put("checkpoint", False)
    assert get("checkpoint").progress["step"] == 2
    save_checkpoint(tmp_path / "06_models/t/checkpoint", checkpoint(5))
    _, put, get = begin(tmp_path, run="third", save="v3")
    get("resume_from")
    save_checkpoint(tmp_path / "06_models/t/checkpoint", checkpoint(6))
    put("checkpoint", False)
    with pytest.raises(ProvenanceError, match="what this run third found when it began"):
        get("checkpoint")


@pytest.mark.parametrize("order", [("v1", "v2"), ("v9", "v0")])
def test_the_last_run_counts_whatever_its_version_is_called(tmp_path: Path, order: tuple[str, str]) -> None:
    """In a later run and, by the record, outside of one: as a notebook, and as who names a version."""
    for save in order:
        finish(tmp_path, run=f"run {save}", save=save)
    hooks = RunHooks()
    hooks._data = tmp_path
    for versions, expected in (({}, order[1]), ({"table": order[0]}, order[0])):
        catalog = catalog_of(tmp_path, save=None, load=versions)
        hooks.after_catalog_created(catalog=catalog, save_version=None)
        assert catalog.load("table") == {"auroc": expected}
    _, _, get = begin(tmp_path, run="later", save="v5", nodes=("report",))
    assert get("table") == {"auroc": order[1]}


def test_what_a_killed_writer_left_goes_with_the_next_run(tmp_path: Path) -> None:
    left = [tmp_path / "07_out/t/table/v0/table.partial-77", tmp_path / "06_models/t/checkpoint.partial-77/policy"]
    foreign = tmp_path / "07_out/other/table/v0/table.partial-77"
    for path in (*left, foreign):
        path.parent.mkdir(parents=True)
        path.write_text("half")
    finish(tmp_path, run="next", save="v1")
    assert [path.name for path in tmp_path.rglob("*.partial-*")] == [foreign.name]


def test_an_edited_input_is_refused_before_anything_runs(tmp_path: Path) -> None:
    """Also one that a run pins: else its first nodes would leave new versions of what does not read it."""
    finish(tmp_path, run="first", save="v1")
    (tmp_path / "07_out/t/table/v1/table").write_text('{"auroc": "mine"}')
    with pytest.raises(
        ProvenanceError, match=r"table must be what run first \(since noon\) saved, got other content in .*v1/table;"
    ):
        begin(tmp_path, run="second", save="v2", nodes=("report",))
    begin(tmp_path, run="third", save="v3", nodes=("split", "train", "predict", "report"))


def test_a_version_that_no_finished_run_has_written_down_is_refused(tmp_path: Path) -> None:
    """A folder of another origin beside those of the record, as a copy that somebody has made."""
    finish(tmp_path, run="first", save="v1")
    record = load_record(tmp_path / ".runs/t.json")
    entries = {name: entry for name, entry in record.entries.items() if name != "table"}
    save_record(tmp_path / ".runs/t.json", Record(entries))
    with pytest.raises(
        ProvenanceError, match=r"table must be what a finished run made, got none written down in .*t.json; run the"
    ):
        begin(tmp_path, run="second", save="v2", nodes=("report",))


def test_nothing_appears_before_the_end_and_nothing_waits_after_it(tmp_path: Path) -> None:
    finish(tmp_path, run="first", save="v1", page="old")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and "checkpoint" not in str(path)}
    before.pop(tmp_path / ".runs/t.json")
    provenance, put, get = begin(tmp_path, run="second", save="v2")
    put("splits", {"train": [2]})
    assert get("splits") == {"train": [2]}
    put("checkpoint", checkpoint(1))
    put("page", "new")
    provenance.end()  # it fails here
    assert {path: path.read_bytes() for path in before} == before
    assert not (tmp_path / ".runs/t.staged").exists()
    with pytest.raises(ProvenanceError, match=r"checkpoint must be what a finished run made, got what run second \(since noon\)"):
        begin(tmp_path, run="third", save="v3", nodes=("predict",))
    finish(tmp_path, run="fourth", save="v4", page="new")
    assert (tmp_path / "08_reporting/t/page").read_text() == "new"


def test_a_kill_while_files_are_put_in_place_is_made_good(tmp_path: Path) -> None:
    finish(tmp_path, run="first", save="v1", page="old")
    place, ready = tmp_path / "08_reporting/t/page", tmp_path / ".runs/t.staged/page"
    ready.parent.mkdir()
    ready.write_text("new")
    noted = load_record(tmp_path / ".runs/t.json")
    save_record(tmp_path / ".runs/t.json", Record(noted.entries, ((str(ready), str(place)), ("gone", "done already"))))
    finish_moves(tmp_path / ".runs/t.json")
    assert place.read_text() == "new"
    assert load_record(tmp_path / ".runs/t.json").moves == ()


def test_what_is_read_together_was_made_from_the_same_things() -> None:
    first = Entry("aa", "noon", "d1", "", {"params:seed": "0", "examples": "e0"})
    refuse_mixture({"x": first, "y": Entry("bb", "one", "d2", "", {"params:seed": "0", "other": "9"})})
    said = r"x and y must be made from the same params:seed, got x by run aa \(since noon\) and y by run bb \(since one\)"
    with pytest.raises(ProvenanceError, match=said):
        refuse_mixture({"x": first, "y": Entry("bb", "one", "d2", "", {"params:seed": "1", "examples": "e1"})})
    with pytest.raises(ProvenanceError, match="must be made from the same x, got"):
        refuse_mixture({"x": first, "y": Entry("bb", "one", "d2", "", {"x": "d0"})})


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{")
    with pytest.raises(ProvenanceError, match=r"t\.json must be what runs wrote down of their results, got JSONDecodeError"):
        load_record(tmp_path / "t.json")
