"""A part of the step is known to one list alone: taking it away is its file, its line there, its field and its test."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from importers import SRC, importers

from grpo_pipeline.core.objective.algorithm import AlgorithmParams, Losses

PARTS, OBJECTIVE = "grpo_pipeline.pipelines.step.parts", "grpo_pipeline.core.objective"
# What else knows a part, and why.
KNOWN = {
    # shows credits; asks what ties
    "credit": {"pipelines/training/shown_samples.py", "pipelines/step/parts/dynamic_sampling.py"},
}
SUPPORT = Path(__file__).resolve().parents[1] / "support"


def names_of(package: str) -> list[str]:
    folder = SRC.joinpath(*package.split(".")[1:])
    return sorted(file.stem for file in folder.glob("*.py") if file.stem != "__init__")


@pytest.mark.parametrize("name", names_of(PARTS))
def test_the_list_of_parts_alone_knows_a_part(name: str) -> None:
    assert importers(PARTS, name) == {"pipelines/step/arm_parts.py"} | KNOWN.get(name, set())


@pytest.mark.parametrize(
    "name", ["supervised", "kl", "value", "entropy", "kl_in_reward", "dynamic_sampling", "replay", "correction"]
)
def test_the_parameters_of_a_part_are_known_to_the_objective_alone(name: str) -> None:
    assert importers(OBJECTIVE, name) == {"core/objective/algorithm.py"}
    assert name in {*Losses.model_fields, *AlgorithmParams.model_fields}
    assert name in names_of(PARTS)  # what acts has the name of its parameters


def test_without_the_file_of_a_part_every_other_arm_trains_as_before(tmp_path: Path) -> None:
    """Each part is taken away from a copy: its file, and its lines in the list."""
    parts = ["", *(name for name in names_of(PARTS) if name not in KNOWN)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SUPPORT), str(SRC.parent)])}
    command = [sys.executable, SUPPORT / "without_part.py", tmp_path, *parts]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    whole, *others = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one.pop("part") for one in others] == parts[1:]
    arms = {"supervised", "policy"}
    for name, found in zip(parts[1:], others, strict=True):
        assert found.pop("list") == str(tmp_path / name / "step" / "arm_parts.py")
        assert found == {arm: whole[arm] for arm in arms - {name}}
