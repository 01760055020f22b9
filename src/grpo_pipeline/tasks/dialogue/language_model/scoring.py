"""Compute log-probabilities of stored replies under the present weights, with gradient.

The encoding of a prompt is shared by its replies: its keys and values enter the graph once. Replies are computed in batches of
whole prompts under a limit of tokens, the prompts with the shortest replies first, so that little padding is computed; the
order is restored.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from grpo_pipeline.core.sampling.linear_logprobs import chunked_logprobs
from grpo_pipeline.core.sampling.plackett_luce import entropy_of
from grpo_pipeline.core.sampling.truncation import action_logprobs, truncated_log_probs
from grpo_pipeline.core.types import Scores
from grpo_pipeline.tasks.dialogue.language_model.base import Encoded, LanguageModel, choose_prompts
from grpo_pipeline.tasks.dialogue.language_model.sampling import ReplyRollouts, unpack
from grpo_pipeline.tasks.dialogue.language_model.tokens import Tokens
from grpo_pipeline.tasks.dialogue.params import LossMean

# Teacher forcing: how well the language model predicts the reference reply, token by token, as a loss and as a perplexity.


class Perplexity(NamedTuple):
    """Sums of each prompt, from which the perplexity of any set of prompts follows: exp(sum of nll / sum of tokens).

    Both float64 [P]: the negative log-likelihood of the reference in nats, and its number of tokens, the end included.
    """

    nll: Tensor
    tokens: Tensor


def reference_logprobs(
    language_model: LanguageModel, encoded: Encoded, reference: Tokens
) -> Tensor:
    """Return the log-probability of each token of the reference, [P, T], in nats; 0 at padding. With gradient.

    At temperature 1 and over all choices, whatever replies are drawn with.

    Args:
        language_model: the policy.
        encoded: its encoding of P prompts.
        reference: P replies, padded on the right, each with its end.
    """
    hidden = language_model.hidden(encoded, reference.ids[:, None])[:, 0]  # [P, T, D]
    taken = reference.is_token
    weight, bias = language_model.head
    # The tokens alone, [M, D], and back to [P, T]: no logits of padding are computed.
    scored, _ = chunked_logprobs(
        hidden[taken], weight, reference.ids[taken], bias=bias, with_entropy=False
    )  # [M]
    return scored.new_zeros(taken.shape).masked_scatter(taken, scored)


def reference_loss(logprobs: Tensor, is_token: Tensor, *, mean: LossMean) -> Tensor:
    """Return the cross-entropy of the references, a scalar, in nats.

        per_token:      -sum of all log-probabilities / number of tokens
        per_sequence:   mean over prompts of (-sum of its log-probabilities / number of its tokens)

    Args:
        logprobs: [P, T] of ``reference_logprobs``.
        is_token: bool [P, T], at least one token in each row.
        mean: which of the two; the first lets long replies count more.
    """
    nll = -torch.where(is_token, logprobs, 0.0)
    if mean == "per_token":
        return nll.sum() / is_token.sum()
    return (nll.sum(dim=1) / is_token.sum(dim=1)).mean()


@torch.no_grad()
def reference_perplexity(
    language_model: LanguageModel, encoded: Encoded, reference: Tokens
) -> Perplexity:
    """Return what the perplexity of the references is computed from (no grad). Arguments as ``reference_logprobs``."""
    logprobs = reference_logprobs(language_model, encoded, reference)
    return Perplexity(
        -logprobs.to(torch.float64).sum(dim=1), reference.is_token.sum(dim=1).to(torch.float64)
    )


# Score decisions under the distribution that they were drawn from: log-probability and entropy, without all logits at a time.
#
#     z = (hidden @ weight.T + bias) / temperature      logprob = z_a - logsumexp(z over kept)      H = -sum over kept p log p
#
# The kept set is that of sampling time (``core.sampling.truncation``). Without one ``core.sampling.linear_logprobs`` goes
# through blocks of choices; with one, blocks of whole rows are computed, and computed again in the backward pass.

# Logits of a block: 2**22 float32 numbers are 16 MiB, and log-softmax keeps a few such blocks.
BLOCK_NUMBERS = 2**22


class TokenScores(NamedTuple):
    """Log-probability of each action and entropy of the distribution it was drawn from, nats, both of the actions' shape."""

    logprobs: Tensor
    entropy: Tensor


def score_tokens(
    hidden: Tensor,
    head: tuple[Tensor, Tensor | None],
    actions: Tensor,
    *,
    temperature: float,
    kept: Tensor | None = None,
) -> TokenScores:
    """Score actions int64 [M] given hidden states [M, D], with gradient to hidden, weight and bias.

    Args:
        hidden: [M, D].
        head: weight [V, D] and bias [V] or None.
        actions: int64 [M].
        temperature: of sampling time.
        kept: uint8 [M, ceil(V / 8)], of sampling time (``sampling.pack``), or None where every choice was kept.
    """
    weight, bias = head
    if kept is None:
        logprobs, entropy = chunked_logprobs(
            hidden, weight, actions, bias=bias, temperature=temperature
        )
        assert entropy is not None  # it was asked for
        return TokenScores(logprobs, entropy)
    # Blocks of whole rows, [rows, V] logits each, of which the backward pass keeps none.
    rows = max(1, BLOCK_NUMBERS // len(weight))
    starts = tuple(range(rows, len(hidden), rows))
    blocks = zip(*(part.tensor_split(starts) for part in (hidden, actions, kept)), strict=True)
    scored = [
        checkpoint(_score_block, h, weight, bias, a, k, temperature, use_reentrant=False)
        for h, a, k in blocks
    ]
    return TokenScores(*(torch.cat(part) for part in zip(*scored, strict=True)))


def _score_block(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    actions: Tensor,
    kept: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    logits = functional.linear(hidden, weight, bias)  # [rows, V]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    log_probs = truncated_log_probs(logits, temperature=temperature, kept=unpack(kept, len(weight)))
    return action_logprobs(log_probs, actions), entropy_of(log_probs)


def score_replies(
    language_model: LanguageModel,
    encoded: Encoded,
    rollouts: ReplyRollouts,
    *,
    temperature: float,
    tokens_per_batch: int | None,
) -> Scores:
    """Return log-probabilities of exactly the stored actions, and the mean entropy of each prompt's decisions.

        entropy[p] = sum over valid (g, t) of H[p, g, t] / their number

    At the first update they are the log-probabilities of sampling time but for rounding: the cache adds up in another order. In
    float64 they agree to 1e-10, in float32 to 1e-4.

    Args:
        language_model: the policy.
        encoded: its encoding of the P prompts.
        rollouts: what was drawn; padding has log-probability 0 and no gradient.
        temperature: of sampling time.
        tokens_per_batch: see ``batches_of_prompts``.
    """
    scored = score_decisions(
        language_model,
        encoded,
        rollouts,
        temperature=temperature,
        tokens_per_batch=tokens_per_batch,
    )
    counts = rollouts.is_valid.sum(dim=(1, 2)).clamp_min(1)  # [P]
    return Scores(scored.logprobs, scored.entropy.sum(dim=(1, 2)) / counts)


def score_decisions(
    language_model: LanguageModel,
    encoded: Encoded,
    rollouts: ReplyRollouts,
    *,
    temperature: float,
    tokens_per_batch: int | None,
) -> TokenScores:
    """Return log-probability and entropy [P, G, L] of every stored action; both are 0 at padding. See ``score_replies``."""
    lengths = rollouts.is_valid.sum(dim=-1).amax(dim=1)  # [P]
    batches = batches_of_prompts(lengths, rollouts.actions.shape[1], tokens_per_batch)
    parts = [
        _score_batch(language_model, encoded, rollouts, prompts, temperature) for prompts in batches
    ]
    if len(parts) == 1:
        return parts[0]
    # The argsort of the prompts' numbers puts each prompt back into its place.
    order = torch.cat(batches).argsort()
    return TokenScores(*(torch.cat(part)[order] for part in zip(*parts, strict=True)))


def batches_of_prompts(lengths: Tensor, group_size: int, limit: int | None) -> list[Tensor]:
    """Cut P prompts into batches that hold at most ``limit`` tokens, padding included; a group is never cut.

    Args:
        lengths: int64 [P], of each prompt's longest reply.
        group_size: G, replies of a prompt.
        limit: of prompts * G * longest reply in a batch; a prompt that exceeds it alone is a batch. None: one batch.

    Returns:
        The numbers of the prompts of each batch, ascending in length from batch to batch; all in order if one batch holds them.
    """
    if limit is None or len(lengths) * group_size * int(lengths.max()) <= limit:
        return [torch.arange(len(lengths), device=lengths.device)]
    # Ascending lengths: the last prompt of a batch is its longest and decides what the batch costs.
    order = lengths.argsort(stable=True)
    starts = [0]
    for end, length in enumerate(lengths[order].tolist()):
        if end > starts[-1] and (end + 1 - starts[-1]) * group_size * length > limit:
            starts.append(end)
    return list(order.tensor_split(starts[1:]))


def _score_batch(
    language_model: LanguageModel,
    encoded: Encoded,
    rollouts: ReplyRollouts,
    prompts: Tensor,
    temperature: float,
) -> TokenScores:
    """Score the replies to some prompts, cut to the longest of them; decisions that were taken alone reach the head."""
    chosen = encoded if len(prompts) == len(encoded.start) else choose_prompts(encoded, prompts)
    is_valid = rollouts.is_valid[prompts]  # [R, G, L], R prompts
    width = max(1, int(is_valid.sum(dim=-1).max()))
    actions = rollouts.actions[prompts]
    hidden = language_model.hidden(chosen, actions[..., :width])  # [R, G, width, D]
    taken = is_valid[..., :width]  # [R, G, width]
    kept = None if rollouts.kept is None else rollouts.kept[prompts][..., :width, :][taken]
    scores = score_tokens(
        hidden[taken],  # [M, D]
        language_model.head,
        actions[..., :width][taken],  # [M]
        temperature=temperature,
        kept=kept,
    )
    return TokenScores(
        # [M] -> [R, G, L], 0 where no decision was taken.
        *(part.new_zeros(is_valid.shape).masked_scatter(is_valid, part) for part in scores)
    )
