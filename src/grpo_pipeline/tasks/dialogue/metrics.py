"""The metrics of the dialogue task, each computed from the prediction rows of one arm and one rule.

Definitions, directions and the rule for "undefined" are in docs/metrics.md.
"""

from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np
import pandas as pd

from grpo_pipeline.tasks import weighted
from grpo_pipeline.tasks.columns import column, has_value, mean_metric
from grpo_pipeline.tasks.dialogue import weighted_bleu, weighted_distinct
from grpo_pipeline.tasks.dialogue.bleu import BLEU_COLUMNS
from grpo_pipeline.tasks.dialogue.trivial import TRIVIAL_RULES
from grpo_pipeline.tasks.dialogue.verdict import verdict
from grpo_pipeline.tasks.dialogue.warning_signs import WarningBounds
from grpo_pipeline.tasks.metric import Direction, Metric, MetricSuite, Unit

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
    return weighted_bleu.corpus_bleu(np.stack([column(rows, name) for name in COUNTS], axis=1), weights)


def distinct(rows: pd.DataFrame, weights: np.ndarray, *, n: int) -> np.ndarray:
    """Return distinct-n, made to vary as the jackknife over personas says, [B]."""
    personas = rows["persona_id"].factorize(sort=True)[0]
    return weighted_distinct.distinct(list(rows["reply"]), personas, weights, n=n)


def has_reference_score(rows: pd.DataFrame) -> np.ndarray:
    """Return where the model's likelihood of the reference is known, [n]."""
    return np.asarray(has_value("reference_nll", rows) & has_value("reference_tokens", rows))


def perplexity(rows: pd.DataFrame, weights: np.ndarray) -> np.ndarray:
    """Return exp(nats of all references / tokens of all references), [B]."""
    return np.exp(weighted.mean_ratio(column(rows, "reference_nll"), column(rows, "reference_tokens"), weights))


def reference_tokens(rows: pd.DataFrame, weights: np.ndarray) -> np.ndarray:
    """Return the number of tokens of the references in each resample, [B]."""
    return np.asarray(weights @ column(rows, "reference_tokens"))


def build_metrics() -> dict[str, Metric]:
    """Return every metric of the task by name, in the order of the report."""
    return _overlap_metrics() | _diversity_metrics() | _model_metrics() | _reward_metrics()


def _overlap_metrics() -> dict[str, Metric]:
    mean = partial(mean_metric, better="higher", reason=NO_ROWS)
    bleu = Metric(title="BLEU of all replies", better="higher", reason=NO_ROWS, usable=all_rows, compute=corpus_bleu)
    return {
        "f1": mean("f1", title="F1"),
        "bleu": bleu,
        "rouge_1": mean("rouge_1", title="ROUGE-1"),
        "rouge_2": mean("rouge_2", title="ROUGE-2"),
        "rouge_l": mean("rouge_l", title="ROUGE-L"),
    }


def _distinct_metric(n: int) -> Metric:
    return Metric(
        title=f"Distinct-{n}",
        better="higher",
        reason=f"needs a reply of at least {n} {'word' if n == 1 else 'words'}, and more than one persona with such replies",
        usable=all_rows,
        compute=partial(distinct, n=n),
    )


def _diversity_metrics() -> dict[str, Metric]:
    return {
        "distinct_1": _distinct_metric(1),
        "distinct_2": _distinct_metric(2),
        "self_bleu": mean_metric(
            "self_bleu", title="Self-BLEU inside groups", better="lower", reason="needs several sampled replies per example"
        ),
        "length": mean_metric("length", title="Words in a reply", better="none", reason=NO_ROWS),
        "ended": mean_metric("ended", title="Share of replies that end", better="none", reason=NO_MODEL),
    }


def _model_metrics() -> dict[str, Metric]:
    return {
        "perplexity": Metric(
            title="Perplexity of the references",
            better="lower",
            reason=NO_MODEL,
            usable=has_reference_score,
            compute=perplexity,
            mass=reference_tokens,
        ),
        "kl_start": mean_metric(
            "kl_start",
            title="KL from the start, nats per reply",
            better="none",
            reason="needs replies that a model has sampled",
        ),
    }


def _reward_metrics() -> dict[str, Metric]:
    return {
        "reward": reward_metric("reward", title="Reward"),
        "reward_f1": reward_metric("reward_f1", title="Reward, F1 part"),
        "reward_rouge_l": reward_metric("reward_rouge_l", title="Reward, ROUGE-L part"),
        "reward_bleu": reward_metric("reward_bleu", title="Reward, BLEU part"),
    }


def reward_metric(name: str, *, title: str, better: Direction = "higher") -> Metric:
    """Build the mean of the reward or of one of its parts."""
    return mean_metric(name, title=title, better=better, reason="needs at least one reply that this reward was measured of")


def own_rewards(names: Iterable[str]) -> dict[str, Metric]:
    """Return a metric for each part ``reward_<name>`` that is not built in, in the order of the names."""
    found = [name for name in names if name.startswith(REWARD) and name not in METRICS]
    return {name: reward_metric(name, title=f"Reward, {name.removeprefix(REWARD)} part") for name in found}


def fill_empty_replies(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with "" where a table read from a file has an empty cell as reply."""
    return rows.assign(reply=rows["reply"].fillna("").astype(str))


METRICS: dict[str, Metric] = build_metrics()


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
        prepare=fill_empty_replies,
        verdict=partial(verdict, bounds=WarningBounds.model_validate(dict(options))),
        discover=own_rewards,
        headline=("f1", "bleu", "distinct_2", "reward"),
    )
