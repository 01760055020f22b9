"""Count right replies where the reward is verifiable: accuracy, and what k samples together know."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import comb

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from grpo_pipeline.tasks.dialogue.rewards.params import DialogueReward
from grpo_pipeline.tasks.dialogue.scores.normalisation import normalise
from grpo_pipeline.tasks.dialogue.scores.number import last_number

ACCURACY, PASS, MAJORITY = "accuracy", "pass_at_", "majority_at_"
# What two replies have in common that count as the same vote, by the term that judges them.
VOTES: Mapping[str, Callable[[str], object]] = {
    "number": last_number,
    "exact_match": normalise,
    "pattern": str.strip,
}


def accuracy_columns(
    rewards: DialogueReward,
    replies: Sequence[Sequence[str]],
    components: Mapping[str, Tensor],
    *,
    n_samples: int,
) -> dict[str, NDArray[np.float64]]:
    """Compute the columns of a rule's replies to P prompts, each [P]; none where the reward is not verifiable.

    A reply is right if every verifiable term pays it its best value. Replies that a term could not score are left out.

    Args:
        rewards: the terms.
        replies: P groups of G texts.
        components: term -> values [P, G], NaN where not scored.
        n_samples: size of the groups of the sampled rules; it decides which columns there are.

    Returns:
        ``accuracy``, the share of right replies; ``pass_at_k`` and ``majority_at_k`` of powers of two k up to ``n_samples``, NaN
        where a prompt has fewer replies. A majority of two is one reply by chance, and left out.
    """
    if not rewards.verifiable:
        return {}
    values = np.stack([components[name].numpy() for name in rewards.verifiable])  # [terms, P, G]
    best = np.asarray([rewards.best[name] for name in rewards.verifiable])[:, None, None]
    is_right = np.asarray((values >= best).all(axis=0))  # [P, G]
    is_scored = np.asarray(~np.isnan(values).any(axis=0))
    votes = [VOTES[name] for name in rewards.verifiable]
    sizes = [2**power for power in range(1, n_samples.bit_length()) if 2**power <= n_samples]
    names = [
        ACCURACY,
        *(f"{PASS}{k}" for k in sizes),
        *(f"{MAJORITY}{k}" for k in sizes if k > 2),
    ]
    columns: dict[str, list[float]] = {name: [] for name in names}
    for group, right, scored in zip(replies, is_right, is_scored, strict=True):
        kept = [
            (tuple(vote(text) for vote in votes), bool(hit))
            for text, hit, ok in zip(group, right, scored, strict=True)
            if ok
        ]
        hits = sum(hit for _, hit in kept)
        columns[ACCURACY].append(hits / len(kept) if kept else np.nan)
        for k in sizes:
            columns[f"{PASS}{k}"].append(pass_at(len(kept), hits, k))
            if k > 2:
                columns[f"{MAJORITY}{k}"].append(majority_at(Counter(kept), k))
    return {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}


def pass_at(n: int, right: int, k: int) -> float:
    """Estimate the probability that one of k samples is right, from n samples of which so many are; NaN for n < k.

        1 - C(n - right, k) / C(n, k)

    Unbiased: the mean over all choices of k of the n samples. Source: Chen et al., arXiv 2107.03374, equation 1.
    """
    return 1.0 - comb(n - right, k) / comb(n, k) if n >= k else float("nan")


def majority_at(votes: Mapping[tuple[object, bool], int], k: int) -> float:
    """Estimate the probability that the most frequent answer of k samples is right, from n samples; NaN for n < k.

    The mean over all choices of k of the n samples, a tie being drawn by chance among its answers: unbiased. The answer a wins
    with m votes and t others beside it in as many choices as

        C(n[a], m) * [choices of k - m votes among the others, at most m of each, t of them with m]

    and is then drawn once in t + 1 times.

    Args:
        votes: (answer, whether it is right) -> number of its samples; the numbers add up to n.
        k: size of a choice.
    """
    total = sum(votes.values())
    if total < k:
        return float("nan")
    won = Fraction(0)
    for (answer, is_right), own in votes.items():
        others = [count for one, count in votes.items() if one != (answer, is_right)]
        for m in range(1, min(own, k) + 1) if is_right else ():
            ways = _ways(others, k - m, most=m)
            won += sum(Fraction(comb(own, m) * n, ties + 1) for ties, n in ways.items())
    return float(won / comb(total, k))


def _ways(counts: Sequence[int], size: int, *, most: int) -> Mapping[int, int]:
    """Count the choices of ``size`` votes with at most ``most`` of each answer: answers with exactly so many -> choices."""
    found = {(0, 0): 1}  # (votes, answers with most votes) -> choices
    for count in counts:
        longer: dict[tuple[int, int], int] = defaultdict(int)
        for (votes, ties), ways in found.items():
            for own in range(min(count, most, size - votes) + 1):
                longer[votes + own, ties + (own == most)] += ways * comb(count, own)
        found = longer
    return {ties: ways for (votes, ties), ways in found.items() if votes == size}
