"""Compute loss terms of decisions [B] or [B, T] from given advantages; each is the mean over valid decisions.

``losses`` thinks in prompts and groups, with one advantage per sample. Here each decision is a row of its own, so that
advantages may differ over time, as those of GAE do.
"""

import inspect
import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from grpo_pipeline.core.policy_gradient.losses import (
    NonFiniteLossError,
    bounded_ratio,
    policy_loss,
    value_loss,
)
from grpo_pipeline.core.training import optim
from grpo_pipeline.core.training.state import TrainState


def valid_decisions(log_probs: Tensor, is_valid: Tensor | None) -> Tensor:
    """Return the mask as bool, of the shape of the log-probabilities; all True for None."""
    if is_valid is None:
        return torch.ones_like(log_probs, dtype=torch.bool)
    if is_valid.shape != log_probs.shape:
        raise ValueError(
            f"is_valid must have shape {list(log_probs.shape)}, got {list(is_valid.shape)}; one entry per decision"
        )
    return is_valid if (found := flags("is_valid", is_valid)) is None else found


def flags(name: str, mask: Tensor | None) -> Tensor | None:
    """Return 0/1 entries of any type as bool; None stays None.

    Raises:
        ValueError: for an entry that is neither 0 nor 1.
    """
    if mask is None or mask.dtype == torch.bool:
        return mask
    is_odd = (mask != 0) & (mask != 1)
    if bool(is_odd.any()):
        raise ValueError(
            f"{name} must be bool, or 0 and 1, got {float(mask[is_odd][0])}; give flags, not probabilities"
        )
    return mask != 0


def policy(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    is_valid: Tensor,
    *,
    algorithm: Literal["reinforce", "grpo"],
    clip: float = 0.2,
) -> Tensor:
    """Return the surrogate of ``core.policy_gradient.losses.policy_loss``, the mean over valid decisions.

    Args:
        log_probs: [B] or [B, T], with gradient.
        old_log_probs: the same at rollout time; detached.
        advantages: of the same shape, or one per row; detached.
        is_valid: bool of the same shape.
        algorithm: "reinforce" or "grpo", the clipped ratio of PPO.
        clip: the ratio is clipped to 1 -+ this.

    Raises:
        ValueError: for shapes that do not fit.
    """
    if old_log_probs.shape != log_probs.shape:
        raise ValueError(
            f"old_log_probs must have shape {list(log_probs.shape)}, got {list(old_log_probs.shape)}; score the same actions"
        )
    # Each decision is a prompt of its own, with one sample of one decision: [B * T, 1, 1], advantages [B * T, 1].
    return policy_loss(
        log_probs.reshape(-1, 1, 1),
        old_log_probs.reshape(-1, 1, 1),
        _per_decision(advantages, log_probs).reshape(-1, 1),
        is_valid.reshape(-1, 1, 1),
        algorithm=algorithm,
        clip_low=clip,
        clip_high=clip,
        reduction="per_decision",
    )


def value(
    values: Tensor | None,
    old_values: Tensor | None,
    returns: Tensor | None,
    is_valid: Tensor,
    *,
    clip: float | None,
) -> Tensor:
    """Return ``losses.value_loss`` over valid decisions, or over rows with one if there is one value per row.

    Args:
        values: of the shape of is_valid, or one per row, with gradient; or [B, T + 1], whose last column is left out.
        old_values: like values, at rollout time; needed for clipping.
        returns: of the shape of is_valid, or one per row.
        is_valid: bool [B] or [B, T].
        clip: half-width of the trust region, or None.

    Raises:
        ValueError: for shapes that do not fit, or if one of values and returns is missing.
    """
    if values is None or returns is None:
        missing, other = ("values", "returns") if values is None else ("returns", "values")
        raise ValueError(
            f"{missing} must be given with {other}, got None; the value loss needs both"
        )
    values = _without_bootstrap(values, is_valid)
    if old_values is not None:
        old_values = _without_bootstrap(old_values, is_valid)
    # Like the values: each decision, [B, T], or each row that has a valid one, [B].
    is_counted = is_valid if values.shape == is_valid.shape else is_valid.any(dim=-1)
    if not values.shape == returns.shape == is_counted.shape:
        raise ValueError(
            f"values and returns must have shape {list(is_valid.shape)}, or one entry per row, got {list(values.shape)} and "
            f"{list(returns.shape)}; leave the bootstrap value out of the returns"
        )
    # value_loss leaves out targets that are NaN; a padded value may be anything and must not reach the gradient.
    return value_loss(
        values.masked_fill(~is_counted, 0.0),
        returns.masked_fill(~is_counted, math.nan),
        old_values,
        clip,
    )


def _without_bootstrap(values: Tensor, is_valid: Tensor) -> Tensor:
    """Return [B, T] of values [B, T + 1]: the state after the last step has no return to be trained towards."""
    with_bootstrap = (*is_valid.shape[:-1], is_valid.shape[-1] + 1)
    return values[:, :-1] if is_valid.ndim == 2 and values.shape == with_bootstrap else values


def optional(kl_div: Tensor | None, entropy: Tensor | None, is_valid: Tensor) -> dict[str, Tensor]:
    """Return "kl" and "entropy" (minus the mean entropy), each only where it is given.

    Raises:
        ValueError: for a term that is neither a scalar nor of the shape of is_valid.
    """
    terms = {} if kl_div is None else {"kl": _reduced("kl_div", kl_div, is_valid)}
    return (
        terms if entropy is None else terms | {"entropy": -_reduced("entropy", entropy, is_valid)}
    )


@torch.no_grad()
def ratio_moments(log_probs: Tensor, old_log_probs: Tensor, is_valid: Tensor) -> dict[str, Tensor]:
    """Return ``ratio_mean`` and ``ratio_std`` (population) of exp(l - o), l - o at most 20, over valid decisions."""
    ratio = bounded_ratio((log_probs - old_log_probs).masked_fill(~is_valid, 0.0))
    mean = masked_mean(ratio, is_valid)
    return {"ratio_mean": mean, "ratio_std": masked_mean((ratio - mean).square(), is_valid).sqrt()}


def masked_mean(x: Tensor, is_valid: Tensor) -> Tensor:
    """Return the mean over valid entries; 0 where there are none."""
    return x.masked_fill(~is_valid, 0.0).sum() / is_valid.sum().clamp(min=1)


def _per_decision(advantages: Tensor, log_probs: Tensor) -> Tensor:
    if advantages.shape == log_probs.shape:
        return advantages
    if advantages.shape == log_probs.shape[:-1]:
        return advantages.unsqueeze(-1).expand_as(log_probs)
    raise ValueError(
        f"advantages must have shape {list(log_probs.shape)}, or one entry per row, got {list(advantages.shape)}; reshape them"
    )


def _reduced(name: str, x: Tensor, is_valid: Tensor) -> Tensor:
    if x.ndim == 0:
        return x
    if x.shape != is_valid.shape:
        raise ValueError(
            f"{name} must be a scalar or have shape {list(is_valid.shape)}, got {list(x.shape)}; reduce it first"
        )
    return masked_mean(x, is_valid)


# Gradients of several micro-batches, then one optimiser step on their weighted mean.


class GradientAccumulator:
    """Collect gradients in ``.grad`` and step when told to, through ``core.training.optim``.

        gradient at step = sum_i denominator_i * grad(loss_i) / sum_i denominator_i

    With the number of units that a loss is a mean over as its denominator, this is the gradient of one large batch, however
    it was split; the total need not be known before the last micro-batch.

    Attributes:
        max_grad_norm: largest norm over all parameters of the optimiser, None for no clipping.
    """

    def __init__(
        self, modules: nn.Module, optimizer: Optimizer, *, max_grad_norm: float | None
    ) -> None:
        self.max_grad_norm = max_grad_norm
        self._state = TrainState(
            modules, optimizer, reference=None, step=0, epoch=0, generator_seed=0
        )
        self._loss_sum, self._denominator = 0.0, 0.0

    @property
    def updates(self) -> int:
        """Steps taken."""
        return self._state.step

    @property
    def is_pending(self) -> bool:
        """Whether something was added since the last step."""
        return self._denominator > 0.0

    def add(self, loss: Tensor, denominator: float = 1.0, *, retain_graph: bool = False) -> None:
        """Back-propagate ``denominator * loss``; no weight changes.

        Args:
            loss: scalar with graph.
            denominator: how many units the loss is a mean over, positive.
            retain_graph: whether the graph can be walked again.

        Raises:
            NonFiniteLossError: the weights are as before, and what was added is dropped.
            ValueError: if the loss is no scalar with a graph, or the denominator is not positive; nothing is added.
        """
        _check(loss, denominator)
        value = float(loss.detach())
        if not self.is_pending or not math.isfinite(value):
            self.drop()
        if not math.isfinite(value):
            raise NonFiniteLossError(
                f"loss must be finite, got {value} at update {self.updates}; the weights are unchanged: look at its terms, or "
                "lower the learning rate"
            )
        torch.autograd.backward(loss * denominator, retain_graph=retain_graph)
        self._loss_sum += value * float(denominator)
        self._denominator += float(denominator)

    def step(self) -> dict[str, float]:
        """Step on what was added, clipped to ``max_grad_norm``, and begin anew.

        Returns:
            ``grad_norm`` before clipping, and ``loss``, the mean weighted by the denominators.

        Raises:
            NonFiniteGradientError: the weights and the optimiser are as before, and what was added is dropped.
            ValueError: if nothing was added, or no loss depended on a parameter of the optimiser.
        """
        if not self.is_pending:
            raise ValueError(
                "a step must follow a loss, got nothing accumulated; call accumulate(loss), or update(loss)"
            )
        for parameter in (
            p for group in self._state.optimizer.param_groups for p in group["params"]
        ):
            if parameter.grad is not None:
                parameter.grad.mul_(1.0 / self._denominator)
        loss, self._loss_sum, self._denominator = self._loss_sum / self._denominator, 0.0, 0.0
        report = optim.step(self._state, max_grad_norm=self.max_grad_norm, clip="joint")
        self._state = optim.advance(self._state)
        return {"grad_norm": report["grad_norm/total"], "loss": loss}

    def drop(self) -> None:
        """Forget what was added since the last step."""
        optim.clear_gradients(self._state)
        self._loss_sum, self._denominator = 0.0, 0.0


def _check(loss: Tensor, denominator: float) -> None:
    if loss.ndim != 0 or not loss.requires_grad:
        got = f"shape {list(loss.shape)}" if loss.ndim else "one without a graph"
        raise ValueError(
            f"the loss must be a scalar that depends on the parameters, got {got}; reduce it, or find the detach"
        )
    if not 0.0 < denominator < math.inf:
        raise ValueError(
            f"denominator must be positive and finite, got {denominator}; pass the number of the loss's units"
        )


# Log-probabilities of response tokens under a causal language model, or anything that is called like one.


def response_logprobs(
    model: nn.Module, prompts: Tensor, responses: Tensor, attention_mask: Tensor | None = None
) -> Tensor:
    """Score each response token given the prompt and the tokens before it.

        l_t = log softmax(logits at position T_p + t - 1)[response_t]

    The model is called once, on ``cat([prompts, responses])``. It returns logits [B, T_p + T_r, V], by themselves or as the
    attribute ``logits``. Position numbers are the model's own affair: one that counts padding on the left needs a wrapper.

    Args:
        model: in whatever mode it is.
        prompts: int64 [B, T_p], T_p >= 1; or [P, T_p], each for its B / P responses, which are adjacent rows.
        responses: int64 [B, T_r].
        attention_mask: [B, T_p + T_r], handed to the model as ``attention_mask``; None = not handed over.

    Returns:
        [B, T_r], in nats, with gradient.

    Raises:
        ValueError: for wrong shapes, or a model that cannot take the mask or returns no logits.
    """
    if (
        prompts.ndim != 2
        or responses.ndim != 2
        or 0 in (*prompts.shape, *responses.shape)
        or len(responses) % len(prompts)
    ):
        raise ValueError(
            f"prompts and responses must have shapes [B, T_p] and [B, T_r], got {list(prompts.shape)} and "
            f"{list(responses.shape)}; give each response its prompt, of at least one token, or each prompt as many adjacent "
            "responses"
        )
    prompts = prompts.repeat_interleave(
        len(responses) // len(prompts), dim=0
    )  # [P, T_p] -> [B, T_p]
    ids = torch.cat([prompts, responses], dim=1)  # [B, T_p + T_r]
    logits = _logits(model, ids, attention_mask)[:, prompts.shape[1] - 1 : -1]  # [B, T_r, V]
    return logits.gather(2, responses.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(dim=-1)


def _logits(model: nn.Module, ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    output = model(ids, **_mask_argument(model, ids, attention_mask))
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[:2] != ids.shape:
        got = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(
            f"the model must return logits {[*ids.shape, 'V']}, got {got}; wrap it so that it does"
        )
    return logits


def _mask_argument(
    model: nn.Module, ids: Tensor, attention_mask: Tensor | None
) -> dict[str, Tensor]:
    if attention_mask is None:
        return {}
    if attention_mask.shape != ids.shape:
        raise ValueError(
            f"attention_mask must have shape {list(ids.shape)}, got {list(attention_mask.shape)}; cover prompt and response"
        )
    parameters = inspect.signature(model.forward).parameters.values()
    if not any(p.name == "attention_mask" or p.kind is p.VAR_KEYWORD for p in parameters):
        raise ValueError(
            f"the model must take attention_mask where one is given, got {type(model).__name__} without it; add the argument to "
            "forward, or leave the mask out"
        )
    return {"attention_mask": attention_mask}
