"""Build the surrogate of a policy loss from its kind and options, as a parameter file does."""

from typing import Any

from pydantic import TypeAdapter

from grpo_pipeline.core.objective.policy import PolicyLoss
from grpo_pipeline.core.objective.surrogates.surrogate import Surrogate

KINDS: TypeAdapter[Surrogate] = TypeAdapter(PolicyLoss)


def surrogate(kind: str = "grpo", **options: Any) -> Surrogate:
    """Return the surrogate of this kind."""
    return KINDS.validate_python({"kind": kind} | options)
