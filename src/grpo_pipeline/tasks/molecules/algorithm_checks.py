"""Refuse settings that an arm of the molecule task cannot train with; checked when its parameters are read."""

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.tasks.molecules.diffusion.params import TrajectoryParams


def check_algorithm(algorithm: AlgorithmParams, trajectory: TrajectoryParams) -> None:
    """Refuse settings with which trajectories cannot be trained.

    Raises:
        ValueError: for another proposal than policy or none, a value baseline or head, replay, or more than one update from eager
            scores. Also for a KL estimate from anything but log-probabilities of a sample.
    """
    if algorithm.proposal not in ("policy", "none"):
        raise ValueError(
            f"proposal must be policy or none for the molecule task, got {algorithm.proposal}; random graphs are no molecules, "
            "and the truth is in the supervised loss already: use none for the control"
        )
    if algorithm.advantage.baseline == "value" or algorithm.losses.value:
        raise ValueError(
            "losses.value must be null and advantage.baseline group for the molecule task, got a value term; the denoiser has no "
            "value head: use losses.policy.kind = grpo"
        )
    if algorithm.replay is not None:
        raise ValueError(
            "replay must be null for the molecule task, got a value; a prompt is the size of a graph, so that a row does not "
            "say which trajectories were drawn for it: raise group_size to see more samples"
        )
    if algorithm.losses.policy is not None:
        _check_kl(algorithm, trajectory)
        if trajectory.estimator == "eager" and algorithm.update_epochs != 1:
            raise ValueError(
                f"update_epochs must be 1 with estimator = eager, got {algorithm.update_epochs}; log p(x0 | z_t) is not what "
                "drew the sample, so that its ratio corrects nothing: use estimator = step"
            )


def _check_kl(algorithm: AlgorithmParams, trajectory: TrajectoryParams) -> None:
    """Refuse KL estimates without the log-probabilities of the draw: those of whole steps, neither means nor those of x0."""
    is_logprob = trajectory.estimator == "step" and trajectory.entry_reduction == "sum"
    paid = algorithm.paid_kl
    if paid is not None and paid.estimator != "exact" and not is_logprob:
        raise ValueError(
            f"the estimator of the KL must be exact with entry_reduction = {trajectory.entry_reduction} and estimator = "
            f"{trajectory.estimator}, got {paid.estimator}; it is estimated from log-probabilities of whole steps alone: "
            "use sum and step, or the exact KL"
        )
    if algorithm.kl_in_reward is not None and trajectory.steps_per_update is not None:
        raise ValueError(
            f"steps_per_update must be null with kl_in_reward, got {trajectory.steps_per_update}; the reward would pay "
            "for the steps that were drawn and not for the trajectory: use losses.kl"
        )
