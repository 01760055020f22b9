"""How often a property of a sampled molecule lies in the window that the reward pays for, and how much more often than before."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from grpo_pipeline.pipelines.evaluation.bootstrap import percentile_interval
from grpo_pipeline.pipelines.reporting.sampled_molecules import SampledMolecules
from grpo_pipeline.pipelines.reporting.tables import Cell, Table
from grpo_pipeline.tasks.columns import column
from grpo_pipeline.tasks.molecules.reward_params import WindowParams

Entry = Mapping[str, Any]
NEVER = "the start never hits the window"
TAILS = (0.025, 0.975)


def window_document(molecules: SampledMolecules, *, name: str, window: WindowParams | None, start: str) -> dict[str, Any]:
    """Return for everyone the share of graphs that are valid and in the window, and the ratio to the start's, for JSON.

    The ratio is paired: both shares are taken in the same resample. One in which the start never hits the window counts as
    infinite; an end of the interval that is infinite is null.

    Args:
        molecules: of all arms.
        name: column of the property.
        window: its ends count as inside; None where the reward has none.
        start: who the others are compared with.
    """
    document: dict[str, Any] = {"property": name, "start": start, "window": None, "shares": {}, "ratios": {}}
    if window is None:
        return document
    hits = {who: is_inside(rows, name, window) for who, rows in molecules.rows.items()}
    resamples = {who: molecules.weights @ inside / molecules.weights.sum(axis=1) for who, inside in hits.items()}
    document["window"] = {"low": window.low, "high": window.high}
    document["shares"] = {
        who: {"value": float(inside.mean()), "ci95": list(percentile_interval(resamples[who])), "n": len(inside)}
        for who, inside in hits.items()
    }
    if start in hits:
        document["ratios"] = {
            who: ratio_entry(hits[who], hits[start], resamples=(resamples[who], resamples[start])) for who in hits if who != start
        }
    return document


def is_inside(rows: pd.DataFrame, name: str, window: WindowParams) -> np.ndarray:
    """Return 1.0 where a molecule is valid and its property in the window, else 0.0, [n]."""
    values = column(rows, name)
    return np.asarray((values >= window.low) & (values <= window.high), dtype=np.float64)


def ratio_entry(hits: np.ndarray, before: np.ndarray, *, resamples: tuple[np.ndarray, np.ndarray]) -> dict[str, Any]:
    """Return mean(hits) / mean(before) with the interval of the same ratio of the resamples, ours and the start's, both [B]."""
    if not before.any():
        return {"value": None, "ci95": None, "reason": NEVER}
    ours, theirs = resamples
    ratios = np.divide(ours, theirs, out=np.full(len(ours), np.inf), where=theirs > 0)
    ends = np.quantile(ratios, TAILS, method="inverted_cdf")
    return {"value": float(hits.mean() / before.mean()), "ci95": [float(end) if np.isfinite(end) else None for end in ends]}


def window_table(document: Mapping[str, Any], *, title: str) -> Table | None:
    """Return who drew x (share in the window, times the start's); None where the reward has no window."""
    if document["window"] is None:
        return None
    ratios, start = document["ratios"], document["start"]
    rows = [
        [Cell(who), share_cell(share), *([ratio_cell(ratios.get(who))] if ratios else [])]
        for who, share in document["shares"].items()
    ]
    heads = ["drawn by", "share of all graphs", *([f"times the share of {start}"] if ratios else [])]
    low, high = document["window"]["low"], document["window"]["high"]
    return Table(f"Valid molecules with a {title} from {low:g} to {high:g}", heads, rows)


def share_cell(entry: Entry) -> Cell:
    """Return a share above its interval."""
    return Cell(f"{entry['value']:.3f}", note=ends_text(entry["ci95"]))


def ratio_cell(entry: Entry | None) -> Cell:
    """Return a ratio above its interval, marked where that leaves out 1; empty for the start itself."""
    if entry is None:
        return Cell("")
    if entry["value"] is None:
        return Cell("undefined", note=entry["reason"])
    low, high = entry["ci95"]
    tone = "better" if low is None or low > 1 else "worse" if high is not None and high < 1 else ""
    return Cell(f"{entry['value']:.2f}", note=ends_text(entry["ci95"]), tone=tone)


def ends_text(ends: list[float | None]) -> str:
    """Return an interval as text."""
    return "[" + ", ".join("∞" if end is None else f"{end:.3f}" for end in ends) + "]"
