"""Parameters of the KL between the policy that sampled and the present one."""

from grpo_pipeline.core.objective.part import Part, Weight


class RolloutKlLoss(Part):
    """KL(rollout policy || policy) as a term of the loss (``<task>.<arm>.algorithm.losses.rollout_kl``).

    Attributes:
        weight: of the term.
    """

    weight: Weight
