"""The metrics of the dialogue task, each computed from the prediction rows of one arm and one rule.

Definitions, directions and the rule for "undefined" are in docs/metrics.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpo_pipeline.statistics import weighted
from grpo_pipeline.statistics.columns import column, has_value
from grpo_pipeline.statistics.linear_resampling import linear_resamples
from grpo_pipeline.statistics.mean_metric import mean_metric
from grpo_pipeline.statistics.metric import (
    NOT_NEGATIVE,
    SHARE,
    UNBOUNDED,
    Bar,
    Bounds,
    Direction,
    Metric,
    MetricSuite,
    Unit,
)
from grpo_pipeline.statistics.wording import signed
from grpo_pipeline.tasks.dialogue.scores import BLEU_COLUMNS, ORDERS, words
from grpo_pipeline.tasks.dialogue.warning_signs import (
    READ_BY_PEOPLE,
    START,
    TRIVIAL_RULES,
    Entry,
    WarningBounds,
    direction,
    warnings,
)

# Plain sentences about a comparison document: did the reward rise, did what people read rise with it, and at what price.


def summary(comparison: Mapping[str, Any], *, bounds: WarningBounds) -> list[str]:
    """Say for every arm what its reward did, what moved with it, and what has to be looked at before it is believed.

    Args:
        comparison: the document of docs/metrics.md, without its summary.
        bounds: of the warnings.
    """
    control = comparison["control"]
    sentences = []
    for arm in comparison["arms"]:
        if arm != control:
            differences = comparison["differences"][arm]
            sentences.append(reward_sentence(arm, differences["reward"], than=control))
            sentences.append(scores_sentence(arm, differences, than=control))
        gain = comparison["policy_gain"].get(arm, {}).get("reward")
        if gain is not None:
            sentences.append(reward_sentence(arm, gain, than=f"the {START}"))
        sentences += warnings(arm, comparison, bounds)
    return sentences


def reward_sentence(arm: str, difference: Entry, *, than: str) -> str:
    """Say whether sampled replies earn more than those of the control or of the start."""
    if difference["ci95"] is None:
        return f"{arm}: reward against {than}: no statement ({difference['reason']})."
    ending = {1: f"more than {than}", -1: f"less than {than}", 0: "no difference shown"}[
        direction(difference)
    ]
    return f"{arm}: its replies earn {signed(difference)} reward against {than}: {ending}."


def scores_sentence(arm: str, differences: Mapping[str, Entry], *, than: str) -> str:
    """Say which of the scores that people report moved with the reward."""
    rose, fell = (
        [title for name, title in READ_BY_PEOPLE.items() if direction(differences[name]) == sign]
        for sign in (1, -1)
    )
    still = [title for title in READ_BY_PEOPLE.values() if title not in rose + fell]
    parts = [
        f"{', '.join(titles)} {words}"
        for titles, words in ((rose, "higher"), (fell, "lower"), (still, "not shown to differ"))
        if titles
    ]
    return f"{arm}: against {than}: {'; '.join(parts)}."


# Corpus BLEU of all resamples at once: its counts add up, so a resample is a weighted sum of rows.

Floats = NDArray[np.float64]


def weighted_corpus_bleu(counts: Floats, weights: Floats) -> Floats:
    """Return the corpus BLEU of each resample, [B] in [0, 1].

        BLEU = min(1, exp(1 - r / c)) * (p_1 p_2 p_3 p_4) ** (1 / 4),   p_n = m_n / a_n

    with sums over the rows of the resample: c words of the replies, r of the closest answers, a_n n-grams, m_n of them matched.
    An order without a match counts 1 / (2^k a_n), k the number of such orders so far (``exp``). Nothing matched at all, or no
    reply of four words: 0. Equals ``bleu.corpus_bleu`` of a table that repeats its rows; undefined in a resample without a row.

    Args:
        counts: [n, 10], columns ``BLEU_COLUMNS``.
        weights: [B, n], how often a resample holds each row.
    """
    sums = weights @ counts  # [B, 10]
    reply, answer, matched, total = (
        sums[:, 0],
        sums[:, 1],
        sums[:, 2 : 2 + ORDERS],
        sums[:, 2 + ORDERS :],
    )
    is_missed = matched == 0
    halvings = np.cumsum(is_missed, axis=1)  # k: [B, 4]
    is_defined = (total > 0).all(axis=1) & ~is_missed.all(axis=1)
    # p_n: [B, 4]; where nothing can be counted the value is replaced by 0 below.
    precision = np.where(is_missed, 0.5**halvings, matched) / np.where(total > 0, total, 1.0)
    brevity = np.exp(np.minimum(0.0, 1 - answer / np.where(reply > 0, reply, 1.0)))  # [B]
    value = np.minimum(1.0, brevity * np.exp(np.log(precision).mean(axis=1)))  # [B]
    return np.where(weights.sum(axis=1) > 0, np.where(is_defined, value, 0.0), np.nan)


# Distinct-n with an honest interval.
#
# A resample of clusters holds some of them twice. A repeated reply adds n-grams and no different ones, so that distinct-n of a
# resample is too low, always: its percentile interval lies below the value of the sample. Distinct-n is therefore taken as
# linear around the sample, with the effect of each cluster measured by leaving it out. That is the jackknife; for a mean it
# is exactly the bootstrap (``linear_resampling.linear_resamples``).


@dataclass(frozen=True)
class GramCounts:
    """N-grams of replies by cluster.

    Attributes:
        different: number of different n-grams of all clusters.
        own: n-grams that no other cluster has, float64 [C].
        total: all n-grams, float64 [C].
    """

    different: int
    own: Floats
    total: Floats

    @property
    def value(self) -> float:
        """Distinct-n of the sample; NaN without an n-gram."""
        return float(_ratio(np.array(float(self.different)), self.total.sum()))

    @property
    def without_each(self) -> Floats:
        """Distinct-n of the sample without each cluster, [C]; NaN where nothing is left."""
        return _ratio(self.different - self.own, self.total.sum() - self.total)


def weighted_distinct(
    replies: Sequence[str], clusters: NDArray[np.int64], weights: Floats, *, n: int
) -> Floats:
    """Return distinct-n of the sample, made to vary over resamples of clusters as the jackknife says, [B].

        D[b] = D - (C - 1) / C * sum_c (w[b, c] - 1) * D_(-c),   cut to [0, 1]

    D is distinct-n of all replies, D_(-c) that of the replies of all clusters but c. Weights of 1 give D itself. The variance of
    D[b] is the jackknife's, which is on average not too small (Efron and Stein, Annals of Statistics 9, 1981, pages 586-596), and
    its middle is D. The estimand is the expected distinct-n of as many replies of as many clusters: distinct-n falls with the
    number of replies. If all n-grams belong to one cluster, D is given and nothing varies: the resamples are undefined.

    Args:
        replies: [n], texts; n-grams of their normalised words, never across two replies.
        clusters: [n], number of each reply's cluster, 0 .. C - 1, none empty.
        weights: [B, n], how often a resample holds each row; equal for the rows of a cluster.
        n: words in an n-gram.

    Raises:
        ValueError: if rows of one cluster have different weights.
    """
    _, first_row = np.unique(clusters, return_index=True)
    of_clusters = weights[:, first_row]  # [B, C]
    if not np.array_equal(of_clusters[:, clusters], weights):
        raise ValueError(
            "the weights of one persona's rows must be equal, got different ones; resample whole personas"
        )
    counts = count_grams(replies, clusters, n=n)
    return linear_resamples(counts.value, counts.without_each, of_clusters)


def count_grams(replies: Sequence[str], clusters: NDArray[np.int64], *, n: int) -> GramCounts:
    """Count the n-grams of each cluster, and those that it alone has; arguments as ``distinct``."""
    texts = [words(reply) for reply in replies]
    places = [max(0, len(text) - n + 1) for text in texts]
    grams = {
        gram: i
        for i, gram in enumerate(
            sorted({tuple(t[i : i + n]) for t in texts for i in range(len(t) - n + 1)})
        )
    }
    # Every n-gram of every reply, [places]: its number, and the cluster that wrote it.
    gram = np.array(
        [grams[tuple(t[i : i + n])] for t in texts for i in range(len(t) - n + 1)], dtype=np.int64
    )
    cluster = np.repeat(clusters, places)
    size = int(clusters.max()) + 1
    # Each cluster counts once for an n-gram; one that a single cluster holds is its own.
    pairs = np.unique(cluster * max(1, len(grams)) + gram)
    holder, held = np.divmod(pairs, max(1, len(grams)))
    is_own = np.bincount(held, minlength=len(grams))[held] == 1
    own = np.bincount(holder[is_own], minlength=size)  # [C]
    return GramCounts(
        len(grams), own.astype(np.float64), np.bincount(cluster, minlength=size).astype(np.float64)
    )


def _ratio(part: Floats, whole: Floats) -> Floats:
    quotient = np.full(np.broadcast_shapes(np.shape(part), np.shape(whole)), np.nan)
    np.divide(part, whole, out=quotient, where=np.asarray(whole) > 0)
    return quotient


COUNTS = tuple(f"bleu_{name}" for name in BLEU_COLUMNS)
SCORES = ("f1", "rouge_1", "rouge_2", "rouge_l", "length", *COUNTS)
REQUIRED = ("example_id", "persona_id", "needs", "rule", "reply", *SCORES, "reward")
RULES = ("policy", "greedy", "start", *TRIVIAL_RULES)
NO_ROWS = "needs at least one example"
NO_MODEL = "needs a model, and this rule has none"
REWARD = "reward_"


def all_rows(rows: pd.DataFrame) -> np.ndarray:
    """Return True for every row, [n]."""
    return np.ones(len(rows), bool)


def corpus_bleu(rows: pd.DataFrame, weights: np.ndarray) -> np.ndarray:
    """Return the BLEU of all replies of each resample together, [B]."""
    return weighted_corpus_bleu(np.stack([column(rows, name) for name in COUNTS], axis=1), weights)


def distinct(rows: pd.DataFrame, weights: np.ndarray, *, n: int) -> np.ndarray:
    """Return distinct-n, made to vary as the jackknife over personas says, [B]."""
    personas = rows["persona_id"].factorize(sort=True)[0]
    return weighted_distinct(list(rows["reply"]), personas, weights, n=n)


def perplexity(rows: pd.DataFrame, weights: np.ndarray) -> np.ndarray:
    """Return exp(nats of all references / tokens of all references), [B]."""
    return np.exp(
        weighted.mean_ratio(
            column(rows, "reference_nll"), column(rows, "reference_tokens"), weights
        )
    )


def distinct_metric(n: int) -> Metric:
    """Build distinct-n."""
    return Metric(
        title=f"Distinct-{n}",
        better="higher",
        reason=f"needs a reply of at least {n} {'word' if n == 1 else 'words'}, and more than one persona with such replies",
        usable=all_rows,
        compute=partial(distinct, n=n),
        bounds=SHARE,
    )


def reward_metric(
    name: str, *, title: str, better: Direction = "higher", bounds: Bounds = UNBOUNDED
) -> Metric:
    """Build the mean of the reward or of one of its parts."""
    return mean_metric(
        name,
        title=title,
        better=better,
        reason="needs at least one reply that this reward was measured of",
        bounds=bounds,
    )


# Every metric of the task by name, in the order of the report.
METRICS: dict[str, Metric] = {
    "f1": mean_metric("f1", title="F1", better="higher", reason=NO_ROWS, bounds=SHARE),
    "bleu": Metric(
        title="BLEU of all replies",
        better="higher",
        reason=NO_ROWS,
        usable=all_rows,
        compute=corpus_bleu,
        bounds=SHARE,
    ),
    "rouge_1": mean_metric(
        "rouge_1", title="ROUGE-1", better="higher", reason=NO_ROWS, bounds=SHARE
    ),
    "rouge_2": mean_metric(
        "rouge_2", title="ROUGE-2", better="higher", reason=NO_ROWS, bounds=SHARE
    ),
    "rouge_l": mean_metric(
        "rouge_l", title="ROUGE-L", better="higher", reason=NO_ROWS, bounds=SHARE
    ),
    "distinct_1": distinct_metric(1),
    "distinct_2": distinct_metric(2),
    "self_bleu": mean_metric(
        "self_bleu",
        title="Self-BLEU inside groups",
        better="lower",
        reason="needs several sampled replies per example",
        bounds=SHARE,
    ),
    "length": mean_metric(
        "length", title="Words in a reply", better="none", reason=NO_ROWS, bounds=NOT_NEGATIVE
    ),
    "ended": mean_metric(
        "ended", title="Share of replies that end", better="none", reason=NO_MODEL, bounds=SHARE
    ),
    "perplexity": Metric(
        title="Perplexity of the references",
        better="lower",
        reason=NO_MODEL,
        usable=lambda rows: has_value("reference_nll", rows) & has_value("reference_tokens", rows),
        compute=perplexity,
        mass=lambda rows, weights: weights @ column(rows, "reference_tokens"),
        bounds=(1.0, np.inf),
    ),
    "kl_start": mean_metric(
        "kl_start",
        title="KL from the start, nats per reply",
        better="none",
        reason="needs replies that a model has sampled",
        bounds=NOT_NEGATIVE,
    ),
    "reward": reward_metric("reward", title="Reward"),
    "reward_f1": reward_metric("reward_f1", title="Reward, F1 component", bounds=SHARE),
    "reward_rouge_l": reward_metric(
        "reward_rouge_l", title="Reward, ROUGE-L component", bounds=SHARE
    ),
    "reward_bleu": reward_metric("reward_bleu", title="Reward, BLEU component", bounds=SHARE),
}


def own_rewards(names: Iterable[str]) -> dict[str, Metric]:
    """Return a metric for each part ``reward_<name>`` that is not built in, in the order of the names."""
    found = [name for name in names if name.startswith(REWARD) and name not in METRICS]
    return {
        name: reward_metric(name, title=f"Reward, {name.removeprefix(REWARD)} component")
        for name in found
    }


def build_suite(options: Mapping[str, float]) -> MetricSuite:
    """Return what the evaluation needs of this task; ``options`` are the fields of ``WarningBounds``.

    Raises:
        pydantic.ValidationError: if an option is unknown or out of range.
    """
    return MetricSuite(
        unit=Unit("example_id", noun="example", facts=("needs",)),
        metrics=METRICS,
        rules=RULES,
        required=REQUIRED,
        finite=SCORES,
        # An empty cell of a file.
        prepare=lambda rows: rows.assign(reply=rows["reply"].fillna("").astype(str)),
        summary=partial(summary, bounds=WarningBounds.model_validate(dict(options))),
        discover=own_rewards,
        headline=("f1", "bleu", "distinct_2", "reward"),
        bar=Bar(
            metrics=("f1",),
            fixed=tuple(rule for rule in TRIVIAL_RULES if rule != "reference"),
            ceilings=("reference",),
        ),
    )
