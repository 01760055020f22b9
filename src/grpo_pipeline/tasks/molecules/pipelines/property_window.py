"""Compare the shares of sampled molecules whose property lies in the window of the reward.

The ratio is to the start, before training.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from grpo_pipeline.pipelines.reporting.tables import Cell, Table, mark_of, value_cell
from grpo_pipeline.statistics.bootstrap import few_clusters_reason
from grpo_pipeline.statistics.columns import column
from grpo_pipeline.statistics.metric import SHARE
from grpo_pipeline.tasks.molecules.pipelines.sampled_molecules import SampledMolecules
from grpo_pipeline.tasks.molecules.rewards.params import WindowReward

Entry = Mapping[str, Any]
NEVER = "the start never hits the window"
TAILS = (0.025, 0.975)


def window_document(
    molecules: SampledMolecules, *, name: str, window: WindowReward | None, start: str
) -> dict[str, Any]:
    """Compute for each group the share of graphs that are valid and in the window, and its ratio to the start's, for JSON.

    The ratio is paired: both shares are taken in the same resample. If the start never hits the window in a resample, the ratio
    is infinite; an infinite end of the interval is null.

    Args:
        molecules: molecules of all arms.
        name: column of the property.
        window: the window, ends included; None without a window in the reward.
        start: the group that the others are compared with.
    """
    document: dict[str, Any] = {
        "property": name,
        "start": start,
        "window": None,
        "shares": {},
        "ratios": {},
    }
    if window is None:
        return document
    hits = {who: is_inside(rows, name, window) for who, rows in molecules.rows.items()}
    resamples = {
        who: molecules.weights @ inside / molecules.weights.sum(axis=1)
        for who, inside in hits.items()
    }
    document["window"] = {"low": window.low, "high": window.high}
    document["shares"] = {
        who: molecules.describe(who, inside, is_in=np.ones(len(inside), bool), bounds=SHARE)
        for who, inside in hits.items()
    }
    clusters = molecules.rows[next(iter(hits))][molecules.cluster].nunique()
    if start in hits:
        document["ratios"] = {
            who: ratio_entry(
                hits[who],
                hits[start],
                resamples=(resamples[who], resamples[start]),
                clusters=clusters,
            )
            for who in hits
            if who != start
        }
    return document


def is_inside(rows: pd.DataFrame, name: str, window: WindowReward) -> np.ndarray:
    """Mark the molecules that are valid with their property in the window: 1.0, else 0.0, [n]."""
    values = column(rows, name)
    return np.asarray((values >= window.low) & (values <= window.high), dtype=np.float64)


def ratio_entry(
    hits: np.ndarray,
    before: np.ndarray,
    *,
    resamples: tuple[np.ndarray, np.ndarray],
    clusters: int,
) -> dict[str, Any]:
    """Compute mean(hits) / mean(before), with the interval of the ratio of the resamples of both, [B]."""
    if not before.any():
        return {"value": None, "ci95": None, "reason": NEVER}
    value = float(hits.mean() / before.mean())
    if reason := few_clusters_reason(clusters):
        return {"value": value, "ci95": None, "reason": reason}
    ours, theirs = resamples
    ratios = np.divide(ours, theirs, out=np.full(len(ours), np.inf), where=theirs > 0)
    ends = np.quantile(ratios, TAILS, method="inverted_cdf")
    return {
        "value": value,
        "ci95": [float(end) if np.isfinite(end) else None for end in ends],
    }


def window_table(document: Mapping[str, Any], *, title: str) -> Table | None:
    """Tabulate each group x (share in the window, times the start's); None without a window."""
    if document["window"] is None:
        return None
    ratios, start = document["ratios"], document["start"]
    rows = [
        [
            Cell(who),
            value_cell(share),
            *([ratio_cell(ratios.get(who))] if ratios else []),
        ]
        for who, share in document["shares"].items()
    ]
    heads = [
        "drawn by",
        "share of all graphs",
        *([f"times the share of {start}"] if ratios else []),
    ]
    low, high = document["window"]["low"], document["window"]["high"]
    return Table(f"Valid molecules with a {title} from {low:g} to {high:g}", heads, rows)


def ratio_cell(entry: Entry | None) -> Cell:
    """Write a ratio above its interval, marked if the interval leaves out 1; empty for the start itself."""
    if entry is None:
        return Cell("")
    if entry["value"] is None:
        return Cell("undefined", note=entry["reason"])
    ends = ["∞" if end is None else f"{end:.3f}" for end in entry["ci95"] or ()]
    note = f"[{', '.join(ends)}]" if ends else entry["reason"]
    return Cell(f"{entry['value']:.2f}", note=note, tone=mark_of(entry, "higher", neutral=1.0))
