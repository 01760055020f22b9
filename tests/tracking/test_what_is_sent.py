"""The calls to the store of a run, call by call, with times: a client and runs that only note what they are told."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from kedro.io import DataCatalog
from kedro.pipeline import Node

from grpo_pipeline.pipelines.experiments.trials.records import TrialHeader, TrialRecord
from grpo_pipeline.runs.process import process_tags
from grpo_pipeline.runs.run_identity import begin_run
from grpo_pipeline.tracking import arm_runs, experiment, frame_pictures, runs, tracker, writer
from grpo_pipeline.tracking.experiment import HIDDEN, end_stale_runs, is_refusal, log_metrics, log_tags
from grpo_pipeline.tracking.frame_pictures import draw_frames
from grpo_pipeline.tracking.mlflow_config import MlflowConfig
from grpo_pipeline.tracking.row_buffer import RowBuffer
from grpo_pipeline.tracking.runs import PARENT, Runs
from grpo_pipeline.tracking.tracker import Tracker
from grpo_pipeline.tracking.trial_runs import EndedRun

NOW = 1_800_000_000.25  # seconds; MLflow counts whole milliseconds


class Noted:
    """Notes each call as (name, positional arguments, keyword arguments) and answers what it is told to."""

    def __init__(self, **answers: Any) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            answer = self._answers.get(name)
            return answer(*args) if callable(answer) else answer

        return call

    def of(self, *names: str) -> list[Any]:
        return [(name, *args, *([kwargs] if kwargs else [])) for name, args, kwargs in self.calls if name in names]


def points(client: Noted) -> list[tuple[str, str, float, int, int]]:
    """Return (run, metric, value, time, step) of each point in its order."""
    return [
        (args[0], metric.key, metric.value, metric.timestamp, metric.step)
        for _, args, kwargs in client.calls
        for metric in kwargs.get("metrics", ())
    ]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (runs, tracker, writer):
        monkeypatch.setattr(module.time, "time", lambda: NOW)


def run_of(parameters: dict[str, str] | None = None, *, end: int | None = None, status: str = "FINISHED") -> Any:
    data = SimpleNamespace(params=parameters or {}, tags={})
    return SimpleNamespace(info=SimpleNamespace(run_id="r1", end_time=end, status=status), data=data)


def opened(client: Noted) -> Runs:
    made = Runs("sqlite://", experiment="x", project=Path("/p"), on_lost=lambda error: pytest.fail(str(error)))
    made._client, made._experiment_id, made.parent = client, "e1", "parent"
    return made


def test_a_run_that_has_ended_is_written_with_its_own_times(clock: None) -> None:
    client = Noted(create_run=run_of(), get_run=run_of())
    rows = ({"step": 3, "split": "train", "loss": 0.5}, {"step": 3, "split": "val", "loss": 0.25})
    ended = EndedRun("grpo.seed1", "FAILED", 2.5, {"fold": "2"}, {"rate": "0.1"}, rows, {"test/auroc": 0.75})
    made = opened(client)
    made.log_ended(ended)
    made.end({})
    [(_, experiment_id, created)] = client.of("create_run")
    now = 1_800_000_000_250
    assert (experiment_id, created["start_time"], created["run_name"]) == ("e1", now - 2500, "grpo.seed1")
    hidden = f"{HIDDEN}project.path"
    assert created["tags"].items() >= {"fold": "2", hidden: "/p", "mlflow.parentRunId": "parent"}.items()
    assert points(client) == [
        ("r1", "loss", 0.5, now, 3), ("r1", "val/loss", 0.25, now, 3), ("r1", "test/auroc", 0.75, now, 0),
    ]  # fmt: skip
    assert [(p.key, p.value) for _, _, kwargs in client.calls for p in kwargs.get("params", ())] == [("rate", "0.1")]
    assert client.of("set_terminated") == [("set_terminated", "r1", "FAILED")]


@pytest.mark.parametrize(
    ("status", "ends", "expected"),
    [
        ("FINISHED", {}, 77),  # nothing was left to do: it ended when it ended before
        ("FINISHED", {"t.a": 99}, 99),
        ("FAILED", {}, None),  # what fails now ends now
        ("KILLED", {}, None),
        ("FAILED", {"t.a": 99}, 99),
    ],
)
def test_a_run_that_goes_on_ends_when_it_was_trained_last(status: str, ends: dict[str, int], expected: int | None) -> None:
    client = Noted(get_run=run_of(end=77), create_run=run_of())
    made = opened(client)
    made.open_child("t.a", tags={"arm": "a"}, resumed="old")
    made.open_child("t.b", tags={"arm": "b"}, resumed=None)
    assert [made.child_id(name) for name in ("t.a", "t.b", "t.c")] == ["old", "r1", ""]
    made.end({"t.a": status, "t.b": status, PARENT: "FINISHED"}, ends=ends)
    assert client.of("update_run") == [("update_run", "old", {"status": "RUNNING"})]
    assert client.of("set_terminated") == [
        ("set_terminated", "old", status, expected), ("set_terminated", "r1", status, None),
        ("set_terminated", "parent", "FINISHED", None),
    ]  # fmt: skip
    [(_, _, created)] = client.of("create_run")
    assert f"{HIDDEN}resumed.from" not in created["tags"]
    tags = {tag.key: tag.value for name, args, kwargs in client.calls if args[0] == "old" for tag in kwargs.get("tags", ())}
    assert (tags["arm"], tags["mlflow.parentRunId"], tags[f"{HIDDEN}project.path"]) == ("a", "parent", "/p")


def test_the_parent_says_which_run_of_which_project_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    client, stale = Noted(create_run=run_of()), []
    monkeypatch.setattr(runs, "create_database", lambda uri: None)
    monkeypatch.setattr(runs, "MlflowClient", lambda uri: client)
    monkeypatch.setattr(runs, "find_experiment", lambda client, name, *, artifacts: f"{name} in {artifacts}")
    monkeypatch.setattr(runs, "end_stale_runs", lambda *given, **more: stale.append((given[1:], more)))
    identity = begin_run()
    made = Runs("sqlite://", experiment="x", project=Path("/p"), on_lost=lambda error: pytest.fail(str(error)))
    made.open("attention", tags={"git.dirty": "true"}, artifacts="/files")
    made.end({})
    [(_, experiment_id, created)] = client.of("create_run")
    assert (experiment_id, created["run_name"], made.parent) == ("x in /files", "attention", "r1")
    expected = {"run.identity": identity, "project.path": "/p", "git.dirty": "true", **process_tags()}
    assert created["tags"].items() >= {HIDDEN + name: value for name, value in expected.items()}.items()
    assert stale == [(("x in /files",), {"project": "/p", "is_local_store": True})]


def test_scores_and_inputs_go_to_their_run(clock: None) -> None:
    client = Noted()
    made = opened(client)
    made.children["t.a"] = "child"
    made.log_scores("t.a", {"test/auroc": 0.5})
    made.log_scores(PARENT, {"difference": -0.25})
    made.log_input("t.a", "t.examples", digest="d" * 40, source="/data")
    made.log_text(PARENT, "text", "config/x.yml")
    made.end({})
    now = 1_800_000_000_250
    assert points(client) == [("child", "test/auroc", 0.5, now, 0), ("parent", "difference", -0.25, now, 0)]
    [(_, run, [item])] = client.of("log_inputs")
    found = item.dataset
    assert (run, found.name, found.digest, found.source, item.tags[0].value) == (
        "child",
        "t.examples",
        "d" * 36,
        "/data",
        "model_input",
    )
    tags = [(t.key, t.value) for _, _, k in client.calls for t in k.get("tags", ())]
    assert tags == [(f"{HIDDEN}data.t.examples.digest", "d" * 40)]
    assert client.of("log_text") == [("log_text", "parent", "text", "config/x.yml")]


def test_rows_are_written_whole_and_within_the_limit_of_a_call() -> None:
    """1000 points a call: of rows of 400 two fit; one of 1000 beside none."""
    client, buffer = Noted(), RowBuffer()
    buffer.add("r", [(5, {"step": step, **{f"m{i}": float(i) for i in range(400)}}) for step in range(5)])
    buffer.add("other", [(6, {"step": 0, "x": 1.0})])
    buffer.flush(client)
    assert [(args[0], len(kwargs["metrics"])) for _, args, kwargs in client.calls] == [
        ("r", 800),
        ("r", 800),
        ("r", 400),
        ("other", 1),
    ]
    assert len(points(client)) == 2001
    assert {point[3] for point in points(client)} == {5, 6}
    buffer.flush(client)
    assert len(client.calls) == 4  # nothing twice
    exact = Noted()
    buffer.add(
        "r", [(5, {"step": 0, **{f"m{i}": 0.0 for i in range(500)}}), (5, {"step": 1, **{f"m{i}": 0.0 for i in range(500)}})]
    )
    buffer.flush(exact)
    assert [len(kwargs["metrics"]) for _, _, kwargs in exact.calls] == [1000]
    many = Noted()
    log_metrics(many, "r", list(range(2001)))
    assert [len(kwargs["metrics"]) for _, _, kwargs in many.calls] == [1000, 1000, 1]
    log_tags(tagged := Noted(), "r", {f"t{i}": "x" * 6000 for i in range(101)})
    assert [len(kwargs["tags"]) for _, _, kwargs in tagged.calls] == [100, 1]
    assert {len(tag.value) for _, _, kwargs in tagged.calls for tag in kwargs["tags"]} == {5000}


def test_what_the_store_refuses_is_told_from_one_that_is_gone() -> None:
    from mlflow.exceptions import MlflowException, RestException

    def rest(code: str) -> RestException:
        return RestException({"error_code": code, "message": "x"})

    assert [is_refusal(rest(code)) for code in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST")] == [True, True]
    assert [is_refusal(rest(code)) for code in ("REQUEST_LIMIT_EXCEEDED", "INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE")] == [
        False
    ] * 3
    assert [is_refusal(error) for error in (LookupError(), TypeError(), ValueError(), AttributeError())] == [True] * 4
    assert [is_refusal(error) for error in (OSError(), RuntimeError(), MlflowException("x"))] == [False] * 3


def test_a_run_without_a_process_number_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(experiment, "is_gone", lambda tags, *, is_local_store: asked.append(is_local_store) or True)
    tags = {f"{HIDDEN}project.path": "/p", f"{HIDDEN}process.pid": "12"}
    others = ({}, {f"{HIDDEN}process.pid": ""}, {f"{HIDDEN}project.path": "/q"}, {f"{HIDDEN}process.pid": "x"})
    found = [
        SimpleNamespace(info=SimpleNamespace(run_id=str(n)), data=SimpleNamespace(tags=tags | changed))
        for n, changed in enumerate(others)
    ]
    client = Noted(search_runs=lambda *_: found)
    end_stale_runs(client, "e1", project="/p", is_local_store=False)
    assert client.of("set_terminated") == [("set_terminated", "0", "KILLED")]
    assert asked == [False]
    [(_, ids, query, _)] = client.of("search_runs")
    assert (ids, query) == (["e1"], "attributes.status = 'RUNNING'")


def nothing(*_: Any) -> Any:
    return None


def graph() -> list[Node]:
    """Two arms that are trained, one that is only evaluated here."""
    return [
        Node(nothing, ["t.a.resume_from", "t.examples"], ["t.a.metric_rows", "t.a.checkpoint"], name="train", namespace="t.a"),
        Node(nothing, ["t.a.checkpoint"], "t.a.model", name="export", namespace="t.a"),
        Node(nothing, ["t.b.resume_from"], ["t.b.metric_rows", "t.b.checkpoint"], name="train", namespace="t.b"),
        Node(nothing, ["t.c.model"], "t.c.predictions", name="predict", namespace="t.c"),
        Node(nothing, ["t.a.model", "t.c.predictions"], "t.comparison", name="compare", namespace="t"),
    ]


class Told(Noted):
    """Runs that note what they are told; a child's id is the one that it goes on with, or else that of its name."""

    is_lost, parent = False, "p"

    def __init__(self) -> None:
        super().__init__()
        self.children: dict[str, str] = {}

    def open_child(self, name: str, *, tags: dict[str, str], resumed: str | None) -> None:
        self.calls.append(("open_child", (name, tags, resumed), {}))
        self.children[name] = resumed or f"id of {name}"

    def child_id(self, name: str) -> str:
        return self.children[name]


def tracked(resume: str = "never", catalog: DataCatalog | None = None) -> tuple[Tracker, Told, list[Node]]:
    nodes, told = graph(), Told()
    made = Tracker(
        MlflowConfig(), project=Path("/p"), parameters={"seed": 1, "resume": resume, "t": {"a": {"x": 1}, "b": {"x": 2}}}
    )
    made._arms = arm_runs.find_arms(nodes, resume=resume == "auto")
    made._runs, made._catalog, made._tags = told, catalog or DataCatalog(), {"seed": "1", "env": "here"}
    return made, told, nodes


def test_each_arm_has_its_child_and_ends_with_its_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(100, 200))
    monkeypatch.setattr(tracker, "_now", lambda: next(times))
    made, told, (train, export, other, predict, compare) = tracked()
    made.node_started(train)
    made.saved("t.a.metric_rows", [])  # no rows yet: it has not begun
    made.saved("t.a.checkpoint", False)
    made.saved("t.a.metric_rows", [{"step": 0}])  # 100
    made.saved("t.a.checkpoint", SimpleNamespace(extra={}))  # 101
    made.node_ended(train)
    made.node_started(export)
    made.node_ended(export)
    made.node_started(predict)
    made.node_ended(predict)  # 102
    made.node_started(other)
    made.finish(ValueError("no")) or made.finish(None)
    assert told.of("open_child") == [
        ("open_child", f"t.{arm}", {"task": "t", "arm": arm, "seed": "1", "env": "here"}, None) for arm in "acb"
    ]  # fmt: skip
    assert told.of("log_rows") == [("log_rows", "t.a", {"rows": [{"step": 0}]})]
    statuses = {"t.a": "FINISHED", "t.c": "FINISHED", "t.b": "FAILED", "": "FAILED"}
    assert told.of("end") == [("end", statuses, {"ends": {"t.a": 101, "t.c": 102}})]
    reason = {"error.type": "ValueError", "error.message": "no"}
    assert sorted(told.of("set_tags"), key=lambda call: call[1]) == [
        ("set_tags", run, reason, {"is_last": True}) for run in ("", "t.b")
    ]
    del compare


def test_an_arm_that_goes_on_waits_for_its_checkpoint_and_has_its_rows_again(tmp_path: Path) -> None:
    rows = pd.DataFrame({"step": [0, 1], "loss": [0.5, 0.25]})
    catalog = DataCatalog.from_config({"t.a.metric_rows": {"type": "pandas.CSVDataset", "filepath": str(tmp_path / "a.csv")}})
    made, told, (train, *_) = tracked("auto", catalog)
    made.node_started(train)
    assert told.of("open_child") == []
    made.loaded("t.a.resume_from", SimpleNamespace(extra={"mlflow_run_id": "before"}), train)
    assert told.of("open_child") == [("open_child", "t.a", {"task": "t", "arm": "a", "seed": "1", "env": "here"}, "before")]
    checkpoint = SimpleNamespace(extra={})
    made.saving("t.a.checkpoint", checkpoint)
    made.saving("t.a.model", other := SimpleNamespace(extra={}))
    assert (checkpoint.extra, other.extra) == ({"mlflow_run_id": "before"}, {})
    rows.to_csv(tmp_path / "a.csv", index=False)
    made.finish(None)
    assert told.of("log_rows") == [("log_rows", "t.a", rows.to_dict("records"))]
    # Nothing was left to do: the run keeps the end that it had.
    assert told.of("end") == [("end", {"t.a": "FINISHED", "": "FINISHED"}, {"ends": {}})]


def test_a_stop_by_sigterm_has_its_seconds_and_ctrl_c_has_time() -> None:
    for error, status, seconds in (
        (SystemExit(143), "KILLED", {"seconds": MlflowConfig().sigterm_grace_seconds}),
        (KeyboardInterrupt(), "KILLED", {}),
    ):
        made, told, _ = tracked()
        made.finish(error)
        assert told.of("end") == [("end", {"": status}, {"ends": {}} | seconds)]
        [(_, _, tags, _)] = told.of("set_tags")
        assert tags["error.message"] == (str(error) or type(error).__name__)


def test_documents_and_trials_go_where_they_belong() -> None:
    made, told, _ = tracked()
    entry = {"value": 0.5, "ci95": [0.25, 0.75]}
    grid = {"arms": {"a": {"metrics": {"auroc": entry}}}, "differences": {}}
    made.saved("t.compare.result", grid)
    kinds = {"arms": {"a": {"metrics": {"auroc": {"pooled": entry}}}}, "differences": {}, "headline": "pooled"}
    made.saved("t.cross_validation.result", kinds)
    assert told.of("log_scores") == [("log_scores", "", {"mean/a/auroc": 0.5})] * 2
    (_, run, table, file), _ = told.of("log_table")
    assert (run, file, table["ci_low"].tolist()) == ("", "tables/comparison.json", [0.25])
    header = TrialHeader("a.seed0", "t", "a", 0, None, "finished", 1.0, "d", {})
    made.saved("t.compare.trials", TrialRecord(header))
    [(_, ended)] = told.of("log_ended")
    assert (ended.name, ended.status, ended.tags["env"]) == ("a.seed0", "FINISHED", "here")
    comparison = {
        "task": "t",
        "split": "val",
        "arms": {"b": {"metrics": {"auroc": entry}}},
        "differences": {"b": {"auroc": entry | {"value": 0.25}}},
        "baseline_arm": "b",
    }
    told.calls.clear()
    made.saved("t.comparison", comparison)
    assert ("log_scores", "t.b", {"scores": {"val/auroc": 0.5}}) in told.of("log_scores")
    assert told.of("log_scores")[0][1:] == ("", {"val/auroc": 0.5, "difference/auroc": 0.25})
    [(_, run, table, file)] = told.of("log_table")
    assert (run, file, len(table)) == ("", "tables/comparison.json", 2)


def test_a_few_frames_of_a_training_are_pictures_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five of them at most, the first and the last among them; a task without pictures has none."""
    asked: list[str] = []

    def resolve(name: str) -> Any:
        asked.append(name)
        return lambda few, arm: [f"{arm} {step} {value}" for step, value in zip(few["step"], few["x"], strict=True)]

    monkeypatch.setattr(frame_pictures, "resolve_name", resolve)
    frames = {"step": np.arange(0, 130, 10), "x": np.arange(13)}
    drawn = draw_frames(frames, task="attention", arm="a")
    assert drawn == {step: f"a {step} {step // 10}" for step in (0, 30, 60, 90, 120)}
    assert draw_frames({name: few[:2] for name, few in frames.items()}, task="attention", arm="a").keys() == {0, 10}
    assert [name.rpartition(":")[2] for name in asked] == ["draw_frames"] * 2
    assert draw_frames(frames, task="dialogue", arm="a") == draw_frames(frames, task="none", arm="a") == {}


def test_the_machine_is_looked_at_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    client, now = Noted(), [100.0]
    monkeypatch.setattr(runs, "psutil", SimpleNamespace(
        cpu_percent=lambda: 12.5, virtual_memory=lambda: SimpleNamespace(used=3 * 2**20),
    ))  # fmt: skip
    made = opened(client)
    made.end({})  # its thread would look at its own times
    client.calls.clear()
    monkeypatch.setattr(runs.time, "monotonic", lambda: now[0])
    made._sampled = 100.0
    for second in (105.0, 110.0, 111.0, 119.5, 120.0):
        now[0] = second
        made._flush()
    names = ("system/cpu_utilization_percentage", "system/system_memory_usage_megabytes")
    assert [(run, name, value, step) for run, name, value, _, step in points(client)] == [
        ("parent", name, value, step) for step in (0, 1) for name, value in zip(names, (12.5, 3.0), strict=True)
    ]
    made.parent, now[0] = "", 200.0
    made._flush()
    assert len(points(client)) == 4  # nothing before the parent is there


def test_the_samples_of_a_training_are_pictures_and_a_table_at_the_end_of_the_run() -> None:
    made, told, (train, *_) = tracked()
    made.node_started(train)
    made.saved("t.a.frames", {})
    made.saved("t.b.frames", {"step": np.array([0])})
    made.saved("t.a.frames", {"step": np.array([0, 7]), "prob": np.array([[0.5, 0.25], [0.75, 1.0]])})
    assert told.of("log_pictures") == told.of("log_table") == []
    made.node_started(graph()[2])
    made.finish(None)
    assert [call[1] for call in told.of("log_pictures")] == ["t.b", "t.a"]
    [(_, run, how)] = told.of("log_table")  # of t.b there are pictures alone
    assert (run, how["file"]) == ("t.a", "tables/samples.json")
    assert how["table"].to_numpy().tolist() == [[0, 0, 0.5], [0, 1, 0.25], [7, 0, 0.75], [7, 1, 1.0]]
    client = Noted()
    sent = opened(client)
    sent.log_pictures(PARENT, lambda: {0: "first", 7: "last"})
    sent.end({})
    how = {"key": "validation samples"}
    assert client.of("log_image") == [
        ("log_image", "parent", "first", how | {"step": 0}), ("log_image", "parent", "last", how | {"step": 7}),
    ]  # fmt: skip


def test_a_document_that_cannot_be_told_ends_no_run(caplog: pytest.LogCaptureFixture) -> None:
    made, told, _ = tracked()
    tracker.logger.addHandler(caplog.handler)
    made.saved("t.comparison", {"task": "t", "arms": 3})
    made.saved("t.compare.result", {"arms": {}, "differences": {}})
    tracker.logger.removeHandler(caplog.handler)
    said = "MLflow is not told of t.comparison (AttributeError: 'int' object has no attribute 'values'); the run goes on"
    assert {record.getMessage() for record in caplog.records} == {said}
    assert [call[1] for call in told.of("log_table")] == [""]  # the next one is told


def test_the_data_are_an_input_of_the_parent_and_of_each_arm_of_the_task_once() -> None:
    made, told, (train, *_) = tracked()
    made._config = MlflowConfig(inputs=["*.examples"])
    data = SimpleNamespace(digest="abc")
    for _ in range(2):
        made.loaded("t.examples", data, train)
    made.loaded("t.other", data, train)
    made.saved("t.examples", data)
    made.finish(None)
    assert sorted(call[1] for call in told.of("log_input")) == ["", "t.a", "t.b", "t.c"]
    assert {str(call[2:]) for call in told.of("log_input")} == {
        str(({"name": "t.examples", "digest": "abc", "source": "memory"},))
    }
