"""Compare our functions with independent implementations; write docs/conformance.md and the fixtures.

    python tests/conformance/generate.py     (in an environment with the extra "oracles"; about a minute)

Exits with 1 if a row is further off than wanted; then nothing is written.
"""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).resolve().parents[2] / folder) for folder in ("src", "tests/support")]

import frozen
import torch
from cases import digest, draw
from comparisons import COMPARISONS
from disputes import DISPUTES
from document import render
from outcomes import Distance, Outcome, distance, evaluate
from rows import FROZEN, LIBRARIES, Comparison, Dispute, Row

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "conformance.md"


def load_oracles() -> dict[str, Mapping[str, Callable[[Any], Outcome]]]:
    """Import the oracle modules, library by library."""
    try:
        return {library: importlib.import_module(f"oracle_{library}").ORACLES for library in LIBRARIES}
    except ImportError as error:
        raise SystemExit(
            f"the oracles must be installed, got no {error.name}; install the extra: pip install '.[oracles]'"
        ) from error


@contextmanager
def default_type(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default type: constants and quotients of integers take it, whatever the type of the inputs."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def run(oracle: Callable[[Any], Outcome], cases: Sequence[Any], dtype: torch.dtype = torch.float64) -> list[Outcome]:
    """Return the oracle's outcomes under a default type."""
    with default_type(dtype):
        return evaluate(oracle, cases)


def measure(comparison: Comparison, oracle: Callable[[Any], Outcome]) -> Row:
    """Compare on all cases of the row."""
    cases = comparison.keep(draw(comparison.cases))
    ours = evaluate(comparison.compute, cases)
    found, by_default = (distance(ours, run(oracle, cases, dtype)) for dtype in (torch.float64, torch.float32))
    return Row(comparison, found, by_default)


def settle(dispute: Dispute, oracles: Mapping[str, Mapping[str, Callable[[Any], Outcome]]]) -> Distance:
    """Compare two oracles where both are finite."""
    (library, key), (other, other_key) = dispute.first, dispute.second
    cases = draw(dispute.cases)
    pairs = zip(run(oracles[library][key], cases), run(oracles[other][other_key], cases), strict=True)
    finite = [pair for pair in pairs if all(outcome.is_finite() for outcome in pair)]
    return distance(*zip(*finite, strict=True))


def freeze(library: str, oracles: Mapping[str, Callable[[Any], Outcome]]) -> frozen.Fixture:
    """Run a library on the first cases of each set that its rows use."""
    rows = [row for row in COMPARISONS if row.library == library]
    drawn = {row.cases: draw(row.cases, FROZEN[row.cases]) for row in rows}
    return frozen.Fixture(
        library=library,
        version=version(library),
        torch=torch.__version__.split("+")[0],
        digests={name: digest(cases) for name, cases in drawn.items()},
        outcomes={row.frozen_name: run(oracles[row.key], drawn[row.cases]) for row in rows},
    )


def main() -> None:
    """Measure, and write what was found."""
    torch.set_num_threads(1)
    oracles = load_oracles()
    rows = [measure(comparison, oracles[comparison.library][comparison.key]) for comparison in COMPARISONS]
    far = [row for row in rows if not row.is_close()]
    for row in far:
        print(f"{row.comparison.library}: {row.comparison.ours} against {row.comparison.oracle}: {row.found}", file=sys.stderr)
    if far:
        raise SystemExit(1)
    disputes = [(dispute, settle(dispute, oracles)) for dispute in DISPUTES]
    versions = {name: version(library) for library, name in LIBRARIES.items()}
    for library in LIBRARIES:
        frozen.save(freeze(library, oracles[library]))
    DOCUMENT.write_text(render(rows, disputes, versions), encoding="utf-8")


if __name__ == "__main__":
    main()
