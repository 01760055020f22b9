"""Compute losses and make updates in a training loop of your own: one class in front of the functions of ``core``.

How this differs from trainers that own the loop: nothing is sampled, scheduled or logged here, and every mean is over the
decisions that are valid. docs/backprop.md shows the usual loops; a test runs them.

Letters: B rows, T decisions (tokens, time steps) per row, V choices.
"""

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from grpo_pipeline.core.backprop import terms as terms_of
from grpo_pipeline.core.backprop.gradient_accumulator import GradientAccumulator
from grpo_pipeline.core.backprop.response_logprobs import response_logprobs
from grpo_pipeline.core.groups import require_shape, to_groups, to_rows
from grpo_pipeline.core.objective.surrogates.clipped import Grpo
from grpo_pipeline.core.objective.surrogates.reinforce import Reinforce
from grpo_pipeline.core.policy_gradient import advantages as group_advantages
from grpo_pipeline.core.policy_gradient.hybrid_loss import hybrid_loss
from grpo_pipeline.core.policy_gradient.kl import kl_loss
from grpo_pipeline.core.policy_gradient.returns import generalized_advantages
from grpo_pipeline.core.policy_gradient.whitening import Scope, whiten
from grpo_pipeline.core.sampling.plackett_luce import entropy_of
from grpo_pipeline.core.training.reference import (
    ReferenceUpdate,
    check_not_optimised,
    frozen_copy,
    update_reference,
)

RefUpdateMethod = Literal["copy", "ema"]
Loss = Tensor | Mapping[str, Tensor]
SHARES = ("gamma", "gae_lambda")
POSITIVE = ("ppo_clip_range", "ppo_epochs", "max_grad_norm")
# A row [T] of this module is what core.policy_gradient.whitening calls a group.
WHITEN_SCOPES: Mapping[str, Scope] = {"batch": "batch", "row": "group"}
WHITEN_EPS = 1e-8
COEFFICIENTS = ("value_loss_coef", "entropy_coef", "kl_coef")
# Beyond these a setting is allowed, and known to do harm.
MOST_EPOCHS, LARGEST_VALUE_COEF, WIDEST_CLIP, SLOWEST_EMA = 10, 1.0, 1.0, 0.9999
# Updates with a KL to a reference that has not moved, after which this is said once.
REFERENCE_UPDATES = 100


@dataclass(frozen=True)
class BackpropConfig:
    """Settings of a ``BackpropModule``.

    Attributes:
        gamma: discount per step, in [0, 1].
        gae_lambda: of GAE, in [0, 1].
        ppo_clip_range: the ratio is clipped to 1 -+ this; half-width of the value's trust region, too.
        ppo_epochs: updates per batch, for the caller's loop.
        value_loss_coef: weight of the value loss.
        entropy_coef: weight of the entropy bonus.
        kl_coef: weight of the KL to the reference, where a call gives none.
        max_grad_norm: largest norm of the gradient over all parameters of the optimiser; None for no clipping.
        ref_update_method: "copy" or "ema".
        ema_alpha: of "ema", the share of the old reference that stays, in [0, 1).
        normalize_advantages: whether advantages are whitened, and relative ones divided by the deviation of their group.
        clip_value_loss: whether the value loss is clipped around the values at rollout time.

    A value that is allowed and known to do harm warns (``UserWarning``): more than 10 updates a batch, no clipping, a value loss
    that outweighs the policy's, a reference that does not move.

    Raises:
        ValueError: if a value is outside its range.
    """

    gamma: float = 0.99
    gae_lambda: float = 0.95
    ppo_clip_range: float = 0.2
    ppo_epochs: int = 4
    value_loss_coef: float = 0.1
    entropy_coef: float = 0.01
    kl_coef: float = 0.1
    max_grad_norm: float | None = 1.0
    ref_update_method: RefUpdateMethod = "copy"
    ema_alpha: float = 0.99
    normalize_advantages: bool = True
    clip_value_loss: bool = True

    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in SHARES:
            _require(0.0 <= given[name] <= 1.0, name, "within [0, 1]", given[name])
        _require(0.0 <= self.ema_alpha < 1.0, "ema_alpha", "at least 0 and below 1", self.ema_alpha)
        for name in POSITIVE:
            is_off = name == "max_grad_norm" and given[name] is None
            _require(
                is_off or 0.0 < given[name] < math.inf, name, "positive and finite", given[name]
            )
        for name in COEFFICIENTS:
            _require(0.0 <= given[name] < math.inf, name, "at least 0 and finite", given[name])
        _require(
            self.ref_update_method in ("copy", "ema"),
            "ref_update_method",
            "copy or ema",
            repr(self.ref_update_method),
        )
        for sentence in self._doubts():
            warnings.warn(sentence, UserWarning, stacklevel=3)

    def _doubts(self) -> Iterator[str]:
        """Yield a sentence for each setting that is known to do harm."""
        if self.ppo_epochs > MOST_EPOCHS:
            yield (
                f"ppo_epochs should be at most {MOST_EPOCHS}, got {self.ppo_epochs}; so many updates on one batch fit its noise, "
                "and most of its ratios are clipped: draw new samples instead"
            )
        if self.max_grad_norm is None:
            yield (
                "max_grad_norm should be a number, got None; one batch with a large gradient can destroy the policy: "
                "1.0 is usual"
            )
        if self.ppo_clip_range >= WIDEST_CLIP:
            yield (
                f"ppo_clip_range should be below {WIDEST_CLIP:g}, got {self.ppo_clip_range:g}; no ratio is clipped from below, "
                "and the policy may leave its samples behind: 0.2 is usual"
            )
        if self.value_loss_coef > LARGEST_VALUE_COEF:
            yield (
                f"value_loss_coef should be at most {LARGEST_VALUE_COEF:g}, got {self.value_loss_coef:g}; the gradients are "
                "clipped together, so that the value's takes the policy's place: 0.1 to 1 are usual"
            )
        if self.ref_update_method == "ema" and self.ema_alpha >= SLOWEST_EMA:
            yield (
                f"ema_alpha should be below {SLOWEST_EMA:g}, got {self.ema_alpha:g}; the reference hardly moves, and the KL "
                "holds the policy at its start: 0.99 is usual"
            )


class BackpropModule:
    """Losses and updates of one model; the caller samples and loops.

    Attributes:
        model: the trained policy.
        value_model: the trained value function, or None.
        ref_model: frozen copy of the model, in evaluation mode; no optimiser holds it.
        optimizer: over the parameters of model and value model.
        config: the settings.

    Raises:
        ValueError: if a trainable parameter of the model or the value model is not in the optimiser.
        TypeError: if an argument is not what its place asks for.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        config: BackpropConfig | nn.Module | None = None,
        value_model: nn.Module | BackpropConfig | None = None,
    ) -> None:
        """Take ``(model, optimizer, config, value_model=None)``, or the last two the other way round, as in older texts."""
        if isinstance(value_model, BackpropConfig):
            config, value_model = value_model, config
        _check_types(model, optimizer, config, value_model)
        config, value_model = cast(BackpropConfig, config), cast(nn.Module | None, value_model)
        _check_optimised(optimizer, "model", model)
        if value_model is not None:
            _check_optimised(optimizer, "value_model", value_model)
        self.model, self.value_model, self.optimizer, self.config = (
            model,
            value_model,
            optimizer,
            config,
        )
        self.ref_model = frozen_copy(model)
        check_not_optimised(optimizer, self.ref_model)
        # One module for both, so that an error can name any parameter.
        modules = nn.ModuleDict(
            {"model": model}
            if value_model is None
            else {"model": model, "value_model": value_model}
        )
        self._accumulator = GradientAccumulator(
            modules, optimizer, max_grad_norm=config.max_grad_norm
        )
        self._pays_kl, self._updates_unmoved = False, 0

    def compute_advantages(
        self,
        rewards: Tensor,
        values: Tensor | None = None,
        dones: Tensor | None = None,
        gamma: float | None = None,
        lam: float | None = None,
        *,
        is_valid: Tensor | None = None,
        scope: Literal["batch", "row"] = "batch",
    ) -> Tensor:
        """Return GAE advantages, or discounted returns where there are no values; whitened if the config says so.

            with values:     A_t = d_t + gamma * lam * (1 - done_t) * A_{t+1},   d_t = r_t + gamma * (1 - done_t) * V_{t+1} - V_t
            without values:  A_t = r_t + gamma * (1 - done_t) * A_{t+1},         A_T = 0

        Source: GAE, arXiv 1506.02438, equations 11-16.

        Args:
            rewards: [B, T].
            values: [B, T + 1], detached here. ``values[:, T]`` is the bootstrap: the value of the state after the last step,
                for a row that was cut off there; where the episode ended there, the done (or a 0) takes it out.
            dones: bool, or 0/1 of any type, [B, T], True where the episode ended WITH step t: neither V_{t+1} nor A_{t+1} is
                looked at. A time limit is no done; None = none.
            gamma: None = the config's.
            lam: None = the config's ``gae_lambda``; not used without values.
            is_valid: bool or 0/1 [B, T], False for padding: skipped, its rewards and values may be NaN, its advantage is 0, and
                a row that is padded after its last step has ended there (no bootstrap).
            scope: "batch" whitens over all valid steps, "row" over those of each row: mean 0, deviation (n - 1) 1; steps that
                all agree are exactly 0.

        Returns:
            [B, T], detached.

        Raises:
            ValueError: for wrong shapes or ranges, or a valid entry that is not finite.
        """
        gamma, lam = (
            self.config.gamma if gamma is None else gamma,
            self.config.gae_lambda if lam is None else lam,
        )
        dones, is_valid = terms_of.flags("dones", dones), terms_of.flags("is_valid", is_valid)
        # Without values the advantage is the discounted return: GAE with V = 0 and lambda = 1.
        if values is None:
            values, lam = _no_values(rewards), 1.0
        found, _ = generalized_advantages(
            rewards.detach(), values, gamma=gamma, gae_lambda=lam, dones=dones, is_valid=is_valid
        )
        if not self.config.normalize_advantages:
            return found
        _require(scope in WHITEN_SCOPES, "scope", "batch or row", repr(scope))
        kept = torch.ones_like(found, dtype=torch.bool) if is_valid is None else is_valid
        return whiten(found, kept, scope=WHITEN_SCOPES[scope], eps=WHITEN_EPS).to(found.dtype)

    def compute_relative_advantages(
        self,
        rewards: Tensor,
        group_size: int | None = None,
        *,
        method: group_advantages.Method | None = None,
    ) -> Tensor:
        """Score each sample against the other samples of its own prompt.

            "group":      A = (r - mean_g) / (std_g + eps)     if the config normalises advantages
            "mean_only":  A = r - mean_g                       if not

        A group that ties is exactly 0; a NaN reward (not scored) leaves the statistics and gets 0. See ``advantages``.

        Args:
            rewards: [B] with the samples of a prompt adjacent, or [P, G].
            group_size: G; needed for [B], and for [P, G] only checked.
            method: any method of ``core.policy_gradient.advantages``; None = by ``config.normalize_advantages``, as above.

        Returns:
            float64, of the shape of the rewards, detached.

        Raises:
            ValueError: for a missing group size, or one that does not fit.
        """
        if rewards.ndim == 1 and group_size is None:
            raise ValueError(
                f"group_size must be given for rewards of shape {list(rewards.shape)}, got None; or pass [P, G]"
            )
        # Rows of a prompt are adjacent: [B] -> [P, G].
        groups = (
            to_groups(rewards, group_size)
            if rewards.ndim == 1 and group_size is not None
            else rewards
        )
        if group_size is not None and groups.shape[1:] != (group_size,):
            raise ValueError(
                f"rewards must have shape [P, {group_size}], got {list(rewards.shape)}; correct group_size"
            )
        chosen = method or ("group" if self.config.normalize_advantages else "mean_only")
        found = group_advantages.compute_advantages(groups, method=chosen).values
        return to_rows(found) if rewards.ndim == 1 else found

    def compute_kl(
        self,
        prompts: Tensor,
        responses: Tensor,
        attention_mask: Tensor | None = None,
        ref_override: nn.Module | None = None,
    ) -> Tensor:
        """Return the mean per response token of k3, an estimate of KL(model || reference).

            k3 = exp(q - l) - (q - l) - 1,   l, q = log-prob of the response token under the model and the reference

        Both are called on ``cat([prompts, responses])`` and return logits [B, T_p + T_r, V], by themselves or as the
        attribute ``logits``; those at position i are the distribution of token i + 1. The value is unbiased where the
        responses were drawn from the present model, at temperature 1; the expected gradient is then that of
        KL(reference || model), as everywhere k3 is used as a loss. The reference runs without gradient.

        Args:
            prompts: int64 [B, T_p], T_p >= 1; or [P, T_p], each for its B / P responses, which are adjacent rows.
            responses: int64 [B, T_r].
            attention_mask: bool or 0/1 [B, T_p + T_r], True for real tokens; handed to both models as the argument
                ``attention_mask``, and its response part says which tokens count. None = all.
            ref_override: another reference for this call; None = ``ref_model``.

        Returns:
            A scalar, nats per token, with gradient to the model.

        Raises:
            ValueError: for wrong shapes, or a model that cannot take the mask or returns no logits.
        """
        logprobs = response_logprobs(self.model, prompts, responses, attention_mask)
        ref = self.ref_model if ref_override is None else ref_override
        self._pays_kl |= ref_override is None
        with torch.no_grad():
            ref_logprobs = response_logprobs(ref, prompts, responses, attention_mask)
        is_valid = torch.ones_like(responses, dtype=torch.bool)
        if attention_mask is not None:
            is_valid = attention_mask[:, prompts.shape[1] :].bool()  # [B, T_r]
        rows = (logprobs[:, None], ref_logprobs[:, None], is_valid[:, None])  # [B, 1, T_r]
        return kl_loss(*rows, estimator="k3", reduction="per_decision")

    def compute_loss(
        self,
        log_probs: Tensor,
        advantages: Tensor,
        kl_div: Tensor | None = None,
        entropy: Tensor | None = None,
        kl_weight: float | None = None,
        *,
        is_valid: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return the policy-gradient loss with its terms: one update per batch, no ratio.

            total_loss = mean(-A * l) + kl_weight * mean(kl_div) - entropy_coef * mean(entropy)

        Source: REINFORCE, Williams 1992.

        Args:
            log_probs: [B] or [B, T], of exactly the actions that were drawn, with gradient.
            advantages: of the same shape, or [B] for all T decisions of a row; detached here.
            kl_div: a scalar, or of the shape of log_probs; None = no term.
            entropy: likewise.
            kl_weight: None = ``config.kl_coef``.
            is_valid: bool or 0/1 of the shape of log_probs; every mean is over True. None = all.

        Returns:
            ``total_loss`` with gradient; detached and without their coefficients ``policy_loss``, ``entropy_loss`` (minus the
            mean entropy) and ``kl_loss`` (0 for an absent term).

        Raises:
            ValueError: for shapes that do not fit, or a kl_weight without kl_div.
        """
        is_valid = terms_of.valid_decisions(log_probs, is_valid)
        terms = {
            "policy": terms_of.policy(
                log_probs, log_probs, advantages, is_valid, Reinforce(reduction="per_decision")
            )
        }
        terms |= terms_of.optional(kl_div, entropy, is_valid)
        return self._total(terms, kl_weight, ("policy", "entropy", "kl"))

    def compute_ppo_loss(
        self,
        current_log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        values: Tensor | None = None,
        old_values: Tensor | None = None,
        returns: Tensor | None = None,
        entropy: Tensor | None = None,
        kl_div: Tensor | None = None,
        *,
        kl_weight: float | None = None,
        is_valid: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return the clipped surrogate with its companions, for several updates on one batch.

            total_loss = policy_loss + value_loss_coef * value_loss + entropy_coef * entropy_loss + kl_weight * kl_loss
            policy_loss = -mean min(r * A, clip(r, 1 - c, 1 + c) * A),   r = exp(l - o),   c = ppo_clip_range
            value_loss = 0.5 * mean (V - R)^2, clipped around old_values if ``clip_value_loss``;   entropy_loss = -mean entropy

        Source: PPO, arXiv 1707.06347, equations 7 and 9.

        Args:
            current_log_probs: [B] or [B, T], of the stored actions under the present model, with gradient.
            old_log_probs: the same at rollout time; detached here.
            advantages: of the same shape, or [B]; detached here.
            values: of the same shape, or [B], with gradient; or [B, T + 1] with the bootstrap, whose column has no target and is
                left out. None = no value loss.
            old_values: like values, at rollout time, with the bootstrap or without; needed if ``clip_value_loss``.
            returns: of the shape of the log-probs, or [B]: the targets.
            entropy: a scalar, or of the shape of the log-probs; None = no term.
            kl_div: likewise.
            kl_weight: None = ``config.kl_coef``.
            is_valid: bool or 0/1 of the shape of the log-probs; every mean is over True, one value per row over rows with any.

        Returns:
            ``total_loss`` with gradient; detached and without their coefficients ``policy_loss``, ``value_loss``,
            ``entropy_loss``, ``kl_loss`` (0 for an absent term); ``ratio_mean`` and ``ratio_std`` over valid decisions.

        Raises:
            ValueError: for shapes that do not fit, values without returns (or the reverse), or a kl_weight without kl_div.
        """
        is_valid = terms_of.valid_decisions(current_log_probs, is_valid)
        clip = self.config.ppo_clip_range
        # A clip of 1 and above holds nothing below: no ratio is negative.
        surrogate = Grpo(
            kind="ppo", clip_low=min(clip, 1.0), clip_high=clip, reduction="per_decision"
        )
        terms = {
            "policy": terms_of.policy(
                current_log_probs, old_log_probs, advantages, is_valid, surrogate
            )
        }
        terms |= terms_of.optional(kl_div, entropy, is_valid)
        if values is not None or returns is not None:
            value_clip = clip if self.config.clip_value_loss else None
            terms["value"] = terms_of.value(values, old_values, returns, is_valid, clip=value_clip)
        found = self._total(terms, kl_weight, ("policy", "value", "entropy", "kl"))
        return found | terms_of.ratio_moments(current_log_probs, old_log_probs, is_valid)

    def update(self, loss: Loss, retain_graph: bool = False) -> dict[str, float]:
        """Take one optimiser step on a loss: clear old gradients, back-propagate, clip, step.

        Args:
            loss: scalar with graph, or what ``compute_loss`` and ``compute_ppo_loss`` return, of which it takes ``total_loss``.
            retain_graph: whether the graph can be walked again afterwards. Its saved weights have then been changed by the
                step: autograd refuses where the walk would need them.

        Returns:
            ``grad_norm`` over all parameters of the optimiser, before clipping, and ``loss``.

        Raises:
            NonFiniteLossError, NonFiniteGradientError: the weights and the optimiser are as before.
            ValueError: if nothing depends on a parameter of the optimiser, or accumulated gradients are pending.
        """
        if self._accumulator.is_pending:
            raise ValueError(
                "accumulated gradients must be used before an update, got some pending; call step() first"
            )
        self._accumulator.add(_total_of(loss), retain_graph=retain_graph)
        return self._stepped()

    def accumulate(
        self, loss: Loss, denominator: float = 1.0, *, retain_graph: bool = False
    ) -> None:
        """Back-propagate the loss of one micro-batch; no weight changes before ``step``.

            gradient at step = sum_i denominator_i * grad(loss_i) / sum_i denominator_i

        With the number of valid decisions as the denominator this is the gradient of one large batch, however it was split:
        every mean of ``compute_loss`` and ``compute_ppo_loss`` is over valid decisions. With 1 each micro-batch counts alike.
        (Values of one entry per row are a mean over rows: with them, use as many decisions in each row.)

        Args:
            loss: as in ``update``.
            denominator: how many units the loss is a mean over, positive.
            retain_graph: as in ``update``.

        Raises:
            NonFiniteLossError: the weights are as before, and what was accumulated is dropped.
            ValueError: if the loss is no scalar with a graph, or the denominator is not positive.
        """
        self._accumulator.add(_total_of(loss), denominator, retain_graph=retain_graph)

    def step(self) -> dict[str, float]:
        """Step on what was accumulated, clipped to ``max_grad_norm``, and begin anew.

        Returns:
            ``grad_norm`` before clipping, and ``loss``, the mean weighted by the denominators.

        Raises:
            NonFiniteGradientError: the weights and the optimiser are as before, and what was accumulated is dropped.
            ValueError: if nothing was accumulated, or no loss depended on a parameter of the optimiser.
        """
        return self._stepped()

    def update_ref_model(
        self, method: RefUpdateMethod | None = None, alpha: float | None = None
    ) -> None:
        """Move the reference towards the model.

            copy:  ref = model
            ema:   ref = alpha * ref + (1 - alpha) * model

        Args:
            method: None = ``config.ref_update_method``.
            alpha: in [0, 1); None = ``config.ema_alpha``; not used by "copy".

        Raises:
            ValueError: for another method or alpha.
        """
        chosen = self.config.ref_update_method if method is None else method
        _require(chosen in ("copy", "ema"), "reference update method", "copy or ema", repr(chosen))
        rule = ReferenceUpdate(chosen, decay=self.config.ema_alpha if alpha is None else alpha)
        update_reference(self.ref_model, self.model, rule, step=1)
        self._updates_unmoved = 0

    def _stepped(self) -> dict[str, float]:
        """Make the optimiser's step, and say once where the KL's reference is left behind."""
        report = self._accumulator.step()
        self._updates_unmoved += self._pays_kl
        if self._updates_unmoved == REFERENCE_UPDATES:
            warnings.warn(
                f"the reference should move where a KL to it is paid, got {REFERENCE_UPDATES} updates without update_ref_model; "
                "the KL holds the policy at its start: call it now and then, or pass ref_override for one that is to stay",
                UserWarning,
                stacklevel=3,
            )
        return report

    def _total(
        self, terms: dict[str, Tensor], kl_weight: float | None, reported: tuple[str, ...]
    ) -> dict[str, Tensor]:
        total = hybrid_loss(terms, self._weights(terms, kl_weight))
        absent = torch.zeros_like(total.detach())
        return {"total_loss": total} | {
            f"{name}_loss": terms.get(name, absent).detach() for name in reported
        }

    def _weights(self, terms: dict[str, Tensor], kl_weight: float | None) -> dict[str, float]:
        if kl_weight is not None and "kl" not in terms:
            raise ValueError(
                f"kl_div must be given with kl_weight, got None with {kl_weight}; pass what compute_kl returns"
            )
        kl = self.config.kl_coef if kl_weight is None else kl_weight
        config = self.config
        weights = {
            "policy": 1.0,
            "value": config.value_loss_coef,
            "entropy": config.entropy_coef,
            "kl": kl,
        }
        return {name: weights[name] for name in terms}


def compute_returns(
    rewards: Tensor,
    values: Tensor | None = None,
    dones: Tensor | None = None,
    gamma: float = 0.99,
    *,
    lam: float = 1.0,
    is_valid: Tensor | None = None,
) -> Tensor:
    """Return what a value model is trained towards: by default discounted returns, or a mixture with its own predictions.

        lam = 1:  R_t = r_t + gamma * (1 - done_t) * R_{t+1},   R_T = values[:, T], or 0 without values
        lam < 1:  R_t = r_t + gamma * (1 - done_t) * ((1 - lam) * V_{t+1} + lam * R_{t+1})

    The default is the first, lam = 1: with values it reads their bootstrap alone. The second is the lambda-return: the advantage
    of GAE, before whitening, plus V_t; beside ``compute_advantages`` pass ``lam=config.gae_lambda``.

    Args:
        rewards: [B, T].
        values: [B, T + 1], detached; the last entry is the bootstrap, see ``BackpropModule.compute_advantages``. None = 0.
        dones: bool or 0/1 [B, T], True where the episode ended with step t, or None.
        gamma: discount per step, in [0, 1]; 0.99 by default.
        lam: in [0, 1]; 1 by default, and not the 0.95 of ``BackpropConfig.gae_lambda``.
        is_valid: bool or 0/1 [B, T], False for padding, whose return is 0; see ``BackpropModule.compute_advantages``.

    Returns:
        [B, T], detached.

    Raises:
        ValueError: for wrong shapes or ranges, or a valid entry that is not finite.
    """
    values = _no_values(rewards) if values is None else values
    dones, is_valid = terms_of.flags("dones", dones), terms_of.flags("is_valid", is_valid)
    _, targets = generalized_advantages(
        rewards.detach(), values, gamma=gamma, gae_lambda=lam, dones=dones, is_valid=is_valid
    )
    return targets


def compute_entropy(logits: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean analytic entropy in nats, with gradient.

        H = -sum_v p_v * log p_v,   p = softmax(logits)

    Args:
        logits: [..., V]; -inf for a choice that is not allowed, which contributes exactly 0.
        mask: bool or 0/1 [...], True for the decisions that count; the logits of others may be anything. None = all.

    Returns:
        A scalar, the mean over decisions that count; 0 if none does.

    Raises:
        ValueError: if the mask has another shape.
    """
    if mask is not None:
        require_shape("mask", mask, logits.shape[:-1], "one entry per decision")
    is_valid = torch.ones_like(logits[..., 0], dtype=torch.bool) if mask is None else mask.bool()
    # Before the softmax: a padded row of -inf has NaN for a gradient, whatever is masked later.
    safe = logits.masked_fill(~is_valid.unsqueeze(-1), 0.0)
    return terms_of.masked_mean(entropy_of(safe.log_softmax(dim=-1)), is_valid)


def _no_values(rewards: Tensor) -> Tensor:
    return rewards.new_zeros(*rewards.shape[:-1], rewards.shape[-1] + 1)


def _require(is_met: bool, what: str, rule: str, got: object) -> None:
    if not is_met:
        raise ValueError(f"{what} must be {rule}, got {got}; correct the setting")


def _total_of(loss: Loss) -> Tensor:
    if isinstance(loss, Tensor):
        return loss
    if not isinstance(loss, Mapping) or "total_loss" not in loss:
        got = f"the keys {sorted(loss)}" if isinstance(loss, Mapping) else type(loss).__name__
        raise TypeError(
            f"the loss must be a scalar or a mapping with total_loss, got {got}; pass what compute_loss returns"
        )
    return loss["total_loss"]


def _check_types(model: object, optimizer: object, config: object, value_model: object) -> None:
    """Name the argument that stands in another's place."""
    is_optional = value_model is None or isinstance(value_model, nn.Module)
    for what, rule, value, is_met in (
        ("model", "a torch module", model, isinstance(model, nn.Module)),
        ("optimizer", "a torch optimiser", optimizer, isinstance(optimizer, Optimizer)),
        ("config", "a BackpropConfig", config, isinstance(config, BackpropConfig)),
        ("value_model", "a torch module or None", value_model, is_optional),
    ):
        if not is_met:
            raise TypeError(
                f"{what} must be {rule}, got {type(value).__name__}; write BackpropModule(model, optimizer, BackpropConfig(), "
                "value_model)"
            )


def _check_optimised(optimizer: Optimizer, name: str, module: nn.Module) -> None:
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [
        label for label, p in module.named_parameters() if p.requires_grad and id(p) not in held
    ]
    if missing:
        raise ValueError(
            f"every trainable parameter of {name} must be in the optimiser, got {len(missing)} that are not, first "
            f"'{missing[0]}'; add them, or freeze them with requires_grad_(False)"
        )
