"""Follow which arm of which task a node or a dataset belongs to, and the child run of each: both begin with ``<task>.<arm>``."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kedro.pipeline.node import Node

from grpo_pipeline.pipelines.arms import GROUPS
from grpo_pipeline.pipelines.boxes import TRAINS
from grpo_pipeline.tasks import TASKS, find_task

Key = tuple[str, str]


@dataclass
class Arm:
    """State of one arm while a run goes on.

    Attributes:
        task: name of the task.
        name: name of the arm within it.
        nodes_left: nodes of the arm that have not started.
        awaits_checkpoint: a checkpoint will be loaded that may name the child run to go on with.
        resumed: id of that run.
        trainer: name of the node that trains it; empty where this command only evaluates it.
        ended: when it was trained last, or else its last node ended, in milliseconds; None before.
        is_open: whether the child run, which has the name ``label``, was asked for.
        pending: what is to be logged once it is.
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
    """Return task and arm of a node's namespace; deeper levels belong to the arm, one level or a group of nodes to none."""
    parts = (node.namespace or "").replace(TRAINS, ".").replace("-", ".").split(".")
    return (parts[0], parts[1]) if len(parts) > 1 and parts[1] not in GROUPS else None


def dataset_key(name: str) -> Key | None:
    """Return task and arm of a dataset's name ``<task>.<arm>.<what>``."""
    parts = name.split(".")
    return (parts[0], parts[1]) if len(parts) > 2 else None


def find_arms(nodes: Iterable[Node], *, resume: bool) -> dict[Key, Arm]:
    """Return the arms of a pipeline, in the order in which they first appear; ``resume`` lets them wait for a checkpoint."""
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
    """Return MLflow's word for how a run ended; Ctrl-C and SIGTERM are no ``Exception``."""
    if error is None:
        return "FINISHED"
    return "FAILED" if isinstance(error, Exception) else "KILLED"


def end_statuses(
    arms: Mapping[Key, Arm], *, current: Key | None, error: BaseException | None
) -> dict[str, str]:
    """Return child run -> status: an arm whose nodes were all done before the error has finished."""
    done = {key: arm.nodes_left == 0 and key != current for key, arm in arms.items()}
    return {
        arm.label: status_of(None if done[key] else error)
        for key, arm in arms.items()
        if arm.is_open
    }


def is_stage(arm: Arm) -> bool:
    """Say whether what is trained is a stage before the arms, whose model nobody is to take."""
    if arm.task not in TASKS:
        return False
    spec = find_task(arm.task)
    return arm.name in (*spec.stages, *spec.optional_stages)
