"""Stop a training whose samples are scored otherwise than they were drawn."""

from collections.abc import Mapping

from torch import Tensor, nn

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.training.precision import has_half_weights
from grpo_pipeline.tasks.base import Task

# How far the mean ratio of a batch's first update may be from 1: by rounding alone, in float32 and where products are coarser.
RATIO_ROUNDING, COARSE_ROUNDING = 1e-5, 2e-2

# Decisions whose rounding a joint ratio may add up.
JOINT_DECISIONS = 10


def check_first_ratio(
    metrics: Mapping[str, Tensor | float],
    algorithm: AlgorithmParams,
    training: TrainingParams,
    task: Task,
    policy: nn.Module,
    *,
    step: int,
) -> None:
    """Stop where the first update of a batch does not begin at the policy that drew the batch.

    The ratio is 1 there in every arm that has one: stored groups are scored anew before it, and no other proposal has a ratio.

    Args:
        metrics: of the first update epoch.
        algorithm: a ``joint`` ratio multiplies those of all decisions, and their rounding.
        training: bfloat16, and TF32 on CUDA, round more.
        task: named in the error.
        policy: frozen weights in bfloat16 round more, too.
        step: number of the batch.

    Raises:
        ValueError: naming the ratio, the limit and where to look.
    """
    ratio = float(metrics.get("policy/ratio_mean", 1.0))
    is_coarse = (
        training.precision == "bf16"
        or has_half_weights(policy)
        or (training.float32_products == "tf32" and task.device.type == "cuda")
    )
    limit = COARSE_ROUNDING if is_coarse else RATIO_ROUNDING
    if algorithm.losses.policy is not None and algorithm.losses.policy.ratio_level == "joint":
        limit *= JOINT_DECISIONS
    if not abs(ratio - 1.0) <= limit:
        kind = type(task).__name__
        raise ValueError(
            f"policy/ratio_first must be 1 within {limit:g} at step {step} of {task.name}, got {ratio:.6f}; {kind}.score must "
            f"give the log-probabilities that {kind}.sample drew with (temperature, mask, no dropout): call "
            "grpo_pipeline.testing.check_task(task, data)"
        )
