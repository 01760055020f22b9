"""The text of docs/conformance.md."""

from collections.abc import Mapping, Sequence

from cases import CASES, DRAWN
from outcomes import Distance
from rows import EXACT, LIBRARIES, Dispute, Row

HEAD = """# Conformance with independent implementations

Written by `make conformance` (tests/conformance/generate.py); do not edit. Each of our functions is run beside an implementation
that others have written, on random inputs, and the largest difference is shown: of the value, and of the gradient where there is
one. Wanted is at most {exact:g}. What the oracles answered on the first cases of each set is frozen in
`tests/conformance/fixtures`; the ordinary test suite compares with that and needs none of these libraries.

**Difference**: max |ours - oracle| / max(1, largest entry of the oracle's value and gradient), so that a case whose terms reach
exp(20) is judged by its own rounding. **Inputs**: float64, {count} cases per set drawn from a fixed seed
(`tests/conformance/cases.py`); the kinds take turns:

{kinds}

**Not finite** counts the cases where the oracle answers NaN or infinity; ours must be finite there. It happens in one kind of
case: a padded position holds log-probability -inf, which the oracle multiplies by a mask of 0. Ours fills masked positions before
any arithmetic. Rows and batches without any valid decision are finite in all of them: lengths are clamped to 1.

**Float64 in the oracles**: they run with `torch.set_default_dtype(torch.float64)`. With torch's own default, some constants and
quotients of integers are rounded to float32 inside them, whatever the inputs are (TRL: the Bessel factor n / (n - 1), the
temperatures of sapo; torchrl: the clip bounds, and gamma times "not done"). Where that shows, the remark says how far it takes
them off.
"""
COLUMNS = "| ours | oracle | cases | not finite | value | gradient | remark |\n|---|---|---|---|---|---|---|"
CALLED = {
    "trl": "The trainers' own methods, called on a stub with the attributes that they read: `_compute_loss`, and for the "
    "advantages `_generate_and_score_completions` with rewards in place of text.",
    "transformers": "The processors that `generate` applies to the logits, in its order.",
    "liger_kernel": "`LigerFusedLinearGRPOFunction.ppo_loss_fn`, the part that is plain torch; and the whole fused layer on CPU.",
    "torchrl": "`torchrl.objectives.value.functional` and `ClipPPOLoss` on a linear categorical policy.",
    "verl": "Functions of `verl.trainer.ppo.core_algos` with the attributes of a configuration that they read.",
    "stable_baselines3": "`RolloutBuffer.compute_returns_and_advantage` with float64 arrays put in.",
}
ON_PURPOSE = """## Where we differ on purpose

"""
DISPUTED = """## Where the oracles disagree

Cases in which either side is not finite are left out.

| question | one side | other side | cases | value | gradient | what we follow, and why |
|---|---|---|---|---|---|---|
"""


def render(rows: Sequence[Row], disputes: Sequence[tuple[Dispute, Distance]], versions: Mapping[str, str]) -> str:
    """Return the whole document."""
    kinds = "\n".join(f"- {name}: {', '.join(kinds)}" for name, (_, kinds, _) in DRAWN.items())
    parts = [HEAD.format(exact=EXACT, count=CASES, kinds=kinds)]
    for library, name in LIBRARIES.items():
        equal = [row for row in rows if row.comparison.library == library and row.comparison.wanted is not None]
        parts.append(f"## {name} {versions[name]}\n\n{CALLED[library]}\n\n{table(equal)}\n")
    parts.append(ON_PURPOSE + table([row for row in rows if row.comparison.wanted is None]) + "\n")
    parts.append(DISPUTED + "\n".join(dispute_line(dispute, found) for dispute, found in disputes) + "\n")
    return "\n".join(parts)


def table(rows: Sequence[Row]) -> str:
    """Return rows as a Markdown table."""
    return "\n".join([COLUMNS, *map(line, rows)])


def line(row: Row) -> str:
    """Return one row."""
    comparison, found = row.comparison, row.found
    cells = [comparison.ours, comparison.oracle, found.cases, found.not_finite, number(found.value), number(found.gradient)]
    return "| " + " | ".join(map(str, [*cells, remark(row)])) + " |"


def dispute_line(dispute: Dispute, found: Distance) -> str:
    """Return one row of the disputes."""
    sides = [f"{LIBRARIES[library]}, {key}" for library, key in (dispute.first, dispute.second)]
    cells = [dispute.question, *sides, found.cases, number(found.value), number(found.gradient), dispute.followed]
    return "| " + " | ".join(map(str, cells)) + " |"


def remark(row: Row) -> str:
    """Return what a reader should know of a row, the oracle's own rounding to float32 included."""
    parts = [row.comparison.remark] if row.comparison.remark else []
    by_default = max(row.found_by_default.value, row.found_by_default.gradient or 0.0)
    if row.comparison.wanted == EXACT and by_default > EXACT:
        parts.append(f"with torch's default type {number(by_default)}")
    if row.comparison.without and row.comparison.wanted is not None:
        parts.append(f"without: {', '.join(row.comparison.without)}")
    return "; ".join(parts)


def number(x: float | None) -> str:
    """Return a number with two digits, a dash for none."""
    return "–" if x is None else "0" if x == 0 else f"{x:.1e}"
