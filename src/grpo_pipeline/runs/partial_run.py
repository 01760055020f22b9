"""Refuse a run whose inputs do not exist: values in memory that another run made, and missing versions.

``--from-nodes``, ``--tags``, ``--nodes`` and similar options cut a pipeline anywhere. Models, tasks and batches pass between
nodes in memory, so a part that needs such a value without making it cannot run.
"""

from collections.abc import Mapping

from kedro.io import DataCatalog, MemoryDataset
from kedro.pipeline import Pipeline
from kedro.pipeline.node import Node

from grpo_pipeline.runs.stored_datasets import is_versioned, place_of

PARAMETERS = ("params:", "parameters")
MOST_NAMED = 3


def refuse_missing_inputs(
    part: Pipeline, catalog: DataCatalog, *, registered: Mapping[str, Pipeline]
) -> None:
    """Refuse a run that reads a value in memory which it does not make.

    Args:
        part: the pipeline to run.
        catalog: its datasets.
        registered: name -> pipeline, from which the error suggests one.

    Raises:
        ValueError: an input is missing. The sentence names it, and a pipeline to run.
    """
    if not (missing := absent_inputs(part, catalog)):
        return
    node = next(node for node in part.nodes if set(node.inputs) & set(missing))
    wanted = sorted(set(node.inputs) & set(missing))
    few = ", ".join(wanted[:MOST_NAMED]) + (" …" if len(wanted) > MOST_NAMED else "")
    raise ValueError(
        f"{node.name} must be run together with the nodes that make {few}, which are kept in memory, got a part of a pipeline "
        f"that begins behind them; {stage_of(node, catalog, registered)}"
    )


def absent_inputs(part: Pipeline, catalog: DataCatalog) -> list[str]:
    """List the missing inputs of a pipeline: values in memory that do not exist; sorted."""
    return sorted(name for name in part.inputs() if _is_absent(name, catalog))


def _is_absent(name: str, catalog: DataCatalog) -> bool:
    if name.startswith(PARAMETERS):
        return False
    dataset = catalog.get(name)
    return dataset is None or (isinstance(dataset, MemoryDataset) and not dataset.exists())


def stage_of(node: Node, catalog: DataCatalog, registered: Mapping[str, Pipeline]) -> str:
    """Choose a pipeline to run: the smallest with this node and without missing inputs."""
    found = {
        name: len(pipeline.nodes)
        for name, pipeline in registered.items()
        if node in pipeline.nodes and not absent_inputs(pipeline, catalog)
    }
    if not found:
        return "run the whole pipeline"
    return f"run --pipelines {min(found, key=lambda name: (found[name], name.startswith('_')))}"


def refuse_versions(chosen: Mapping[str, str], pipeline: Pipeline, catalog: DataCatalog) -> None:
    """Refuse ``--load-versions`` of datasets that a run does not load in versions, because they would change nothing.

    Args:
        chosen: name -> version.
        pipeline: the pipeline to run.
        catalog: its datasets.

    Raises:
        ValueError: a dataset has no versions here. The sentence names those that have.
    """
    versioned = {
        name: dataset
        for name in sorted(pipeline.inputs())
        if (dataset := catalog.get(name)) is not None and is_versioned(dataset)
    }
    for name, version in chosen.items():
        if name not in versioned:
            there = ", ".join(versioned) or "none"
            raise ValueError(
                f"--load-versions must name a versioned dataset that the run reads and does not make, got {name}; such datasets "
                f"here: {there}"
            )
        if not versioned[name].exists():
            folder = place_of(versioned[name])
            kept = sorted(path.name for path in folder.glob("*")) if folder else []
            raise ValueError(
                f"--load-versions must name a version that is there, got {name}:{version}; there are {', '.join(kept) or 'none'}"
            )
