"""Write differences and their intervals as sentences, for every task."""

from collections.abc import Mapping
from typing import Any

from grpo_pipeline.statistics.bootstrap import FEW_CLUSTERS
from grpo_pipeline.statistics.metric import Direction

Entry = Mapping[str, Any]

ALPHA = 0.05  # 1 - LEVEL, which is a little more in binary


def side_of(entry: Entry | None, *, neutral: float = 0.0) -> int | None:
    """Decide on which side of the neutral value an entry lies: 1 above, -1 below, 0 neither, None without an interval.

    Every mark, verdict and sentence about a difference uses this decision. The interval ``ci95`` decides. For a difference that
    was corrected for multiple comparisons, the wider simultaneous interval decides, and the corrected p-value must be below 0.05,
    too. An end of None is infinite.
    """
    if entry is None or entry.get("ci95") is None:
        return None
    if entry.get("p_holm", 0.0) >= ALPHA:
        return 0
    low, high = entry.get("ci95_simultaneous") or entry["ci95"]
    return int(low is None or low > neutral) - int(high is not None and high < neutral)


def judge(entry: Entry, *, above: str, below: str, neutral: float = 0.0) -> str:
    """Choose the word for a difference: ``above`` or ``below`` the neutral value, or "no difference shown"."""
    side = side_of(entry, neutral=neutral)
    return {1: above, -1: below}.get(side or 0, "no difference shown")


def tone_of(entry: Entry, better: Direction, *, neutral: float = 0.0) -> str:
    """Choose "better", "worse" or "same" (not shown to differ) for an entry; "" without an interval or a good direction."""
    side = side_of(entry, neutral=neutral)
    if side is None or better == "none":
        return ""
    if side == 0:
        return "same"
    return "better" if (side > 0) == (better == "higher") else "worse"


def few_clusters_sentences(n: Mapping[str, Any], taking_part: str = "held out") -> list[str]:
    """Write that there are too few clusters for any interval; empty where there are enough.

    Args:
        n: ``clusters``, their number, and ``cluster``, the column that names them.
        taking_part: how the clusters are used, such as "held out".
    """
    if n["clusters"] >= FEW_CLUSTERS:
        return []
    return [
        f"Only {n['clusters']} clusters by {n['cluster']} are {taking_part}, fewer than {FEW_CLUSTERS}: there are no intervals, "
        "and nothing is shown to be better or worse."
    ]


def signed(entry: Entry) -> str:
    """Write a difference with its sign and interval: ``+0.012 (95% interval -0.020 to +0.041)``."""
    low, high = entry["ci95"]
    return f"{entry['value']:+.3f} (95% interval {low:+.3f} to {high:+.3f})"
