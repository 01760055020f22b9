"""Find the stories that fit a persona and the last turns."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from grpo_pipeline.tasks.dialogue.data.params import RetrievalParams
from grpo_pipeline.tasks.dialogue.data.story_index import StoryIndex

# Equal scores that differ by round-off are ties (test_scores_within_round_off_are_ties).
DECIMALS = 9
CHUNK = 512


def retrieval_queries(checked: pd.DataFrame, params: RetrievalParams) -> list[str]:
    """Build the search query of each example: its persona, with the last turn of its context if configured."""
    if params.query == "persona":
        return list(checked["persona"])
    last = checked["context"].map(lambda context: context.split("\n")[-1])
    return [f"{persona} {turn}" for persona, turn in zip(checked["persona"], last, strict=True)]


def retrieve_stories(
    index: StoryIndex, checked: pd.DataFrame, params: RetrievalParams
) -> list[list[str]]:
    """Find the ``top_n`` stories of each example; returns their ids, best first.

        score[q, s] = <query[q], story[s]>, the cosine; ties go by story id

    A story that is made of the persona of the example, or of the other speaker's, is never found. An empty corpus gives none.

    Raises:
        ValueError: if fewer than ``top_n`` stories are left for an example.
    """
    if not index.story_ids:
        return [[] for _ in range(len(checked))]
    keys = list(
        zip(
            retrieval_queries(checked, params),
            checked["subject_id"],
            checked["partner_id"],
            strict=True,
        )
    )
    distinct = sorted(set(keys))
    found: dict[tuple[str, str, str], list[str]] = {}
    for start in range(0, len(distinct), CHUNK):
        part = distinct[start : start + CHUNK]
        found.update(zip(part, rank(index, part, params), strict=True))
    return [found[key] for key in keys]


def similarities(
    index: StoryIndex, keys: Sequence[tuple[str, str, str]], params: RetrievalParams
) -> np.ndarray:
    """Compare a few (query, persona id, partner id) with every story: cosines, float64 [Q, S]; -inf for the speakers' own.

    Raises:
        ValueError: if fewer than ``top_n`` stories are left for one of them.
    """
    queries, owners = [query for query, _, _ in keys], np.array(index.owners)
    product = index.encode(queries, params) @ index.matrix.T
    scores = np.round(
        np.asarray(
            product if isinstance(product, np.ndarray) else product.toarray(), dtype=np.float64
        ),
        DECIMALS,
    )
    # Stories of the two speakers are excluded; a story without an owner never is.
    involved = np.array([key[1:] for key in keys])  # [Q, 2], Q keys
    # [Q, 2, 1] == [1, 1, stories] -> [Q, stories].
    is_own = (involved[:, :, None] == owners[None, None, :]).any(axis=1) & (owners != "")[None, :]
    left = len(index.story_ids) - int(is_own.sum(axis=1).max())
    if left < params.top_n:
        raise ValueError(
            f"dialogue.retrieval.top_n must be at most {left}, the stories left for a persona, got {params.top_n}; lower it"
        )
    scores[is_own] = -np.inf
    return scores


def rank(
    index: StoryIndex, keys: Sequence[tuple[str, str, str]], params: RetrievalParams
) -> list[list[str]]:
    """Rank the stories for a few (query, persona id, partner id); see ``retrieve_stories``."""
    scores = similarities(index, keys, params)
    order = np.argsort(-scores, axis=1, kind="stable")[:, : params.top_n]  # [Q, top_n]
    ids = np.array(index.story_ids, dtype=object)
    return [list(row) for row in ids[order]]


def retrieval_report(
    examples: pd.DataFrame, *, stories: int, params: RetrievalParams
) -> dict[str, object]:
    """Measure how often the story that a reply needs is found.

        recall@k = share of the examples with needs "story" whose story is among the first k

    Args:
        examples: table with the columns ``needs, story_id, split, story_ids``.
        stories: size of the corpus.
        params: the ``dialogue.retrieval`` parameters.

    Returns:
        ``by_split``: n, ``recall_at_1`` and ``recall_at_n``; null with a reason if no reply is known to need a story.
    """
    parts = {name: examples[examples["split"] == name] for name in ("train", "val", "test")}
    by_split = {
        name: recall(part[part["needs"] == "story"])
        for name, part in [*parts.items(), ("all", examples)]
    }
    return {
        "encoder": params.encoder.kind,
        "query": params.query,
        "top_n": params.top_n,
        "stories": stories,
        "by_split": by_split,
    }


def recall(needing: pd.DataFrame) -> dict[str, object]:
    """Return the recall over examples that need a story."""
    if needing.empty:
        return {
            "n": 0,
            "recall_at_1": None,
            "recall_at_n": None,
            "reason": "no reply is known to need a story",
        }
    pairs = list(zip(needing["story_id"], needing["story_ids"], strict=True))
    first, any_of = (
        float(np.mean(hits))
        for hits in ([s == ids[0] for s, ids in pairs], [s in ids for s, ids in pairs])
    )
    return {"n": len(pairs), "recall_at_1": first, "recall_at_n": any_of}
