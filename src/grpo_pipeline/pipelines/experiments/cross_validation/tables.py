"""Tabulate the result of cross-validation for its page and for Markdown, and its prediction rows."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from grpo_pipeline.pipelines.experiments.cross_validation.out_of_fold import OutOfFold
from grpo_pipeline.pipelines.reporting.markdown import markdown
from grpo_pipeline.pipelines.reporting.tables import Cell, Table, difference_cell, value_cell
from grpo_pipeline.statistics.metric import Metric
from grpo_pipeline.statistics.wording import few_clusters_sentences
from grpo_pipeline.tasks import find_task

SCHEMES = {
    "kfold": "k-fold, the test split held out",
    "nested": "nested, settings chosen in the inner folds",
    "leave_one_center_out": "leave one center out",
}


def long_predictions(rows: OutOfFold) -> pd.DataFrame:
    """Stack all rows, with the columns ``arm``, ``seed`` and ``part`` (out_of_fold or held_out) in front."""
    frames = []
    for part, arms in (("out_of_fold", rows.tested), ("held_out", rows.held_out)):
        for arm, by_seed in arms.items():
            for seed, found in by_seed.items():
                labelled = found.assign(arm=arm, seed=seed, part=part)
                frames.append(labelled[["arm", "seed", "part", *found.columns]])
    return pd.concat(frames, ignore_index=True)


def summary(result: Mapping[str, Any], metrics: Mapping[str, Metric]) -> str:
    """Write tables and sentences as Markdown: the headline with its interval, the two other averages, the held-out examples."""
    title = f"# Cross-validation of {result['task']}: {SCHEMES[result['scheme']]}"
    tables = [markdown(table) for table in page_parts(result, metrics)["tables"]]
    said = [*result["summary"], how_it_was_done(result)]
    listed = "\n".join(f"- {sentence}" for sentence in remarks(result))
    return "\n\n".join(part for part in (title, *said, *tables, listed) if part) + "\n"


def page_parts(result: Mapping[str, Any], metrics: Mapping[str, Metric]) -> dict[str, Any]:
    """Build the parts of cross_validation.html: the scheme in words, the tables, the remarks."""
    tables = [
        out_of_fold_table(result, metrics),
        folds_table(result, metrics),
        held_out_table(result, metrics),
        choices_table(result),
    ]
    return {
        "how": how_it_was_done(result),
        "tables": [table for table in tables if table is not None],
        "remarks": list(remarks(result)),
    }


def how_it_was_done(result: Mapping[str, Any]) -> str:
    """Write how many examples were divided into how many folds, and what "inside folds" means."""
    n, spec = result["n"], find_task(result["task"])
    return (
        f"{n['folds']} folds, {count(n, spec.noun)}; each {spec.noun} is predicted once per seed by a model that never saw its "
        f"{spec.words.clusters}. Inside folds: only {spec.noun}s of one fold are ranked against each other."
    )


def out_of_fold_table(result: Mapping[str, Any], metrics: Mapping[str, Metric]) -> Table:
    """Return arms x (inside folds, pooled, mean and spread over folds, difference to the control)."""
    control, headline = result["control"], result["headline"]
    heads = ["metric", "arm", "inside folds", f"- {control}"]
    heads += ["pooled", "mean over folds", "sd over folds"]
    rows = []
    for name in result["primary_metrics"]:
        for arm, found in result["arms"].items():
            values, spread = found["metrics"][name], result["spread"][arm][name]
            gap = result["differences"].get(arm, {}).get(name, {}).get(headline)
            cells = [
                Cell(metrics[name].title),
                Cell(f"{arm} (control)" if arm == control else arm),
                value_cell(values[headline]),
                difference_cell(gap, metrics[name]) if gap else Cell(""),
                value_cell(values["pooled"]),
                value_cell(values["fold_mean"]),
                Cell(number(spread["sd"])),
            ]
            rows.append(cells)
    return Table("Out of fold", heads, rows)


def folds_table(result: Mapping[str, Any], metrics: Mapping[str, Metric]) -> Table:
    """Tabulate a row per fold: its size, and the first primary metric of each arm."""
    first, arms = result["primary_metrics"][0], list(result["arms"])
    counts_classes = result["folds"][0]["test_positives"] is not None
    heads = ["fold", "train", "val", "test (label 1)" if counts_classes else "test"]
    heads += [f"{metrics[first].title}, {arm}" for arm in arms]
    rows = []
    for fold in result["folds"]:
        sizes = [str(fold["train"]), str(fold["val"]), tested(fold)]
        values = [number(result["spread"][arm][first]["folds"][fold["name"]]) for arm in arms]
        rows.append([Cell(text) for text in (fold["name"], *sizes, *values)])
    return Table("Folds", heads, rows)


def tested(fold: Mapping[str, Any]) -> str:
    """Write how many examples a fold tests, and how many of them have the label 1 if labels are 0 or 1."""
    return (
        str(fold["test"])
        if fold["test_positives"] is None
        else f"{fold['test']} ({fold['test_positives']})"
    )


def held_out_table(result: Mapping[str, Any], metrics: Mapping[str, Metric]) -> Table | None:
    """Tabulate the scores of the folds' models on the held-out examples; None without such examples."""
    held_out, control = result["held_out"], result["control"]
    if held_out is None:
        return None
    noun = find_task(result["task"]).noun
    caption = f"The held-out test split, {count(held_out['n'], noun)}; nothing was chosen on it"
    heads = ["metric", "arm", "folds' models together", f"- {control}", "mean of single models"]
    rows = []
    for name in result["primary_metrics"]:
        for arm, found in held_out["arms"].items():
            values = found["metrics"][name]
            gap = held_out["differences"].get(arm, {}).get(name, {}).get("ensemble")
            cells = [
                Cell(metrics[name].title),
                Cell(f"{arm} (control)" if arm == control else arm),
                value_cell(values["ensemble"]),
                difference_cell(gap, metrics[name]) if gap else Cell(""),
                value_cell(values["single_models"]),
            ]
            rows.append(cells)
    return Table(caption, heads, rows)


def choices_table(result: Mapping[str, Any]) -> Table | None:
    """Tabulate the chosen candidate of each outer fold; None where there was no choice."""
    if not result["choices"]:
        return None
    rows = []
    for choice in result["choices"]:
        means = ", ".join(f"{name} {number(mean)}" for name, mean in choice["means"].items())
        rows.append(
            [Cell(text) for text in (choice["fold"], choice["arm"], choice["chosen"], means)]
        )
    caption = "Settings chosen inside each outer fold, and the means over its inner folds"
    return Table(caption, ["fold", "arm", "chosen", "means"], rows)


def remarks(result: Mapping[str, Any]) -> Iterator[str]:
    """Write remarks on missing trials, undefined values, absent intervals and too few clusters."""
    held_out = result["held_out"] or {"arms": {}}
    yield from few_clusters_sentences(result["n"], "tested out of fold")
    if "n" in held_out:
        yield from few_clusters_sentences(held_out["n"])
    single = [fold["name"] for fold in result["folds"] if fold["single_class"]]
    if single:
        share = f"{len(single)} of {len(result['folds'])} folds"
        yield f"{share} test a single class and say nothing about a ranking: {', '.join(single)}"
    yield from result["notes"]
    parts = (("", result, result["headline"]), (", held out", held_out, "ensemble"))
    reasons = {
        f"{name} of {arm}{where}: {kinds[kind]['reason']}"
        for where, part, kind in parts
        for arm, found in part["arms"].items()
        for name, kinds in found["metrics"].items()
        if name in result["primary_metrics"] and "reason" in kinds[kind]
    }
    yield from sorted(reasons)


def count(n: Mapping[str, Any], noun: str) -> str:
    """Write the number of examples and of clusters."""
    return f"{n['examples']} {noun}s of {n['clusters']} clusters by {n['cluster']}"


def number(value: float | None) -> str:
    """Return a plain number, or a dash."""
    return "-" if value is None else f"{value:.3f}"
