"""Parameters of the KL divergence from a reference, as a term of the loss."""

from typing import ClassVar, Literal

from grpo_pipeline.core.objective.part import Part, Weight
from grpo_pipeline.core.objective.reference import FrozenReference, Reference


class KlLoss(Part):
    """KL(policy || reference) as a term of the loss (``<task>.<arm>.algorithm.losses.kl``).

    Attributes:
        weight: of the term.
        estimator: how it is computed (docs/algorithms.md). ``k1`` is none of them: its gradient has mean 0.
        reference: the policy that it is measured to.
    """

    of_a_policy: ClassVar[bool] = True

    weight: Weight
    estimator: Literal["exact", "k2", "k3", "ratio_k3"] = "exact"
    reference: Reference = FrozenReference()
