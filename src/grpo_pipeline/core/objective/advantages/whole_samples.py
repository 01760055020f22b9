"""Describe comparisons of whole samples, which no decision has alone."""

from typing import Literal

from pydantic import Field

from grpo_pipeline.core.objective.advantages.advantage import Advantage


class OfSamples(Advantage):
    """A comparison of whole samples within their group; it has a baseline of its own."""

    credit: Literal["set"] = Field(default="set", exclude_if=lambda credit: True)
    baseline: Literal["group"] = "group"
