"""Parameters of the supervised term of the loss."""

from grpo_pipeline.core.objective.part import Part, Weight


class SupervisedLoss(Part):
    """The task's supervised loss (``<task>.<arm>.algorithm.losses.supervised``); the control has no other.

    Attributes:
        weight: of the term.
    """

    weight: Weight
