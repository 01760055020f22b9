"""Measure how replies differ from each other, and their length, to detect a collapse of the policy."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from grpo_pipeline.tasks.dialogue.scores.bleu import bleu
from grpo_pipeline.tasks.dialogue.scores.normalisation import parted, words


def distinct(replies: Sequence[str], *, n: int) -> float:
    """Compute the share of different n-grams among all n-grams of all replies.

    N-grams of normalised words, never across two replies. Falls with the number of replies: compare equal numbers only.
    Source: Li et al., arXiv 1510.03055, section 5.

    Returns:
        In (0, 1]; NaN where no reply has n words.

    Raises:
        ValueError: if n < 1.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}; distinct-1 and distinct-2 are usual")
    texts = [words(reply) for reply in replies]
    grams = [tuple(text[start : start + n]) for text in texts for start in range(len(text) - n + 1)]
    return len(set(grams)) / len(grams) if grams else float("nan")


def self_bleu(groups: Sequence[Sequence[str]]) -> NDArray[np.float64]:
    """Compute the similarity of the replies of each group: the mean BLEU of a reply with the others as its answers.

        self_bleu[p] = mean_g BLEU(reply[p, g]; {reply[p, h], h != g})

    The value is 1 if every reply is repeated in its group. Source: Zhu et al., Texygen, arXiv 1802.01886, section 3.1, per group.

    Args:
        groups: P groups of replies.

    Returns:
        [P], in [0, 1]; NaN for a group of fewer than two.
    """
    rows = [
        (reply, [*group[:place], *group[place + 1 :]])
        for group in map(list, groups)
        if len(group) > 1
        for place, reply in enumerate(group)
    ]
    scores = iter(bleu([reply for reply, _ in rows], [others for _, others in rows]).tolist())
    means = [
        sum(next(scores) for _ in group) / len(group) if len(group) > 1 else float("nan")
        for group in groups
    ]
    return np.asarray(means, dtype=np.float64)


def length(replies: Sequence[str]) -> NDArray[np.int64]:
    """Count the words between blanks of each raw reply, [N]; characters in scripts without blanks.

    Not of the normalised text: a policy that repeats "the" writes long replies without one normalised word.
    """
    return np.asarray([len(parted(reply).split()) for reply in replies], dtype=np.int64)
