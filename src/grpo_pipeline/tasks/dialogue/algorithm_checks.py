"""Refuse settings that an arm of the dialogue task cannot train with; checked when its parameters are read."""

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.tasks.dialogue.language_model.params import LanguageModelParams, ReplyParams
from grpo_pipeline.tasks.dialogue.language_model.prompt_text import ModelKind
from grpo_pipeline.tasks.dialogue.rewards.params import DialogueReward

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


def check_engine(
    replies: ReplyParams,
    algorithm: AlgorithmParams,
    *,
    language_model: LanguageModelParams,
    kind: ModelKind,
    rewards: DialogueReward,
) -> None:
    """Refuse an engine that cannot draw for an arm that learns from replies.

    Raises:
        ValueError: for an arm without a correction, a network that the engine does not know, or an environment.
    """
    engine, network = replies.generation.kind, language_model.network.kind
    if engine == "own" or algorithm.losses.policy is None:
        return
    if algorithm.correction is None:
        raise ValueError(
            f"algorithm.correction must be given with {ENGINE} = {engine}, got null; its log-probabilities are not those of the "
            "update: add {kind: truncate, level: decision, cap: 2.0}"
        )
    if kind != "causal":
        raise ValueError(
            f"{ENGINE} must be own for a network with an encoder, got {engine}; give a causal network, or leave it out"
        )
    if engine == "transformers" and network != "folder":
        raise ValueError(
            f"dialogue.language_model.network.kind must be folder with {ENGINE} = transformers, got {network}; the project's own "
            "networks have its sampler: leave it out"
        )
    if rewards.environment is not None:
        raise ValueError(
            f"dialogue.reward.environment must be null with {ENGINE} = {engine}, got a value; only the project's sampler lets it "
            "answer between replies"
        )
