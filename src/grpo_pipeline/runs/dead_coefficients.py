"""Name the coefficients of a loss that have no effect, while the run is still going."""

from collections.abc import Iterable, Mapping
from typing import Any

PREFIX = "dead/"

# A coefficient can be 0 for a batch by chance: the KL at the reference, the entropy of a uniform policy.
PATIENCE = 2


class DeadCoefficients:
    """A counter of consecutive batches in which a coefficient had exactly no effect; it warns once."""

    def __init__(self) -> None:
        self._silent: dict[str, int] = {}

    def read(self, arm: str, rows: Iterable[Mapping[str, Any]]) -> list[str]:
        """Write a sentence for each coefficient that these metric rows show to be dead for the second time in a row."""
        found = []
        for row in rows:
            for metric in (name for name in row if name.startswith(PREFIX)):
                name = metric.removeprefix(PREFIX)
                count = self._silent.get(f"{arm}/{name}", 0) + 1 if row[metric] == 1.0 else 0
                self._silent[f"{arm}/{name}"] = count
                if count == PATIENCE:
                    found.append(describe(arm, name, int(row["step"])))
        return found


def describe(arm: str, name: str, step: int) -> str:
    """Write the dead coefficient and its remedy."""
    if name.startswith("reward_"):
        part = name.removeprefix("reward_")
        return (
            f"{arm}: the reward component '{part}' is the same for all samples of every group at step {step} and cancels in the "
            "advantages; make it differ between samples of one prompt, or set its weight to 0"
        )
    return (
        f"{arm}: the coefficient of '{name}' is not 0, but its gradient is exactly 0 at step {step}; find the detach, or set "
        "it to 0"
    )
