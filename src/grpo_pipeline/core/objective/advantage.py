"""List the comparisons of samples that an arm can name."""

from typing import Annotated

from pydantic import Field

from grpo_pipeline.core.objective.advantages.baselines import (
    Batch,
    Group,
    LeaveOneOut,
    MeanOnly,
    ReinforcePlusPlus,
)
from grpo_pipeline.core.objective.advantages.optimal_baseline import Opo
from grpo_pipeline.core.objective.advantages.pass_at_k import PassAtK
from grpo_pipeline.core.objective.advantages.per_reward import PerReward

AdvantageParams = Annotated[
    Group | LeaveOneOut | MeanOnly | Batch | PerReward | ReinforcePlusPlus | Opo | PassAtK,
    Field(discriminator="method"),
]
