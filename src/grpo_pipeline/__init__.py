"""Hybrid supervised + GRPO learning as a Kedro project.

The names of ``PUBLIC`` are the algorithm for loops of one's own; they need torch alone and are imported when they are used.
``load`` reads a trained model of any task, and needs the libraries of that task.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Name -> the module below ``core`` that defines it.
PUBLIC = {
    "AdaptiveEntropy": "policy_gradient.entropy",
    "Advantages": "types",
    "BackpropConfig": "backprop",
    "BackpropModule": "backprop",
    "Bnpo": "objective.surrogates.clipped",
    "Cispo": "objective.surrogates.cispo",
    "ClipCov": "objective.surrogates.covariance",
    "Dapo": "objective.surrogates.clipped",
    "DrGrpo": "objective.surrogates.clipped",
    "Gmpo": "objective.surrogates.gmpo",
    "Grpo": "objective.surrogates.clipped",
    "Gspo": "objective.surrogates.clipped",
    "KlCov": "objective.surrogates.covariance",
    "Luspo": "objective.surrogates.clipped",
    "Reinforce": "objective.surrogates.reinforce",
    "Rollouts": "types",
    "Sapo": "objective.surrogates.sapo",
    "Schedule": "schedules",
    "Vespo": "objective.surrogates.vespo",
    "categorical_entropy": "sampling.plackett_luce",
    "combine_rewards": "rewards",
    "compute_advantages": "policy_gradient.advantages",
    "compute_entropy": "backprop",
    "compute_returns": "backprop",
    "gumbel_top_k": "sampling.plackett_luce",
    "hybrid_loss": "policy_gradient.hybrid_loss",
    "kl_loss": "policy_gradient.kl",
    "plackett_luce_logprobs": "sampling.plackett_luce",
    "policy_loss": "policy_gradient.policy_loss",
    "value_loss": "policy_gradient.value_loss",
}
__all__ = [*PUBLIC, "load"]


def __getattr__(name: str) -> Any:
    if name == "load":
        return import_module(f"{__name__}.tasks.loaded").load
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.core.{PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
