"""Check ``Task.score``: a ratio begins at 1, and every number belongs to its prompt, sample and temperature."""

from typing import Any

import torch
from torch import Tensor

from grpo_pipeline.core.training.micro_batches import take_prompts
from grpo_pipeline.core.types import Scores
from grpo_pipeline.testing.subject import Subject, first_difference, with_samples

# A score is that of the sampler; both use the temperature of the call.
SAME = "score exactly the stored actions under the distribution that drew them: same temperature, same mask, no dropout"
# Least change in nats of at least one score with the temperature, for a policy that is not uniform.
MOVES = 1e-4


def check_scores_have_their_shapes(s: Subject) -> None:
    """Check the parts of the scores: types, shapes, gradient, a distribution that sums to 1, and an analytic entropy."""
    scores, rollouts = s.scores, s.rollouts
    if not isinstance(scores, Scores):
        s.fail(
            "score",
            "return Scores",
            type(scores).__name__,
            remedy="return grpo_pipeline.core.types.Scores(logprobs, entropy)",
        )
    shapes: dict[str, list[int]] = {
        "logprobs": list(rollouts.actions.shape),
        "entropy": [s.prompts],
        "values": [s.prompts],
    }
    for name, shape in shapes.items():
        found = getattr(scores, name)
        if found is None and name == "values":
            continue
        if (
            not isinstance(found, Tensor)
            or list(found.shape) != shape
            or not found.is_floating_point()
        ):
            got = f"{found.dtype} {list(found.shape)}" if isinstance(found, Tensor) else repr(found)
            axes = "[P, G, L]" if name == "logprobs" else "[P]"
            s.fail(
                "score",
                f"return floating-point {name} of shape {shape} ({axes})",
                got,
                remedy="average what is finer over samples and decisions, with the graph",
            )
        if not bool(found.isfinite().all()):
            s.fail(
                "score",
                f"return finite {name}",
                f"{float(found.detach()[~found.isfinite()][0])}",
                remedy="mask before the logarithm, and write 0 where is_valid is False",
            )
        if not found.requires_grad:
            s.fail(
                "score",
                f"return {name} with a graph to the policy",
                "none",
                remedy="remove no_grad and detach: the loss is back-propagated through it",
            )
    if bool((scores.entropy < -1e-5).any()):
        s.fail(
            "score",
            "return an entropy in nats, at least 0",
            f"{float(scores.entropy.detach().min()):g}",
            remedy="it is -(p * log p).sum(-1)",
        )
    _check_entropy(s, scores)


def check_a_ratio_begins_at_1(s: Subject) -> None:
    """Check that a sample's score equals the log-probability of its draw, each time, and is 0 where nothing was drawn."""
    is_valid, scored = s.rollouts.is_valid, s.scores.logprobs.detach()
    apart = (scored - s.rollouts.logprobs).abs()[is_valid]
    if float(apart.max()) > s.tolerance:
        s.fail(
            "score",
            f"return the log-probabilities of Task.sample, within {s.tolerance:g} nats",
            f"one that is {float(apart.max()):.3g} apart at temperature {s.temperature:g}",
            remedy=SAME,
        )
    if bool((scored[~is_valid] != 0).any()):
        s.fail(
            "score",
            "return the log-probability 0 where is_valid is False",
            f"{float(scored[~is_valid].abs().max()):g}",
            remedy="use masked_fill(~rollouts.is_valid, 0.0)",
        )
    if first_difference(s.scores.logprobs, s.score(s.rollouts).logprobs, "logprobs"):
        s.fail(
            "score",
            "return the same each time",
            "other log-probabilities",
            remedy="switch dropout off",
        )


def check_the_temperature_is_used(s: Subject) -> None:
    """Check that scores, entropy and samples change with the temperature."""
    scores, hotter = s.scores, s.score(s.rollouts, temperature=2 * s.temperature)
    is_valid = s.rollouts.is_valid
    moved = (hotter.logprobs - scores.logprobs).detach().abs()[is_valid].max()
    if float(moved) < MOVES and float(scores.logprobs.detach()[is_valid].abs().max()) > MOVES:
        if _is_uniform(scores.logprobs.detach()[is_valid]):
            return
        s.fail(
            "score",
            "divide the logits by the temperature",
            f"the same log-probabilities at {s.temperature:g} and {2 * s.temperature:g}",
            remedy="write logits / temperature in sample and score alike",
        )


def check_scores_belong_to_their_samples(s: Subject) -> None:
    """Check that a score belongs to its sample and prompt: it follows them when samples are reordered and prompts cut."""
    rollouts, scored = s.rollouts, s.scores.logprobs.detach()
    order = torch.arange(s.group_size, device=scored.device).flip(0)
    turned = s.score(with_samples(rollouts, lambda x: x[:, order])).logprobs.detach()
    if not torch.allclose(turned, scored[:, order], atol=s.tolerance, rtol=0):
        s.fail(
            "score",
            "score each sample by itself, whatever its place in the group",
            "other log-probabilities after the samples of a prompt changed places",
            remedy="rows are n = p * G + g: use replicate and to_groups of grpo_pipeline.core.types",
        )
    for prompt in range(s.prompts if s.prompts > 1 else 0):
        context = s.call("encode", s.policy, take_prompts(s.batch, prompt, prompt + 1))
        one = s.score(take_prompts(rollouts, prompt, prompt + 1), context=context)
        if not torch.allclose(
            one.logprobs.detach()[0], scored[prompt], atol=10 * s.tolerance, rtol=0
        ):
            s.fail(
                "score",
                "score each prompt by itself, whatever else is in the batch",
                f"other log-probabilities for prompt {prompt} alone",
                remedy="mask the padding, use no statistics of the batch, and keep prompts along the first axis",
            )


def check_a_reference_scores_as_a_policy(s: Subject) -> None:
    """Check that the policy as its own reference gives its own scores, without a graph, and has KL 0 to itself."""
    found = s.call("score_reference", s.policy, s.batch, s.rollouts, temperature=s.temperature)
    is_valid, scored = s.rollouts.is_valid, s.scores.logprobs.detach()
    if found.logprobs is None or found.logprobs.requires_grad:
        s.fail(
            "score_reference",
            "return log-probabilities without a graph",
            "none" if found.logprobs is None else "a graph",
            remedy="decorate it with @torch.no_grad()",
        )
    if float((found.logprobs - scored).abs()[is_valid].max()) > 10 * s.tolerance:
        s.fail(
            "score_reference",
            "say of a policy what score says of it",
            "other log-probabilities",
            remedy="score the stored actions at the same temperature",
        )
    if s.call("with_reference", s.data, s.policy) is None:
        s.fail(
            "with_reference",
            "return the data",
            "None",
            remedy="return data where nothing is computed once",
        )
    if hasattr(s.task, "score_with_kl"):
        _check_kl(s)


def _check_kl(s: Subject) -> None:
    """Check the exact KL: [P, G, L], 0 to the policy itself, and the mean log-ratio of the first decisions."""

    def scores_with(reference: Any, rollouts: Any) -> Any:
        return s.call(
            "score_with_kl",
            s.policy,
            s.context,
            rollouts,
            reference=reference,
            temperature=s.temperature,
        )

    found = scores_with(s.policy, s.rollouts)
    shape, is_valid = list(s.rollouts.actions.shape), s.rollouts.is_valid
    if found.kl is None or list(found.kl.shape) != shape or bool((found.kl[~is_valid] != 0).any()):
        got = "None" if found.kl is None else f"shape {list(found.kl.shape)}"
        s.fail(
            "score_with_kl",
            f"return kl of shape {shape} ([P, G, L]), 0 where is_valid is False",
            got,
            remedy="write Scores(..., kl=...), masked as the log-probabilities are",
        )
    if float(found.kl.detach()[is_valid].abs().max()) > 10 * s.tolerance:
        s.fail(
            "score_with_kl",
            "have KL 0 between a policy and itself",
            f"{float(found.kl.detach().abs().max()):.3g}",
            remedy="it is (p * (log p - log q)).sum(-1) of the policy p and the reference q",
        )
    if float((found.logprobs - s.scores.logprobs).detach().abs().max()) > s.tolerance:
        s.fail(
            "score_with_kl",
            "score as score does",
            "other log-probabilities",
            remedy="share one function",
        )
    reference = s.call("build_policy", 7)
    many = s.draw(group_size=256)
    scored = scores_with(reference, many)
    said = s.call("score_reference", reference, s.batch, many, temperature=s.temperature)
    # The first decisions of a prompt's samples share a distribution: the mean log-ratio estimates its KL, [P, 256] -> [P].
    ratio = (many.logprobs - said.logprobs)[..., 0].double()
    exact = scored.kl.detach()[..., 0].double()
    if bool((exact.max(1).values - exact.min(1).values > 1e-4).any()):
        return
    error = (ratio.mean(1) - exact[:, 0]).abs()
    allowed = 6 * ratio.std(1) / ratio.shape[1] ** 0.5 + 10 * s.tolerance
    if bool((error > allowed).any()):
        worst = int((error - allowed).argmax())
        s.fail(
            "score_with_kl",
            f"return KL(policy || reference), about {float(ratio.mean(1)[worst]):.3g} for prompt {worst} by 256 samples",
            f"{float(exact[worst, 0]):.3g}",
            remedy="it is (p * (log p - log q)).sum(-1), p the policy at the temperature",
        )


def _check_entropy(s: Subject, scores: Scores) -> None:
    full = scores.log_probs_full
    if full is not None:
        if full.ndim != 2 or len(full) != s.prompts:
            s.fail(
                "score",
                f"return log_probs_full of shape [{s.prompts}, V] ([P, V])",
                str(list(full.shape)),
                remedy="leave it out where each decision has a distribution of its own",
            )
        total = full.detach().double().exp().sum(1)  # the number of distributions side by side
        if bool((total - total.round().clamp(min=1)).abs().max() > 1e-3):
            s.fail(
                "score",
                "return a log_probs_full that adds up to 1",
                f"{float(total[0]):.4g}",
                remedy="take log_softmax over the choices, -inf where one is not allowed",
            )
        p = full.detach().double()
        entropy = -(p.exp() * p.masked_fill(p == -torch.inf, 0.0)).sum(1)
        if float(total.max()) < 1.5 and not torch.allclose(
            entropy, scores.entropy.detach().double(), atol=10 * s.tolerance, rtol=1e-3
        ):
            s.fail(
                "score",
                f"return the entropy of log_probs_full, {float(entropy[0]):.4g}",
                f"{float(scores.entropy.detach()[0]):.4g}",
                remedy="it is -(p * log p).sum(-1), in nats",
            )
    valid = s.rollouts.is_valid
    sampled = -(scores.logprobs.detach() * valid).sum((1, 2)) / valid.sum((1, 2)).clamp(min=1)
    if not _is_uniform(scores.logprobs.detach()[valid]) and torch.allclose(
        sampled, scores.entropy.detach(), atol=1e-6, rtol=1e-6
    ):
        s.fail(
            "score",
            "return the analytic entropy",
            "minus the mean log-probability of the samples",
            remedy="its gradient is 0 on average: sum -(p * log p) over all choices",
        )


def _is_uniform(logprobs: Tensor) -> bool:
    return float(logprobs.max() - logprobs.min()) < MOVES
