"""The report of ``benchmarks/molecules.py``, in Markdown."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from measuring.spread import ratio

from molecule_contenders.growth import exponent
from molecule_contenders.turns import (
    PAIRS,
    SAMPLE,
    SAMPLE_PLAIN,
    UPDATE,
    UPDATE_BY_CHUNKS,
    UPDATE_PLAIN,
)

WANTED_SHARE = 0.6


def format_report(report: Mapping[str, Any]) -> str:
    """Return the report as Markdown."""
    lines = [", ".join(f"{name} {value}" for name, value in report["machine"].items()), ""]
    lines += [
        "Network: " + ", ".join(f"{name} {value}" for name, value in report["network"].items()),
        "",
    ]
    found = ", ".join(f"{name} {value:.1e}" for name, value in report["agreement"].items())
    lines += [f"Distance to the plain loop on the same trajectories: {found}", ""]
    return "\n".join(
        [
            *lines,
            *_speed(report["cells"]),
            *_growth(report["cells"]),
            *_memory(report),
            *_shares(report),
        ]
    )


def _speed(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "**Molecules per second** (wall clock), and the plain loop's CPU seconds per molecule over ours: median (smallest to "
        "largest)",
        "",
        "| n | T | graphs, ours / plain | sampling | plain | ratio | update | by chunks | plain | ratio | ratio, by chunks |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        per_second = {
            name: f"{1 / statistics.median(values):.3g}" for name, values in cell["wall"].items()
        }
        ratios = {
            name: _spread(asdict(ratio(cell["cpu"][plain], cell["cpu"][ours])))
            for name, (plain, ours) in PAIRS.items()
        }
        row = [cell["nodes"], cell["steps"], f"{cell['graphs']} / {cell['plain_graphs']}"]
        row += [per_second[SAMPLE], per_second[SAMPLE_PLAIN], ratios["sampling"]]
        row += [per_second[UPDATE], per_second[UPDATE_BY_CHUNKS], per_second[UPDATE_PLAIN]]
        lines.append(_row([*row, ratios["update"], ratios["update by chunks"]]))
    return [*lines, ""]


def _growth(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the exponents: of T at every n, and of n at every T."""
    lines = [
        "**Growth**: b of CPU seconds per molecule = a * size^b",
        "",
        _row(["", *cells[0]["cpu"]]),
    ]
    lines.append("|---" * (1 + len(cells[0]["cpu"])) + "|")
    for axis, other in (("steps", "nodes"), ("nodes", "steps")):
        for fixed in sorted({cell[other] for cell in cells}):
            chosen = [cell for cell in cells if cell[other] == fixed]
            found = [_exponent_of(chosen, axis, name) for name in cells[0]["cpu"]]
            if all(value is not None for value in found):
                lines.append(
                    _row(
                        [
                            f"in {_LETTERS[axis]}, {_LETTERS[other]} = {fixed}",
                            *(f"{value:.2f}" for value in found),
                        ]
                    )
                )
    return [*lines, ""]


_LETTERS = {"steps": "T", "nodes": "n"}


def _exponent_of(cells: Iterable[Mapping[str, Any]], axis: str, name: str) -> float | None:
    return exponent({cell[axis]: statistics.median(cell["cpu"][name]) for cell in cells})


def _memory(report: Mapping[str, Any]) -> list[str]:
    found = report["memory"]
    if not found:
        return [
            "Memory is not measured: this system cannot reset the mark of its peak, or it was left out.",
            "",
        ]
    times = sorted({row["steps"] for row in found})
    work = found[0]
    lines = [
        f"**Memory**: MiB that an update adds at its peak, n = {work['nodes']}, {work['graphs']} graphs, one of them in the "
        "plain loop",
        "",
        _row(["T", *times, f"{times[-1]} / {times[0]}"]),
        "|---" * (2 + len(times)) + "|",
    ]
    for name in (UPDATE, UPDATE_BY_CHUNKS, UPDATE_PLAIN):
        values = [
            next(row["added"] for row in found if (row["name"], row["steps"]) == (name, t))
            for t in times
        ]
        lines.append(
            _row([name, *(f"{value:.0f}" for value in values), f"{values[-1] / values[0]:.2f}"])
        )
    return [*lines, ""]


def _shares(report: Mapping[str, Any]) -> list[str]:
    work = report["shares"]["workload"]
    lines = [
        f"**Matrix products**: share of the time, n = {work['nodes']}, "
        f"T = {work['steps']}, {work['graphs']} graphs; wanted {WANTED_SHARE:.0%}",
        "",
        _row(["", "of the profiler's time", "products alone, of CPU time"]),
        "|---|---|---|",
    ]
    for name, found in report["shares"]["found"].items():
        lines.append(
            _row([name, *(_spread(found[how], percent=True) for how in ("profiler", "alone"))])
        )
    return [*lines, ""]


def _spread(found: Mapping[str, float], *, percent: bool = False) -> str:
    if percent:
        return f"{found['median']:.0%} ({found['low']:.0%} to {found['high']:.0%})"
    return f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def _row(cells: Iterable[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
