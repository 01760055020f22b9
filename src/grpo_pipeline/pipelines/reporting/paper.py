"""Write an answer as a paper and a model need it: LaTeX table, CSV, forest plot, methods, references, and a model card.

python -m grpo_pipeline.pipelines.reporting.paper data/08_reporting/<task> [--to paper]
"""

import argparse
import csv
import io
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import grpo_pipeline
from grpo_pipeline.datasets.figure import SVG
from grpo_pipeline.pipelines.reporting.figures import INK, plain_axes
from grpo_pipeline.statistics.answer import Answer, Change

COLUMNS = ("metric", "title", "better", "before", "after", "difference", "low", "high", "verdict")
GRPO = """@article{shao2024deepseekmath,
  title = {{DeepSeekMath}: Pushing the Limits of Mathematical Reasoning in Open Language Models},
  author = {Shao, Zhihong and Wang, Peiyi and Zhu, Qihao and Xu, Runxin and Song, Junxiao and others},
  journal = {arXiv preprint arXiv:2402.03300},
  year = {2024}
}
"""
SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def files(answer: Answer) -> dict[str, str]:
    """Return file name -> text of every file but the drawing."""
    return {
        "answer.tex": latex(answer),
        "answer.csv": table(answer),
        "methods.txt": methods(answer) + "\n",
        "references.bib": references(answer),
        "model_card.md": model_card(answer),
    }


def methods(answer: Answer) -> str:
    """Write a sentence on the methods: the compared arms, the data, and the intervals."""
    seeds = ", ".join(map(str, answer.seeds))
    spent = {name: cost.steps for name, cost in answer.cost.items()}
    steps = (
        f" for {spent[answer.arm]:,} steps"
        if len(set(spent.values())) == 1 and answer.arm in spent
        else ""
    )
    over = f"{answer.cluster}s" + (
        ", with the spread of the seeds" if len(answer.seeds) > 1 else ""
    )
    many = f" of {answer.clusters:,} {answer.cluster}s" if answer.clusters < answer.examples else ""
    return (
        f"{answer.arm} and its control {answer.control} were trained from the same start{steps} "
        f"(seed{'s' if len(answer.seeds) > 1 else ''} {seeds}) and compared on {answer.examples:,} {answer.split} "
        f"{answer.noun}s{many}; intervals are 95% intervals of the paired difference, bootstrapped over whole {over} "
        f"(grpo_pipeline {grpo_pipeline.__version__}, commit {answer.commit[:10]})."
    )


def latex(answer: Answer) -> str:
    """Return the table for LaTeX with booktabs; its caption is the sentence on the methods."""
    head = " & ".join(escaped(name) for name in answer.heads)
    rows = [
        " & ".join(
            (escaped(row.title), number(row.before), number(row.after), f"${row.gap}$")
            if row.gap
            else (escaped(row.title), number(row.before), number(row.after), "--")
        )
        for row in answer.table
    ]
    body = " \\\\\n    ".join(rows)
    return (
        "% needs \\usepackage{booktabs}\n\\begin{table}\n  \\centering\n"
        f"  \\caption{{{escaped(methods(answer))}}}\n  \\begin{{tabular}}{{lrrr}}\n    \\toprule\n"
        f"    {head} \\\\\n    \\midrule\n    {body} \\\\\n    \\bottomrule\n"
        "  \\end{tabular}\n\\end{table}\n"
    )


def table(answer: Answer) -> str:
    """Return all digits as CSV; an empty cell has no value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in answer.table:
        low, high = row.interval or (None, None)
        values = (row.before, row.after, row.difference, low, high)
        writer.writerow([row.metric, row.title, row.better, *values, row.verdict])
    return text.getvalue()


def references(answer: Answer) -> str:
    """Write the references as BibTeX: this software at its commit, and GRPO."""
    return (
        "@software{grpo_pipeline,\n  title = {grpo\\_pipeline: hybrid supervised and group-relative policy optimisation},\n"
        f"  version = {{{grpo_pipeline.__version__}}},\n  note = {{commit {answer.commit[:10]}}}\n}}\n\n{GRPO}"
    )


def model_card(answer: Answer) -> str:
    """Write a card to put beside an exported model: the answer, how it was made, how it is used, and what it does not cover."""
    model = answer.arm if answer.model is None else answer.model.name
    scored = f"{answer.examples:,} {answer.split} {answer.noun}s"
    return (
        f"---\nlibrary_name: grpo_pipeline\ntags: [{answer.task}, grpo]\n---\n"
        f"# {answer.task}: {model}\n\n{answer.markdown.strip()}\n\n"
        f"## How it was made\n{methods(answer)}\n\n"
        "## How it is used\n```python\nfrom grpo_pipeline import load\n\n"
        'model = load("folder of this model")\nanswers = model.predict(rows)\n```\n\n'
        f"## What is not shown\n{answer.not_covered} Nothing but these {scored} was scored.\n"
    )


def forest(answer: Answer) -> Figure:
    """Draw the differences of the table; each row has its own scale unless all rows show the same metric."""
    rows = [row for row in answer.table if row.difference is not None]
    figure = Figure(figsize=(6.3, 0.6 + 0.42 * max(len(rows), 1)), layout="constrained")
    panels = figure.subplots(max(len(rows), 1), 1, sharex=bool(answer.others), squeeze=False)[:, 0]
    for axes, row in zip(panels, rows, strict=False):
        _draw(axes, row)
    panels[-1].set_xlabel(answer.heads[-1], fontsize=8, color=INK)
    return figure


def _draw(axes: Axes, row: Change) -> None:
    low, high = row.interval or (None, None)
    if low is not None and high is not None:
        axes.plot([low, high], [0, 0], color=INK, linewidth=2, solid_capstyle="butt")
    axes.plot([row.difference or 0.0], [0], "o", color=INK, markersize=5)
    axes.axvline(0, color=INK, linewidth=0.8, linestyle="--")
    axes.set_yticks([0], [row.title + (" (less is better)" if row.better == "lower" else "")])
    axes.tick_params(labelsize=7, colors=INK)
    axes.set_ylim(-1, 1)
    plain_axes(axes, grid="x")


def number(value: float | None) -> str:
    """Write a value with two decimals, or a dash."""
    return "--" if value is None else f"{value:.2f}"


def escaped(text: str) -> str:
    """Escape the special characters of LaTeX in a text."""
    return re.sub(r"[\\~^&%$#_{}]", lambda found: SPECIAL.get(found[0], "\\" + found[0]), text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files beside the answer, or into another folder; return the exit status."""
    parser = argparse.ArgumentParser(prog="paper", description=str(__doc__).split("\n", 1)[0])
    parser.add_argument(
        "reports", type=Path, help="the folder of a report, which holds answer.json"
    )
    parser.add_argument(
        "--to", type=Path, help="where the files go; by default a folder paper in it"
    )
    given = parser.parse_args(arguments)
    versions = sorted((given.reports / "answer.json").glob("*/answer.json"))
    if not versions:
        print(
            f"error: {given.reports} must hold answer.json, got none; run the task or the comparison first",
            file=sys.stderr,
        )
        return 2
    answer = Answer.model_validate_json(versions[-1].read_text(encoding="utf-8"))
    folder = given.to or given.reports / "paper"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files(answer).items():
        (folder / name).write_text(text, encoding="utf-8")
    with rc_context(SVG):
        forest(answer).savefig(folder / "forest.svg", metadata={"Date": None})
    print(f"{folder}: {', '.join(sorted((*files(answer), 'forest.svg')))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
