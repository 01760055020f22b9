"""The command tells each way in which a disturbed run may end from the others, and what it does to runs is refused.

Runs are played here: a script says what each leaves and says, in the places and formats of a real one. Real runs are disturbed
by ``make faults``.
"""

import json
import random
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bad_inputs
import disturbed
import fault_run as command
import pytest
import torch
import yaml
from fault_outcomes import BAD, GOOD, Outcome
from parameter_models import BUILDERS, sections
from parameter_models import TASKS as MODELS
from projects import TASKS, Started
from pydantic import ValidationError
from torch import nn

from grpo_pipeline.core.storage import tensor_folder
from grpo_pipeline.core.storage.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from grpo_pipeline.core.storage.snapshot import snapshot
from grpo_pipeline.core.training.optim import advance, build_optimizer
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.rewards import process as reward_process

ROOT = Path(__file__).resolve().parents[2]

TASK = "molecules"
SENTENCE = "error: disk must have space, got none; free some"
TRACEBACK = "Traceback (most recent call last):\n  nothing"


@dataclass
class Played(Started):
    """A run that does not end before it is waited for without a limit, or is killed; one that is refused ends at once."""

    ends: int = 0
    at_once: bool = False
    finish: Callable[[], None] = lambda: None

    def wait(self, seconds: float = disturbed.SECONDS) -> int | None:
        """End where there is time for it."""
        if self.code is None and (self.at_once or seconds == disturbed.SECONDS):
            self.finish()
            self.code = self.ends
        return self.code

    def kill(self, *, whole_group: bool) -> None:
        """End by SIGKILL."""
        self.code = -signal.SIGKILL


@dataclass
class Script:
    """Starts played runs: undisturbed ones, but for those that go on after a fault.

    Attributes:
        spoil: does to the results of a disturbed run what must be noticed.
        code: how a disturbed run ends.
        said: what it says.
        is_disturbed: which arguments are those of a disturbed run.
        at_once: whether runs end as soon as they are waited for.
    """

    spoil: Callable[[Path], Any] = lambda project: None
    code: int = 0
    said: str = ""
    is_disturbed: Callable[[tuple[str, ...]], bool] = lambda args: "resume=auto" in args
    at_once: bool = False
    started: list[tuple[str, ...]] = field(default_factory=list)

    def __call__(self, project: Path, *args: str, env: str = "smoke", **environ: str) -> Started:
        self.started.append(args)
        hit = self.is_disturbed(args)
        log = project / f"log-{len(self.started)}.txt"
        log.write_text(self.said if hit else "")
        seed = next((int(arg[5:]) for arg in args if arg.startswith("seed=")), 0)

        def finish() -> None:
            if not hit or self.code == 0:
                write_results(project, seed)
            if hit:
                self.spoil(project)

        return Played(0, log, ends=self.code if hit else 0, at_once=self.at_once, finish=finish)


def write_results(project: Path, seed: int) -> None:
    """Write what a run of a seed reports."""
    data, version = project / "data", "2026-01-01T00.00.00.000Z"
    arm = data / f"07_model_output/{TASK}_smoke/grpo"
    contents = {
        data / f"06_models/{TASK}_smoke/grpo/model/{version}/model/model.safetensors": f"weights {seed}",
        arm / f"predictions.csv/{version}/predictions.csv": f"a,b\n1,{seed}\n",
        arm / "metric_rows.jsonl": json.dumps({"step": 0, "reward": seed / 7, "step_seconds": random.random()}) + "\n",
        data / f"07_model_output/{TASK}_smoke/compare/trials/grpo.seed0/predictions.csv": f"a,b\n1,{seed}\n",
        data / f"08_reporting/{TASK}_smoke/compare/result.json": json.dumps({"auroc": seed / 7}),
        data / f"08_reporting/{TASK}_smoke/comparison.json/{version}/comparison.json": json.dumps({"auroc": seed / 7}),
    }
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (project / "mlflow.db").unlink(missing_ok=True)
    with sqlite3.connect(project / "mlflow.db") as store:
        store.execute("CREATE TABLE runs (run_uuid, name, status)")
        store.execute("CREATE TABLE metrics (run_uuid, key, step, value, is_nan)")
        store.execute("INSERT INTO runs VALUES ('1', ?, 'FINISHED')", (f"{TASK}.grpo",))
        store.execute("INSERT INTO metrics VALUES ('1', 'reward', 0, ?, 0)", (seed / 7,))
    store.close()


def edit(pattern: str, content: str = "another") -> Callable[[Path], Any]:
    """Return what writes another content into the files of a pattern, which must exist."""

    def spoil(project: Path) -> None:
        found = [path for path in project.glob(pattern) if path.is_file()]
        assert found, pattern
        for path in found:
            path.write_text(content)

    return spoil


def remove(pattern: str) -> Callable[[Path], Any]:
    """Return what removes the files of a pattern, which must exist."""

    def spoil(project: Path) -> None:
        found = [path for path in project.glob(pattern) if path.is_file()]
        assert found, pattern
        for path in found:
            path.unlink()

    return spoil


def in_mlflow(statement: str) -> Callable[[Path], Any]:
    """Return what changes the store."""

    def spoil(project: Path) -> None:
        with sqlite3.connect(project / "mlflow.db") as store:
            store.execute(statement)
        store.close()

    return spoil


def bench_of(folder: Path, script: Script, *, kills: int = 1) -> disturbed.Bench:
    """Return a bench whose project holds nothing but the parameters."""
    bench = disturbed.Bench(folder, script, random.Random(0), (TASK,), kills=kills, bad_inputs=1)
    project = folder / "project"
    (project / "conf/smoke").mkdir(parents=True)
    (project / f"conf/base/{TASK}").mkdir(parents=True)
    (project / f"conf/base/{TASK}/parameters_training.yml").write_text(
        yaml.safe_dump({TASK: {"reward_pool": {"timeout_seconds": 10.0}}})
    )
    (project / "data").mkdir()
    bench.__dict__["project"] = project
    return bench


def verdicts(outcomes: Iterator[Outcome]) -> set[str]:
    return {outcome.verdict for outcome in outcomes}


ENDS: dict[str, tuple[Script, set[str]]] = {
    "as undisturbed": (Script(), {"identical"}),
    "other weights": (Script(edit("data/06_models/**/model.safetensors")), {"silent difference"}),
    "no weights": (Script(remove("data/06_models/**/model.safetensors")), {"silent difference"}),
    "another table": (Script(edit("data/07_model_output/**/predictions.csv")), {"silent difference"}),
    "another metric row": (Script(edit("data/**/metric_rows.jsonl", '{"step": 0, "reward": 0.1}')), {"silent difference"}),
    "a metric row less": (Script(edit("data/**/metric_rows.jsonl", "")), {"silent difference"}),
    "another comparison": (Script(edit("data/**/comparison.json", '{"auroc": 0.5}')), {"silent difference"}),
    "MLflow without a row": (Script(in_mlflow("DELETE FROM metrics")), {"silent difference"}),
    "MLflow with a row twice": (Script(in_mlflow("INSERT INTO metrics SELECT * FROM metrics")), {"silent difference"}),
    "MLflow with another value": (Script(in_mlflow("UPDATE metrics SET value = 1e-300")), {"silent difference"}),
    "an arm that did not finish": (Script(in_mlflow("UPDATE runs SET status = 'RUNNING'")), {"silent difference"}),
    "a traceback": (Script(said=TRACEBACK), {"traceback"}),
    "an error": (Script(code=1, said=SENTENCE), {"no clear end"}),
    "a half-written file": (
        Script(lambda project: (project / "data/x.partial-1").write_text("")),
        {"identical", "no clear end"},
    ),
}


@pytest.mark.parametrize(("script", "expected"), ENDS.values(), ids=ENDS)
def test_each_end_of_a_killed_run_is_told(tmp_path: Path, script: Script, expected: set[str]) -> None:
    assert verdicts(disturbed.killed_runs(bench_of(tmp_path, script))) == expected


GRID_ENDS: dict[str, tuple[Script, set[str]]] = {
    "as undisturbed": (Script(), {"identical"}),
    "another trial": (Script(edit("data/**/trials/*/predictions.csv")), {"silent difference"}),
    "a trial less": (Script(remove("data/**/trials/*/predictions.csv")), {"silent difference"}),
    "another result": (Script(edit("data/**/compare/result.json", '{"auroc": 0.5}')), {"silent difference"}),
}


@pytest.mark.parametrize(("script", "expected"), GRID_ENDS.values(), ids=GRID_ENDS)
def test_each_end_of_a_killed_comparison_is_told(tmp_path: Path, script: Script, expected: set[str]) -> None:
    """Undisturbed ones are made twice; the third is killed, and the fourth goes on with it, without a word of its own."""
    script.is_disturbed = lambda args: len(script.started) == 4
    assert verdicts(disturbed.killed_grids(bench_of(tmp_path, script, kills=5))) == expected
    assert {args[1] for args in script.started} == {f"{TASK}_compare"}


REFUSALS: dict[str, tuple[Script, str]] = {
    "a sentence": (Script(code=1, said=SENTENCE), "refused"),
    "accepted": (Script(code=0), "silent difference"),
    "a traceback": (Script(code=1, said=f"{TRACEBACK}\n{SENTENCE}"), "traceback"),
    "no sentence": (Script(code=1, said="Killed"), "no clear end"),
    "a sentence, and another exit code": (Script(code=3, said=SENTENCE), "no clear end"),
    "an earlier model changed": (Script(edit("data/06_models/**/model.safetensors"), 1, SENTENCE), "earlier file lost"),
    "an earlier table removed": (Script(remove("data/07_model_output/**/predictions.csv"), 1, SENTENCE), "earlier file lost"),
    "an earlier page cut": (Script(edit("data/08_reporting/**/comparison.json", ""), 1, SENTENCE), "earlier file lost"),
}


@pytest.mark.parametrize(("script", "expected"), REFUSALS.values(), ids=REFUSALS)
def test_each_end_of_a_refused_parameter_is_told(tmp_path: Path, script: Script, expected: str) -> None:
    bench = bench_of(tmp_path, script)
    bench.expected(TASK)
    script.at_once, script.is_disturbed = True, lambda args: "--params" not in args  # the wrong parameter stands in a file
    assert verdicts(bad_inputs.bad_parameters(bench)) == {expected}


def test_a_wrong_parameter_that_is_never_refused_is_told_and_ended(tmp_path: Path) -> None:
    script = Script()
    bench = bench_of(tmp_path, script)
    bench.expected(TASK)
    script.is_disturbed, killed = lambda args: "--params" not in args, []
    bench.start = lambda *args, **environ: collected(script(*args, **environ), killed)
    outcomes = list(bad_inputs.bad_parameters(bench))
    assert [outcome.verdict for outcome in outcomes] == ["no clear end"]
    assert [played.code for played in killed if played.code] == [-signal.SIGKILL]


def collected(played: Started, into: list[Started]) -> Started:
    into.append(played)
    return played


def test_a_run_that_ended_before_its_kill_does_not_count(tmp_path: Path) -> None:
    script, late = Script(), []

    def start(project: Path, *args: str, **environ: str) -> Started:
        played = script(project, *args, **environ)
        if "--params" not in args and len(late) < 3:
            late.append(played.wait())
        return played

    outcomes = list(disturbed.killed_runs(bench_of(tmp_path, start, kills=2)))
    assert [outcome.verdict for outcome in outcomes] == ["identical"] * 2
    assert len(late) == 3
    assert sum("--params" not in args for args in script.started) == 5  # three that were too late, two that were killed


def test_a_result_that_bears_another_seed_is_told(tmp_path: Path) -> None:
    """A run that predicts with a model that is stamped in the future."""
    script = Script(lambda project: write_results(project, 1))
    bench = bench_of(tmp_path, script)
    bench.expected(TASK)
    script.is_disturbed = lambda args: "seed=0" in args
    assert verdicts(disturbed.clock_in_the_future(bench)) == {"silent difference"}


@pytest.mark.parametrize("codes", [(0, 0), (1, 1)])
def test_of_two_runs_one_must_end_well_and_one_be_refused(tmp_path: Path, codes: tuple[int, int]) -> None:
    script = Script(code=codes[0], said=SENTENCE if codes[0] else "")
    bench = bench_of(tmp_path, script)
    for seed in (0, 1):
        bench.expected(TASK, seed)
    script.is_disturbed = lambda args: True
    assert verdicts(disturbed.two_at_once(bench)) == {"silent difference"}


def test_the_processes_that_are_paused_are_those_of_the_rewards(tmp_path: Path) -> None:
    """Their module may move; then no process would be found, and none paused."""
    process = reward_process.WorkerProcess(print)
    try:
        cwd = Path(f"/proc/{process._process.pid}/cwd").resolve()
        assert process._process.pid in disturbed._workers(cwd)
        assert process._process.pid not in disturbed._workers(tmp_path)
    finally:
        process.kill()


def test_rewards_that_nothing_paused_are_not_called_identical(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, Script())
    bench.expected(TASK)
    start = bench.start

    def start_ended(project: Path, *args: str, **environ: str) -> Started:
        played = start(project, *args, **environ)
        played.wait()
        return played

    bench.start = start_ended
    assert verdicts(disturbed.paused_workers(bench)) == {"no clear end"}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of core."""
    policy = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    state = TrainState(policy, build_optimizer({"all": (list(policy.parameters()), 0.1)}), None, 0, 0, 0)
    for _ in range(2):
        policy(torch.ones(2, 4)).sum().backward()
        state.optimizer.step()
        state = advance(state)
    folder = tmp_path_factory.mktemp("stored") / "checkpoint"
    save_checkpoint(folder, snapshot(state, progress={"total_steps": 4, "config_digest": "1"}))
    return folder


@pytest.mark.parametrize("name", disturbed.EDITS)
def test_each_edit_of_a_checkpoint_is_refused(tmp_path: Path, stored: Path, name: str) -> None:
    folder = copied(stored, tmp_path)
    disturbed.EDITS[name](folder, random.Random(0))
    with pytest.raises(CheckpointError):
        load_checkpoint(folder)


def test_the_edits_tell_a_checkpoint_without_check_sums(tmp_path: Path, stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_folder, "seal_of", lambda header: header.get("sha256"))
    folder = copied(stored, tmp_path)
    disturbed.EDITS["another learning rate"](folder, random.Random(0))
    load_checkpoint(folder)  # accepted: `make faults` would say so


def copied(stored: Path, target: Path) -> Path:
    """Return a copy of a checkpoint."""
    folder = target / "checkpoint"
    folder.mkdir()
    for path in stored.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.parametrize("task", TASKS)
def test_every_wrong_parameter_is_refused(task: str) -> None:
    """By the model of its section, or where the task is built."""
    right = sections(ROOT / "conf", "smoke", task)
    read = {name: None if part is None else MODELS[task][name].model_validate(part) for name, part in right.items()}
    accepted, tried = [], 0
    for path, value in bad_inputs.wrong_values(task):
        inner, name = list(path[1:]), ""
        while inner and name not in right:
            name = ".".join(filter(None, (name, inner.pop(0))))
        if not inner or right[name] is None or "learning_rates" in path[:-1]:  # refused where the state of an arm is built
            continue
        nested: Any = value
        for part in reversed(inner):
            nested = {part: nested}
        tried += 1
        try:
            wrong = MODELS[task][name].model_validate(bad_inputs.merged(right[name], nested))
            BUILDERS[task](read | {name: wrong})
        except (ValidationError, ValueError):
            continue
        accepted.append(f"{'.'.join(path)}: {value!r}")
    assert tried > 100
    assert not accepted


def test_counts_are_of_the_commit_and_name_what_went_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "RECORD", tmp_path / "reliability.json")
    options = command._parse(["--seed", "3"])
    outcomes = [Outcome("kill", "a", "identical"), Outcome("kill", "b", "silent difference"), Outcome("disk", "c", "refused")]
    command.remember([Outcome("kill", "z", "traceback"), Outcome("server", "d", "identical")], options, "0000000")
    text = command.document(command.remember(outcomes, options, "1234567"))
    assert f"| fault | cases | {' | '.join([*GOOD, *BAD])} | commit, seed |" in text
    assert "| kill | 2 | 1 | 0 | 1 | 0 | 0 | 0 | 1234567, 3 |" in text
    assert "| server | 1 | 1 | 0 | 0 | 0 | 0 | 0 | 0000000, 3 |" in text
    assert "- kill, b: silent difference" in text
    assert "traceback\n" not in text.split("Cases that did not end")[1]


def test_a_disturbed_command_ends_with_status_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    try:
        for verdict, code in (("identical", 0), ("traceback", 1)):
            monkeypatch.setitem(command.FAULTS, "kills", lambda bench, verdict=verdict: iter([Outcome("kill", "a", verdict)]))
            assert command.main(["--only", "kills", "--no-fork"]) == code
            assert f"{verdict:18} kill (a)" in capsys.readouterr().out
    finally:
        signal.signal(signal.SIGTERM, handler)


def test_counts_of_changed_files_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    clean = subprocess.CompletedProcess([], 0, stdout="")
    changed = subprocess.CompletedProcess([], 0, stdout=" M src/grpo_pipeline/errors.py\n")
    head = subprocess.CompletedProcess([], 0, stdout="1234567\n")
    for status, commit in ((clean, "1234567"), (changed, "1234567+")):
        monkeypatch.setattr(subprocess, "run", lambda line, status=status, **_: status if "status" in line else head)
        assert command._commit() == commit
    with pytest.raises(SystemExit, match="commit them or leave out --write"):
        command.main(["--write", "--no-fork"])
