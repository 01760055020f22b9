"""A part of the step is known to one list alone: taking it away is its file, its line there, its field and its test."""

import pytest
from importers import SRC, importers

from grpo_pipeline.core.objective.algorithm import AlgorithmParams, Losses

PARTS, OBJECTIVE = "grpo_pipeline.pipelines.step.parts", "grpo_pipeline.core.objective"
# What else knows a part, and why.
KNOWN = {
    "replay": {
        "pipelines/training/loop.py",
        "pipelines/training/loader.py",
        "pipelines/training/replayed_batches.py",
    },  # plans batches
    "credit": {
        "pipelines/training/shown_samples.py",
        "pipelines/step/parts/dynamic_sampling.py",
    },  # shows credits; asks what ties
}


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
