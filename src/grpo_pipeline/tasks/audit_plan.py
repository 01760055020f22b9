"""Plan a task's reward audit: policies with their roles, weights of the reward's components, metrics beside them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from grpo_pipeline.statistics.metric import Direction

Role = Literal["start", "trivial", "ceiling"]


@dataclass(frozen=True)
class AuditPlan:
    """How to read the rows of ``Task.audit``.

    A row is a sample of a policy for an example. Its columns are ``policy``, ``sample`` (0, 1, ... within policy and example),
    ``reward`` (NaN where it was not scored), ``reward_<component>``, the columns named below, and a column per metric (NaN where
    undefined).

    Attributes:
        example: column of the examples' names; the samples of a policy for an example are a group.
        cluster: column of the units that are resampled together.
        policies: name -> role, in the order of the report. Exactly one policy is the ``start``, the initial policy. A ``trivial``
            policy needs no learning; the ``ceiling`` knows the answer.
        weights: component -> its weight in the reward; the rows may lack a component that is named here.
        metrics: column -> the direction that is good.
    """

    example: str
    cluster: str
    policies: Mapping[str, Role]
    weights: Mapping[str, float]
    metrics: Mapping[str, Direction]

    def __post_init__(self) -> None:
        """Raise ValueError unless exactly one policy is the start."""
        starts = [name for name, role in self.policies.items() if role == "start"]
        if len(starts) != 1:
            raise ValueError(
                f"exactly one audited policy must have the role start, got {starts}; name where training begins"
            )

    @property
    def start(self) -> str:
        """Find the name of the initial policy."""
        return next(name for name, role in self.policies.items() if role == "start")
