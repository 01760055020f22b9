"""List the kinds of the policy's loss that an arm can name."""

from typing import Annotated

from pydantic import Field

from grpo_pipeline.core.objective.surrogates.cispo import Cispo
from grpo_pipeline.core.objective.surrogates.clipped import Bnpo, Dapo, DrGrpo, Grpo, Gspo
from grpo_pipeline.core.objective.surrogates.reinforce import Reinforce
from grpo_pipeline.core.objective.surrogates.sapo import Sapo

PolicyLoss = Annotated[
    Reinforce | Grpo | DrGrpo | Dapo | Bnpo | Gspo | Cispo | Sapo, Field(discriminator="kind")
]
