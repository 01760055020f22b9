"""A part of a pipeline behind values in memory, and versions that a run does not load: refused, and what to run is named."""

from pathlib import Path

import pandas as pd
import pytest
from kedro.io import DataCatalog, MemoryDataset, SharedMemoryDataCatalog
from kedro.io.core import Version
from kedro.pipeline import Pipeline, node
from kedro_datasets.pandas import CSVDataset

from grpo_pipeline.hooks.run_ownership import RunHooks, refuse_runner
from grpo_pipeline.runs.partial_run import absent_inputs, refuse_missing_inputs, refuse_versions


def same(*values):
    return values[0]


READ = node(same, "raw", "examples", name="read")
BUILD = node(same, ["examples", "params:model"], "model", name="build")
TRAIN = node(same, ["model", "examples"], "checkpoint", name="train")
SCORE = node(same, ["checkpoint", "model"], "scores", name="score")
REGISTERED = {
    "__default__": Pipeline([READ, BUILD, TRAIN, SCORE]),
    "all": Pipeline([READ, BUILD, TRAIN, SCORE]),
    "data": Pipeline([READ]),
    "train": Pipeline([BUILD, TRAIN]),
    "bare": Pipeline([TRAIN]),
    "score": Pipeline([BUILD, SCORE]),
}


@pytest.fixture
def catalog(tmp_path: Path) -> DataCatalog:
    stored = {name: CSVDataset(filepath=str(tmp_path / f"{name}.csv")) for name in ("raw", "examples", "checkpoint")}
    return DataCatalog({**stored, "params:model": 3, "model": MemoryDataset()})


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (["train"], "train must be run together with the nodes that make model, which .* run --pipelines train"),
        (["train", "score"], "train must be .* run --pipelines train"),
        (["score"], "score must be .* run --pipelines score"),
    ],
)
def test_a_part_behind_memory_names_the_smallest_pipeline_that_runs(catalog, part, said) -> None:
    with pytest.raises(ValueError, match=said):
        refuse_missing_inputs(REGISTERED["all"].only_nodes(*part), catalog, registered=REGISTERED)


def test_a_part_that_finds_its_inputs_runs(catalog) -> None:
    refuse_missing_inputs(REGISTERED["train"], catalog, registered=REGISTERED)
    assert absent_inputs(REGISTERED["score"], catalog) == []
    catalog["model"] = MemoryDataset(1)  # a script may put a value there
    refuse_missing_inputs(REGISTERED["bare"], catalog, registered=REGISTERED)


def test_without_a_pipeline_that_runs_the_whole_one_is_named(catalog) -> None:
    with pytest.raises(ValueError, match="run the whole pipeline$"):
        refuse_missing_inputs(REGISTERED["bare"], catalog, registered={"bare": REGISTERED["bare"]})


@pytest.fixture
def versions(tmp_path: Path) -> DataCatalog:
    def versioned(name: str, load: str | None) -> CSVDataset:
        return CSVDataset(filepath=str(tmp_path / f"{name}.csv"), version=Version(load, None))

    (tmp_path / "old.csv" / "v1").mkdir(parents=True)
    pd.DataFrame({"a": [1]}).to_csv(tmp_path / "old.csv" / "v1" / "old.csv", index=False)
    plain = CSVDataset(filepath=str(tmp_path / "plain.csv"))
    return DataCatalog(
        {"old": versioned("old", "v1"), "gone": versioned("old", "v2"), "plain": plain, "made": versioned("made", None)}
    )


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"plain": "v1"}, "got plain; such datasets here: gone, old"),
        ({"made": "v1"}, "got made; such datasets here: gone, old"),
        ({"old": "v1", "gone": "v2"}, "got gone:v2; there are v1$"),
    ],
)
def test_a_version_that_would_change_nothing_is_refused(versions, chosen, said) -> None:
    read = Pipeline([node(same, ["old", "gone", "plain"], "made", name="read")])
    with pytest.raises(ValueError, match=said):
        refuse_versions(chosen, read, versions)
    refuse_versions({"old": "v1"}, read, versions)


@pytest.mark.parametrize(
    ("runner", "catalog"),
    [
        ("<kedro.runner.thread_runner.ThreadRunner object at 0x1>", DataCatalog()),
        ("<my.Runner object at 0x1>", SharedMemoryDataCatalog()),
    ],
)
def test_a_runner_of_several_nodes_at_a_time_is_refused_first(runner, catalog) -> None:
    hook = RunHooks()
    with pytest.raises(ValueError, match="--runner must be SequentialRunner, got (Thread|Parallel)Runner"):
        hook.before_pipeline_run(run_params={"runner": runner}, pipeline=Pipeline([]), catalog=catalog)
    assert hook.run == ""
    refuse_runner("<kedro.runner.sequential_runner.SequentialRunner object at 0x1>", DataCatalog())
