"""End the updates of a batch where the policy has gone far enough from the one that sampled."""

from grpo_pipeline.core.diagnostics.ratio_statistics import rollout_kl
from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.pipelines.step.experience import Experience, Report
from grpo_pipeline.pipelines.step.part import StepPart


def exceeds_target(
    algorithm: AlgorithmParams, report: Report, experience: Experience, update_epoch: int
) -> bool:
    """Check whether ``kl/rollout`` is above the target before this update; a batch has at least one update.

    It is measured over all pieces of the batch, so that micro-batches end it together.
    Source: PPO as Stable-Baselines3 has it, which ends at 1.5 times its ``target_kl``; here the number is the bound.
    """
    surrogate, scores, rollouts = algorithm.losses.policy, report.scores, experience.rollouts
    assert surrogate is not None
    assert scores is not None
    assert algorithm.target_kl is not None
    if update_epoch == 0:
        return False
    measured = rollout_kl(
        scores.logprobs, rollouts.logprobs, rollouts.is_valid, level=surrogate.ratio_level
    )
    return float(measured) > algorithm.target_kl


PART = StepPart(
    is_in=lambda algorithm: algorithm.target_kl is not None,
    rows={
        "before_update": (
            ("", "stops", exceeds_target, "algorithm report experience update_epoch"),
        ),
    },
)
