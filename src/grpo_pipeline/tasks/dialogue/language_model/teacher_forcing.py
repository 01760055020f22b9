"""Score the reference reply token by token (teacher forcing).

The scores are a loss, and a perplexity: how well the language model predicts the reference.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from grpo_pipeline.core.sampling.linear_logprobs import chunked_logprobs
from grpo_pipeline.tasks.dialogue.language_model.base import Encoded, Head, LanguageModel
from grpo_pipeline.tasks.dialogue.language_model.token_scores import score_tokens
from grpo_pipeline.tasks.dialogue.language_model.tokens import Tokens
from grpo_pipeline.tasks.dialogue.params import LossMean


class Perplexity(NamedTuple):
    """Sums of each prompt that give the perplexity of any set of prompts: exp(sum of nll / sum of tokens).

    Both float64 [P]: the negative log-likelihood of the reference in nats, and its number of tokens, the end included.
    """

    nll: Tensor
    tokens: Tensor


def reference_logprobs(
    language_model: LanguageModel, encoded: Encoded, reference: Tokens
) -> Tensor:
    """Compute the log-probability of each token of the reference, [P, T], in nats; 0 at padding. With gradient.

    At temperature 1 and over all choices, whatever replies are drawn with.

    Args:
        language_model: the policy.
        encoded: its encoding of P prompts.
        reference: P replies, padded on the right, each with its end.
    """
    hidden = language_model.hidden(encoded, reference.ids[:, None])[:, 0]  # [P, T, D]
    taken = reference.is_token
    # Only tokens, [M, D], then back to [P, T]: no logits of padding are computed.
    scored = logprobs_of(hidden[taken], language_model.head, reference.ids[taken])  # [M]
    return scored.new_zeros(taken.shape).masked_scatter(taken, scored)


def logprobs_of(hidden: Tensor, head: Head, tokens: Tensor) -> Tensor:
    """Compute the log-probability [M] of tokens int64 [M] given hidden states [M, D], or logits [M, V] without a head."""
    if head is None:
        return score_tokens(hidden, head, tokens, temperature=1.0).logprobs
    weight, bias = head
    return chunked_logprobs(hidden, weight, tokens, bias=bias, with_entropy=False)[0]


def reference_loss(logprobs: Tensor, is_token: Tensor, *, mean: LossMean) -> Tensor:
    """Compute the cross-entropy of the references, a scalar, in nats.

        per_token:      -sum of all log-probabilities / number of tokens
        per_sequence:   mean over prompts of (-sum of its log-probabilities / number of its tokens)

    Args:
        logprobs: [P, T] of ``reference_logprobs``.
        is_token: bool [P, T], at least one token in each row.
        mean: one of the two; ``per_token`` gives long replies more weight.
    """
    nll = -torch.where(is_token, logprobs, 0.0)
    if mean == "per_token":
        return nll.sum() / is_token.sum()
    return (nll.sum(dim=1) / is_token.sum(dim=1)).mean()


@torch.no_grad()
def reference_perplexity(
    language_model: LanguageModel, encoded: Encoded, reference: Tokens
) -> Perplexity:
    """Compute the sums behind the perplexity of the references (no grad). Arguments as ``reference_logprobs``."""
    logprobs = reference_logprobs(language_model, encoded, reference)
    return Perplexity(
        -logprobs.to(torch.float64).sum(dim=1), reference.is_token.sum(dim=1).to(torch.float64)
    )
