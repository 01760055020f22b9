"""Refuse settings that an arm of the dialogue task cannot train with; checked when its parameters are read."""

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.tasks.dialogue.language_model.params import ReplyParams
from grpo_pipeline.tasks.dialogue.language_model.prompt_text import ModelKind

ENGINE = "dialogue.replies.generation.kind"


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


def check_credit(algorithm: AlgorithmParams, *, has_environment: bool) -> None:
    """Refuse credit per turn of samples that have one turn.

    Raises:
        ValueError: without an environment.
    """
    if algorithm.credits_decisions and not has_environment:
        raise ValueError(
            f"advantage.credit must be set without dialogue.reward.environment, got {algorithm.advantage.credit}; a single reply "
            "is one turn: add an environment, or use credit = set"
        )


def check_engine(
    replies: ReplyParams,
    algorithm: AlgorithmParams,
    *,
    network: str,
    kind: ModelKind,
    has_environment: bool,
) -> None:
    """Refuse an engine that cannot draw for an arm that learns from replies.

    Raises:
        ValueError: for an arm without a correction, and for what the engine does not know.
    """
    engine = replies.generation.kind
    if engine == "own" or algorithm.losses.policy is None:
        return
    if algorithm.correction is None:
        raise ValueError(
            f"algorithm.correction must be given with {ENGINE} = {engine}, got null; its log-probabilities are not those of the "
            "update: add {kind: truncate, level: decision, cap: 2.0}"
        )
    is_cut = replies.top_k is not None or replies.top_p is not None
    unknown = {
        "a network with an encoder": kind != "causal",
        "reward.environment": has_environment,
        f"network.kind = {network}": engine == "transformers" and network != "folder",
        "replies.top_k or top_p": engine == "openai_server"
        and is_cut,  # it does not say what is left
    }
    for name in (name for name, is_there in unknown.items() if is_there):
        raise ValueError(
            f"{ENGINE} must be own with {name}, got {engine}; the engine does not know it: leave one of them out"
        )
