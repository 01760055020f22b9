"""Learn from known targets: the supervised term of the loss."""

from torch import Tensor

from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.pipelines.step.experience import Experience
from grpo_pipeline.pipelines.step.part import StepPart
from grpo_pipeline.tasks.base import Task


def supervised_term(
    task: Task, state: TrainState, experience: Experience, update_epoch: int
) -> dict[str, Tensor]:
    """Return the supervised loss in the first update epoch, nothing later: its gradient counts once per batch."""
    if update_epoch > 0:
        return {}
    known = () if experience.share is None else (experience.share.supervised,)
    loss = task.supervised_loss(
        state.policy, experience.context, experience.batch, experience.outcomes, *known
    )
    return {"supervised": loss}


PART = StepPart(
    is_in=lambda algorithm: algorithm.losses.supervised is not None,
    rows={
        "loss": (
            ("loss", "supervised_term", supervised_term, "task state experience update_epoch"),
        ),
    },
)
