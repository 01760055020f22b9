"""List the kinds of the policy's loss that an arm can name."""

from typing import Annotated

from pydantic import Field

from grpo_pipeline.core.objective.surrogates.cispo import Cispo
from grpo_pipeline.core.objective.surrogates.clipped import (
    Bnpo,
    Dapo,
    DrGrpo,
    Grpo,
    Gspo,
    Luspo,
)
from grpo_pipeline.core.objective.surrogates.covariance import ClipCov, KlCov
from grpo_pipeline.core.objective.surrogates.gmpo import Gmpo
from grpo_pipeline.core.objective.surrogates.reinforce import Reinforce
from grpo_pipeline.core.objective.surrogates.sapo import Sapo
from grpo_pipeline.core.objective.surrogates.vespo import Vespo

PolicyLoss = Annotated[
    Reinforce
    | Grpo
    | DrGrpo
    | Dapo
    | Bnpo
    | Gspo
    | Luspo
    | Gmpo
    | Cispo
    | Sapo
    | Vespo
    | ClipCov
    | KlCov,
    Field(discriminator="kind"),
]
