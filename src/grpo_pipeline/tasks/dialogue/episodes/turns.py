"""Tell the turns of conversations apart: which reply a token belongs to, and what had been paid before it."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from grpo_pipeline.tasks.dialogue.episodes.conversations import Stage
from grpo_pipeline.tasks.dialogue.episodes.environment import play
from grpo_pipeline.tasks.dialogue.language_model.reply_rollouts import is_end


def turns_of(actions: Tensor, is_valid: Tensor, ends: tuple[int, ...]) -> Tensor:
    """Number the replies that the tokens of conversations belong to, from 0; -1 for what was told, and for padding.

    Args:
        actions: int64 [P, G, L].
        is_valid: bool [P, G, L], tokens of the language model's own.
        ends: (*end_ids, pad_id).

    Returns:
        int64 [P, G, L].
    """
    goes_on = is_valid & ~is_end(actions, ends)
    begins = is_valid & ~pad(goes_on[..., :-1], (1, 0))
    return (begins.cumsum(dim=-1) - 1).masked_fill(~is_valid, -1)


def paid_before(stages: Sequence[Stage], replies: Sequence[Sequence[str]], turns: int) -> Tensor:
    """Play conversations again up to their last reply, and add up what each turn finds paid already.

    The last reply is not played: one that was cut has never been answered, and may fail. No turn comes after it.

    Args:
        stages: P stages.
        replies: of each prompt G texts, a line for each reply.
        turns: T, the largest number of replies.

    Returns:
        float64 [P, G, T], unweighed; 0 where a conversation has no such turn.
    """
    found = np.zeros((len(stages), len(replies[0]), turns))
    for p, (stage, texts) in enumerate(zip(stages, replies, strict=True)):
        for g, text in enumerate(texts):
            paid = [step.reward for step in play(stage.begin(), text.split("\n")[:-1])]
            found[p, g, 1 : len(paid) + 1] = np.cumsum(paid)
    return torch.from_numpy(found)
