"""Compute log-probabilities of stored replies under the present weights, with gradient.

The encoding of a prompt is shared by its replies: its keys and values enter the graph once. Replies are computed in batches of
whole prompts with a limit of tokens, the shortest replies first, so that little padding is computed. The order is restored.
"""

import torch
from torch import Tensor

from grpo_pipeline.core.types import Scores
from grpo_pipeline.tasks.dialogue.language_model.base import Encoded, LanguageModel, choose_prompts
from grpo_pipeline.tasks.dialogue.language_model.reply_rollouts import ReplyRollouts, lengths_of
from grpo_pipeline.tasks.dialogue.language_model.token_scores import TokenScores, score_tokens


def score_replies(
    language_model: LanguageModel,
    encoded: Encoded,
    rollouts: ReplyRollouts,
    *,
    temperature: float,
    tokens_per_batch: int | None,
) -> Scores:
    """Compute log-probabilities of the stored actions, and the mean entropy of each prompt's decisions.

        entropy[p] = sum over valid (g, t) of H[p, g, t] / their number

    At the first update they equal the log-probabilities of sampling up to rounding: the cache sums in another order. In float64
    they agree to 1e-10, in float32 to 1e-4.

    Args:
        language_model: the policy.
        encoded: its encoding of the P prompts.
        rollouts: the drawn replies; padding has log-probability 0 and no gradient.
        temperature: temperature of sampling.
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
    entropy = scored.entropy.sum(dim=(1, 2)) / counts  # [P]
    return Scores(scored.logprobs, entropy, entropies=scored.entropy)


def score_decisions(
    language_model: LanguageModel,
    encoded: Encoded,
    rollouts: ReplyRollouts,
    *,
    temperature: float,
    tokens_per_batch: int | None,
) -> TokenScores:
    """Compute log-probability and entropy [P, G, L] of every stored action; both are 0 at padding. See ``score_replies``."""
    lengths = lengths_of(rollouts.is_valid).amax(dim=1)  # [P]
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
        lengths: int64 [P], length of each prompt's longest reply.
        group_size: G, number of replies of a prompt.
        limit: limit of prompts * G * longest reply in a batch; a prompt that exceeds it alone is a batch. None: a single batch.

    Returns:
        The numbers of the prompts of each batch, ascending in length from batch to batch. A single batch keeps the order.
    """
    if limit is None or len(lengths) * group_size * int(lengths.max()) <= limit:
        return [torch.arange(len(lengths), device=lengths.device)]
    # Ascending lengths: the last prompt of a batch is its longest and decides its cost.
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
    """Score the replies to some prompts, cut to the longest of them; only valid decisions reach the head."""
    chosen = encoded if len(prompts) == len(encoded.start) else choose_prompts(encoded, prompts)
    is_valid = rollouts.is_valid[prompts]  # [R, G, L], R prompts
    width = max(1, int(lengths_of(is_valid).max()))
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
