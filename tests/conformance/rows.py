"""Rows of the tables: one of our functions beside an oracle, or two oracles beside each other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cases import DRAWN
from outcomes import Distance, Outcome

LIBRARIES = {
    "trl": "TRL",
    "transformers": "Transformers",
    "liger_kernel": "Liger Kernel",
    "torchrl": "torchrl",
    "stable_baselines3": "Stable-Baselines3",
    "verl": "verl",
}
EXACT = 1e-12
# How many cases of a set are frozen: two of each kind.
FROZEN = {name: 2 * len(kinds) for name, (_, kinds, _) in DRAWN.items()}


@dataclass(frozen=True)
class Comparison:
    """One row of the table.

    Attributes:
        key: entry of the oracle module's ``ORACLES``.
        library: the distribution's name; the module is ``oracle_<library>``.
        ours: our function and its options, for the reader.
        oracle: theirs.
        compute: our function on a case.
        cases: a set of ``cases.DRAWN``.
        wanted: the largest difference allowed, or None where the two differ on purpose; ``remark`` says why.
        without: kinds of cases that are left out.
        remark: what a reader should know.
    """

    key: str
    library: str
    ours: str
    oracle: str
    compute: Callable[[Any], Outcome]
    cases: str = "losses"
    wanted: float | None = EXACT
    without: tuple[str, ...] = ()
    remark: str = ""

    @property
    def frozen_name(self) -> str:
        """Return the name of the oracle's outcomes in the fixture; rows about parts of one set share them."""
        return f"{self.key} on {self.cases}"

    def keep(self, cases: Sequence[Any]) -> list[Any]:
        """Return the cases that this row is about."""
        return [case for case in cases if case.kind not in self.without]


@dataclass(frozen=True)
class Row:
    """A comparison, measured: the oracle run in float64 throughout, and with torch's default type."""

    comparison: Comparison
    found: Distance
    found_by_default: Distance

    def is_close(self) -> bool:
        """Say whether the row is as close as wanted; a row that differs on purpose has to differ."""
        largest = max(self.found.value, self.found.gradient or 0.0)
        return largest > EXACT if self.comparison.wanted is None else largest <= self.comparison.wanted


@dataclass(frozen=True)
class Dispute:
    """Two oracles, or two settings of one, that answer the same question differently.

    Attributes:
        question: what it is about.
        first: library and key.
        second: library and key.
        cases: a set of ``cases.DRAWN``; cases with a NaN on either side are left out.
        followed: what we do, and why.
    """

    question: str
    first: tuple[str, str]
    second: tuple[str, str]
    cases: str
    followed: str
