"""A part of the step is known to the recipe alone: taking it away is its file, its row, its field and its test."""

import ast
from pathlib import Path

import pytest

import grpo_pipeline
from grpo_pipeline.core.objective.algorithm import AlgorithmParams, Losses

SRC = Path(grpo_pipeline.__file__).parent
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


def importers(package: str, name: str) -> set[str]:
    """Return the files that import a module of a package, or anything from it."""
    found = set()
    for file in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (
                node.module == f"{package}.{name}" or (node.module == package and name in {alias.name for alias in node.names})
            ):
                found.add(file.relative_to(SRC).as_posix())
    return found


@pytest.mark.parametrize("name", names_of(PARTS))
def test_the_recipe_alone_knows_a_part(name: str) -> None:
    assert importers(PARTS, name) == {"pipelines/step/recipe.py"} | KNOWN.get(name, set())


@pytest.mark.parametrize(
    "name", ["supervised", "kl", "rollout_kl", "value", "entropy", "kl_in_reward", "dynamic_sampling", "replay"]
)
def test_the_parameters_of_a_part_are_known_to_the_objective_alone(name: str) -> None:
    assert importers(OBJECTIVE, name) == {"core/objective/algorithm.py"}
    assert name in {*Losses.model_fields, *AlgorithmParams.model_fields}
    assert name in names_of(PARTS)  # what acts has the name of its parameters
