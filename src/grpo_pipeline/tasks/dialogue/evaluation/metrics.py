"""Compute the metrics of the dialogue task, each from the prediction rows of an arm and a rule.

Definitions, directions and the handling of undefined values are in docs/metrics.md.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from grpo_pipeline.statistics import weighted
from grpo_pipeline.statistics.columns import column, has_value
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
from grpo_pipeline.tasks.dialogue.evaluation.accuracy import ACCURACY, MAJORITY, PASS
from grpo_pipeline.tasks.dialogue.evaluation.prediction_columns import RECALL
from grpo_pipeline.tasks.dialogue.evaluation.summary import summary
from grpo_pipeline.tasks.dialogue.evaluation.trivial_rules import TRIVIAL_RULES
from grpo_pipeline.tasks.dialogue.evaluation.warning_signs import WarningBounds
from grpo_pipeline.tasks.dialogue.evaluation.weighted_bleu import weighted_corpus_bleu
from grpo_pipeline.tasks.dialogue.evaluation.weighted_distinct import weighted_distinct
from grpo_pipeline.tasks.dialogue.scores.bleu import BLEU_COLUMNS

COUNTS = tuple(f"bleu_{name}" for name in BLEU_COLUMNS)
COUNTS_13A = tuple(f"bleu_13a_{name}" for name in BLEU_COLUMNS)
SCORES = ("f1", "rouge_1", "rouge_2", "rouge_l", "length", *COUNTS)
REQUIRED = ("example_id", "subject_id", "needs", "rule", "reply", *SCORES, "reward")
RULES = ("policy", "greedy", "start", *TRIVIAL_RULES)
NO_ROWS = "needs at least one example"
UNSCORED = "needs predictions that were scored by this definition; evaluate again"
UNJUDGED = "needs a reply that could be judged"
NO_MODEL = "needs a model, and this rule has none"
REWARD = "reward_"


def all_rows(rows: pd.DataFrame) -> np.ndarray:
    """Select every row: True, [n]."""
    return np.ones(len(rows), bool)


def corpus_bleu(
    rows: pd.DataFrame, weights: np.ndarray, *, counts: Sequence[str] = COUNTS
) -> np.ndarray:
    """Return the BLEU of all replies of each resample together, [B], from these columns."""
    return weighted_corpus_bleu(np.stack([column(rows, name) for name in counts], axis=1), weights)


def distinct(rows: pd.DataFrame, weights: np.ndarray, *, n: int) -> np.ndarray:
    """Compute distinct-n in resamples of personas, linearised by the jackknife, [B]."""
    personas = rows["subject_id"].factorize(sort=True)[0]
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
    """Build the mean of the reward or of a component."""
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
    "rouge_l_rouge101": mean_metric(
        "rouge_l_rouge101",
        title="ROUGE-L as the package rouge 1.0.1",
        better="higher",
        reason=UNSCORED,
        bounds=SHARE,
    ),
    "bleu_13a": Metric(
        title="BLEU of all replies, cased, 13a",
        better="higher",
        reason=UNSCORED,
        usable=partial(has_value, COUNTS_13A[0]),
        compute=partial(corpus_bleu, counts=COUNTS_13A),
        bounds=SHARE,
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


RECALL_METRIC = mean_metric(
    RECALL,
    title="Recall@1 of the story",
    better="higher",
    reason="needs a reply that needs a story, and a retriever that chose one",
    bounds=SHARE,
)


def own_rewards(names: Iterable[str]) -> dict[str, Metric]:
    """Build the metrics that only the data name: components ``reward_<name>``, a retriever's recall, those of right replies."""
    given = tuple(names)
    found = [name for name in given if name.startswith(REWARD) and name not in METRICS]
    rewards = {
        name: reward_metric(name, title=f"Reward, {name.removeprefix(REWARD)} component")
        for name in found
    }
    recall = {name: RECALL_METRIC for name in given if name == RECALL}
    return rewards | recall | {name: right_metric(name) for name in given if is_right_metric(name)}


def is_right_metric(name: str) -> bool:
    """Check whether a column is one of ``accuracy_columns``."""
    return name == ACCURACY or (
        name.startswith((PASS, MAJORITY)) and name.rpartition("_")[2].isdigit()
    )


def right_metric(name: str) -> Metric:
    """Build the mean of a column of ``accuracy_columns``."""
    if name == ACCURACY:
        return mean_metric(name, title="Accuracy", better="higher", reason=UNJUDGED, bounds=SHARE)
    k = name.rpartition("_")[2]
    title = f"{'pass' if name.startswith(PASS) else 'maj'}@{k}"
    return mean_metric(
        name, title=title, better="higher", reason=f"needs {k} judged replies", bounds=SHARE
    )


def without_answers(suite: MetricSuite) -> MetricSuite:
    """Leave out what compares replies with right answers; the reward then judges."""
    lost = (*SCORES, "bleu", "rouge_l_rouge101", "bleu_13a", "perplexity")
    lost += ("reward_f1", "reward_rouge_l", "reward_bleu")
    kept = {name: metric for name, metric in suite.metrics.items() if name not in lost}
    return replace(
        suite,
        metrics=kept | {"length": suite.metrics["length"]},
        required=tuple(name for name in suite.required if name not in SCORES),
        finite=("length",),
        headline=("reward", "distinct_2", "length"),
        bar=suite.bar if suite.bar is None else replace(suite.bar, metrics=("reward",)),
    )


def adapt_suite(suite: MetricSuite, names: Collection[str]) -> MetricSuite:
    """Judge by the accuracy where replies are right or wrong, by F1 where there are answers, and by the reward otherwise.

    The replies of a conversation are judged by its environment, and not by how they compare with other conversations.
    """
    # A choice of metrics that lacks F1 says nothing of the data; a table of predictions has the reward, too.
    is_table = "reward" in names and "length" in names
    if is_table and ("f1" not in names or f"{REWARD}environment" in names):
        suite = without_answers(suite)
    if ACCURACY not in names:
        return suite
    first = {name: suite.metrics[name] for name in names if is_right_metric(name)}
    last = [[name for name in first if name.startswith(kind)][-1:] for kind in (PASS, MAJORITY)]
    bar = suite.bar if suite.bar is None else replace(suite.bar, metrics=(ACCURACY,))
    return replace(
        suite,
        metrics=first | {name: suite.metrics[name] for name in suite.metrics if name not in first},
        headline=(ACCURACY, *last[0], *last[1], "reward"),
        bar=bar,
    )


def build_suite(options: Mapping[str, float]) -> MetricSuite:
    """Build the metrics of this task with their words and columns; ``options`` are the fields of ``WarningBounds``.

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
        adapt=adapt_suite,
        headline=("f1", "bleu", "distinct_2", "reward"),
        bar=Bar(
            metrics=("f1",),
            fixed=tuple(rule for rule in TRIVIAL_RULES if rule != "reference"),
            ceilings=("reference",),
        ),
    )
