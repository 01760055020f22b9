"""`grpo run`, `check`, `compare` and `report` are pipelines of `kedro run`, with the same environment and parameters."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from click.testing import CliRunner
from kedro.framework.project import settings
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from kedro.io import MemoryDataset

from grpo_pipeline.cli import cli
from grpo_pipeline.pipeline_registry import register_pipelines
from grpo_pipeline.runs.commands.pipelines import seen

ROOT = Path(__file__).parents[3]
PLAIN = {"reward/mean": torch.tensor(0.5), "reward/std": 0.25, "reward/ties_fraction": 1.0, "grad_norm/total": 1.5}


class Recorder(KedroSession):
    """Stands for the session class, and keeps what it is asked for."""

    asked: tuple[dict[str, Any], dict[str, Any]]
    params: ClassVar[dict[str, Any]] = {"dialogue": {"warm_start": None}}

    @classmethod
    def create(cls, **given: Any) -> "Recorder":
        cls.asked = (given, {})
        return cls.__new__(cls)

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def read_context(self) -> SimpleNamespace:
        return SimpleNamespace(params=Recorder.params)

    def run(self, **given: Any) -> dict[str, Any]:
        Recorder.asked[1].update(given)
        return {"dialogue.grpo.probe_step_metrics": MemoryDataset(PLAIN), "dialogue.read": MemoryDataset(1)}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.kedro]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(type(settings), "SESSION_CLASS", Recorder, raising=False)


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("command", "pipeline"),
    [("run", "dialogue"), ("check", "dialogue_step"), ("compare", "dialogue_compare"), ("report", "dialogue_evaluate")],
)
def test_a_command_is_a_registered_pipeline(command: str, pipeline: str) -> None:
    given = ["--task", "dialogue", "--env", "smoke", "--params", "seed=2,dialogue.predict.arm=grpo"]
    done = CliRunner().invoke(cli, [command, *given], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    created, ran = Recorder.asked
    assert ran["pipeline_names"] == [pipeline]
    assert pipeline in register_pipelines()
    assert created["env"] == "smoke"
    assert created.get("runtime_params") == {"seed": 2, "dialogue": {"predict": {"arm": "grpo"}}}


@pytest.mark.usefixtures("project")
def test_a_check_says_what_each_arm_has_seen_and_how_to_go_on() -> None:
    done = CliRunner().invoke(cli, ["check", "--task", "dialogue", "--env", "mine"])
    assert done.output.splitlines() == [
        "grpo: reward 0.5, deviation in a group 0.25, gradient 1.5, 100% of the groups tie: the reward teaches nothing yet",
        "The data are read, and each arm can take a step. Train with: grpo run --task dialogue --env mine",
    ]


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", {"warm_start": {"training": {"max_steps": 20}}}),
        ("dialogue.warm_start.training.seed=1", {"warm_start": {"training": {"seed": 1, "max_steps": 20}}}),
        ("dialogue.warm_start.training.epochs=2", {"warm_start": {"training": {"epochs": 2}}}),
    ],
)
def test_a_check_cuts_a_stage_that_is_there_unless_its_length_is_given(
    given: str, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recorder, "params", {"dialogue": {"warm_start": {"training": {"epochs": 90}}}})
    done = CliRunner().invoke(cli, ["check", "--task", "dialogue", "--params", given], catch_exceptions=False)
    assert Recorder.asked[0]["runtime_params"]["dialogue"] == expected
    is_cut = "max_steps" in expected["warm_start"]["training"]
    said = "dialogue.warm_start was cut to 20 steps, and the arms begin as it left them; in full: "
    assert (f"{said}kedro run --pipelines dialogue_step" in done.output) is is_cut
    assert ("the reward teaches nothing yet" in done.output) is not is_cut


def test_a_check_of_wrong_parameters_ends_as_a_run_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    bootstrap_project(ROOT)
    done = CliRunner().invoke(cli, ["check", "--task", "dialogue", "--params", "dialogue.training.group_size=0"])
    assert done.exit_code == 1
    assert done.output.startswith("error: dialogue.training.group_size must be greater than or equal to 2, got 0")
    assert "Traceback" not in done.output


def test_an_arm_says_what_it_has() -> None:
    assert [*seen({"supervised/loss": 1.0, "lr": 0.1, "reward/mean": math.nan})] == ["supervised loss 1"]
    assert [*seen({"reward/mean": 1.0})] == ["reward 1"]  # of single samples


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("command", ["run", "check", "compare", "report"])
def test_a_task_that_is_none_is_named(command: str) -> None:
    done = CliRunner().invoke(cli, [command, "--task", "atention"])
    assert "--task must be one of attention, dialogue, molecules, got 'atention'; correct it" in done.output


@pytest.mark.parametrize("command", ["run", "check", "compare", "report"])
def test_outside_of_a_project_the_remedy_is_init(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, [command, "--task", "attention"])
    assert "the current folder must lie in a project" in done.output
    assert "grpo init" in done.output


@pytest.mark.parametrize("command", sorted([*cli.lazy_subcommands, "new-data"]))
def test_every_command_explains_itself_by_examples_a_line_each(command: str) -> None:
    said = CliRunner().invoke(cli, [command, "--help"], prog_name="grpo").output
    assert [line for line in said.splitlines() if line.startswith(f"  grpo {command}")]
    assert "\\b" not in said
