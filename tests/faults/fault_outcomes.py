"""The ways in which a disturbed run may end, and how they are counted."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

GOOD = ("identical", "refused")
BAD = ("silent difference", "traceback", "earlier file lost", "no clear end")
MEANING = {
    "identical": "ended with the weights, tables, comparison and MLflow metrics of an undisturbed run",
    "refused": "ended with one sentence; nothing reported before was changed",
    "silent difference": "ended as if all was well, with other results",
    "traceback": "showed a traceback",
    "earlier file lost": "an earlier model, prediction or report was missing or changed after a run that failed",
    "no clear end": "ended without a result and without a sentence, or not at all",
}


@dataclass(frozen=True)
class Outcome:
    """How one disturbed run ended.

    Attributes:
        fault: name of the fault.
        case: which one of its cases.
        verdict: one of ``GOOD`` and ``BAD``.
        detail: the sentence, or what differed.
    """

    fault: str
    case: str
    verdict: str
    detail: str = ""

    @property
    def is_good(self) -> bool:
        """Whether it ended as it should."""
        return self.verdict in GOOD


def count(outcomes: Sequence[Outcome]) -> dict[str, Counter[str]]:
    """Return fault -> verdict -> number of cases, in the order of the faults."""
    counts: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        counts.setdefault(outcome.fault, Counter())[outcome.verdict] += 1
    return counts


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the counts as a Markdown table."""
    verdicts = [*GOOD, *BAD]
    lines = [f"| fault | cases | {' | '.join(verdicts)} |", f"|---|{'---|' * (len(verdicts) + 1)}"]
    for fault, counts in count(outcomes).items():
        cells = " | ".join(str(counts[verdict]) for verdict in verdicts)
        lines.append(f"| {fault} | {counts.total()} | {cells} |")
    return "\n".join(lines)
