"""Follow the arm of each node and dataset, whose names begin with ``<task>.<arm>``, and the arm's child run."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kedro.pipeline.node import Node

from grpo_pipeline.pipelines.arms import GROUPS
from grpo_pipeline.pipelines.boxes import TRAINS
from grpo_pipeline.tasks import TASKS, find_task

Key = tuple[str, str]


@dataclass
class Arm:
    """State of an arm during a run.

    Attributes:
        task: name of the task.
        name: name of the arm within it.
        nodes_left: number of the arm's nodes that have not started.
        awaits_checkpoint: whether a checkpoint will be loaded that may name the child run to resume.
        resumed: id of the child run to resume.
        trainer: name of the node that trains it; empty if this command only evaluates it.
        ended: time of its last training step, or else of the end of its last node, in milliseconds; None before.
        is_open: whether the child run, which has the name ``label``, was asked for.
        pending: entries to be logged once it is open.
    """

    task: str
    name: str
    nodes_left: int = 0
    awaits_checkpoint: bool = False
    resumed: str = ""
    trainer: str = ""
    ended: int | None = None
    is_open: bool = False
    pending: list[Callable[[str], None]] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Name of the child run."""
        return f"{self.task}.{self.name}"


def node_key(node: Node) -> Key | None:
    """Find task and arm of a node's namespace; deeper levels belong to the arm, a single level or a group to none."""
    parts = (node.namespace or "").replace(TRAINS, ".").replace("-", ".").split(".")
    return (parts[0], parts[1]) if len(parts) > 1 and parts[1] not in GROUPS else None


def dataset_key(name: str) -> Key | None:
    """Find task and arm of a dataset's name ``<task>.<arm>.<what>``."""
    parts = name.split(".")
    return (parts[0], parts[1]) if len(parts) > 2 else None


def find_arms(nodes: Iterable[Node], *, resume: bool) -> dict[Key, Arm]:
    """List the arms of a pipeline by first appearance; ``resume`` makes them wait for a checkpoint."""
    arms: dict[Key, Arm] = {}
    for node in nodes:
        if (key := node_key(node)) is not None:
            arm = arms.setdefault(key, Arm(*key))
            arm.nodes_left += 1
            if f"{arm.label}.metric_rows" in node.outputs:
                arm.trainer = node.name
            arm.awaits_checkpoint |= resume and f"{arm.label}.resume_from" in node.inputs
    return arms


def status_of(error: BaseException | None) -> str:
    """Find MLflow's status for the end of a run; Ctrl-C and SIGTERM are no ``Exception``."""
    if error is None:
        return "FINISHED"
    return "FAILED" if isinstance(error, Exception) else "KILLED"


def end_statuses(
    arms: Mapping[Key, Arm], *, current: Key | None, error: BaseException | None
) -> dict[str, str]:
    """Map child run -> status: an arm whose nodes were all done before the error has finished."""
    done = {key: arm.nodes_left == 0 and key != current for key, arm in arms.items()}
    return {
        arm.label: status_of(None if done[key] else error)
        for key, arm in arms.items()
        if arm.is_open
    }


def is_stage(arm: Arm) -> bool:
    """Check whether this is a stage before the arms, whose model is not offered."""
    if arm.task not in TASKS:
        return False
    spec = find_task(arm.task)
    return arm.name in (*spec.stages, *spec.optional_stages)
