"""Parameters of drawing groups again whose samples all tie."""

from typing import ClassVar

from pydantic import Field

from grpo_pipeline.core.objective.part import Part


class DynamicSamplingParams(Part):
    """Draw groups whose samples all tie again (``<task>.<arm>.algorithm.dynamic_sampling``).

    Attributes:
        max_retries: further draws of a group that ties.
    """

    of_a_policy: ClassVar[bool] = True

    max_retries: int = Field(ge=1)
