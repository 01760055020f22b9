"""Refuse settings that an arm of the dialogue task cannot train with; checked when its parameters are read."""

from grpo_pipeline.core.objective.algorithm import AlgorithmParams


def check_algorithm(algorithm: AlgorithmParams) -> None:
    """Refuse settings with which language models cannot be trained.

    Raises:
        ValueError: for another proposal than policy or none, a value baseline or head, or the exact KL.
    """
    if algorithm.proposal not in ("policy", "none"):
        raise ValueError(
            f"proposal must be policy or none for the dialogue task, got {algorithm.proposal}; replies of random tokens teach "
            "nothing, and the truth is in the supervised loss already: use none for the control"
        )
    if algorithm.advantage.baseline == "value" or algorithm.losses.value:
        raise ValueError(
            "losses.value must be null and advantage.baseline group for the dialogue task, got a value term; a language model "
            "has no value head: use losses.policy.kind = grpo"
        )
    if algorithm.pays_exact_kl:
        raise ValueError(
            "losses.kl.estimator must be k2, k3 or ratio_k3 for the dialogue task, got exact; the distributions of all tokens of "
            "all replies are never held at once"
        )
