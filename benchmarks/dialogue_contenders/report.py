"""The report of ``benchmarks/dialogue_step.py``, in Markdown."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from measuring.spread import Spread, ratio

from dialogue_contenders.turns import OURS, TRL
from dialogue_contenders.with_trl import INSTALL
from dialogue_contenders.workload import Workload

# TRL's seconds over ours.
WANTED = 2.5


def format_report(report: Mapping[str, Any]) -> str:
    """Return the report as Markdown."""
    lines = [", ".join(f"{name} {value}" for name, value in report["machine"].items()), ""]
    if report["machine"]["trl"] == "not installed":
        lines += [f"TRL is not installed; for the comparison: `{INSTALL}`", ""]
    distances = ", ".join(f"{name} {value:.1e}" for name, value in report["agreement"].items())
    lines += [
        f"Gradient of the same replies, distance to ours as a share of its size: {distances}",
        "",
    ]
    lines += [line for found in report["sizes"] for line in _format_size(found)]
    return "\n".join(lines + _format_growth(report["sizes"]))


def _format_size(found: Mapping[str, Any]) -> list[str]:
    work = Workload(**found["workload"])
    prompts = f"{work.prompts} prompts of {work.prompt_tokens} tokens"
    rows = [
        f"**{prompts}, groups of {work.group_size}, replies of {work.new_tokens} tokens**",
        "",
        "| | samples per second | ms per step | CPU ms | times ours, wall | times ours, CPU | steps add, MB | highest, MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, wall in found["wall"].items():
        cells = [
            name,
            f"{work.samples / statistics.median(wall):.1f}",
            _ms(wall),
            _ms(found["cpu"][name]),
        ]
        cells += [
            _ratio_cell(ratio(found[kind][name], found[kind][OURS])) for kind in ("wall", "cpu")
        ]
        rows.append(f"| {' | '.join(cells + _memory_cells(found, name))} |")
    wanted = [
        f"Wanted: TRL takes at least {WANTED} times as long as ours, and ours no more memory.",
        "",
    ]
    return [*rows, "", *(wanted if TRL in found["wall"] else [])]


def _memory_cells(found: Mapping[str, Any], name: str) -> list[str]:
    memory = found.get("memory", {}).get(name)
    return (
        ["", ""]
        if memory is None
        else [f"{memory['peak'] - memory['held']:.0f}", f"{memory['peak']:.0f}"]
    )


def _ms(seconds: Sequence[float]) -> str:
    return f"{1000 * statistics.median(seconds):.0f}"


def _ratio_cell(value: Spread) -> str:
    return f"{value.median:.2f} ({value.low:.2f} to {value.high:.2f})"


def _format_growth(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how time and memory grow from the smallest to the largest group and reply."""
    if len(found) == 1:
        return []
    first = found[0]["workload"]
    lines = ["**Growth**: CPU ms per step, and MB that steps add", ""]
    for axis, other in (("group_size", "new_tokens"), ("new_tokens", "group_size")):
        by_value = {
            size["workload"][axis]: size
            for size in found
            if size["workload"][other] == first[other]
        }
        values = sorted(by_value)
        lines += [
            f"| {axis.replace('_', ' ')} | {' | '.join(map(str, values))} |",
            "|---" * (1 + len(values)) + "|",
        ]
        for name in found[0]["wall"]:
            cells = [_growth_cell(by_value[value], name) for value in values]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        lines.append("")
    return lines


def _growth_cell(found: Mapping[str, Any], name: str) -> str:
    memory = _memory_cells(found, name)[0]
    return f"{_ms(found['cpu'][name])} ms" + (f", {memory} MB" if memory else "")
