"""The summary, the forest plots and the page of a comparison."""

import re

from told_answers import unmarked

from grpo_pipeline.pipelines.evaluation.nodes import state_grid_answer
from grpo_pipeline.pipelines.evaluation.suite import build_suite
from grpo_pipeline.pipelines.experiments.compare import page_tables, tables
from grpo_pipeline.pipelines.experiments.compare.forests import forest
from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.pipelines.reporting.page import Page, render
from grpo_pipeline.pipelines.reporting.tables import Cell

EVALUATION = EvaluationParams.model_construct(task="attention", metric_options={})
METRICS = build_suite("attention", {}).metrics
SEEDS = {"n": 2, "sd": 0.1, "min": 0.6, "max": 0.7, "values": {"0": 0.6, "1": 0.7}}
SHOWN = {"value": 0.65, "ci95": [0.5, 0.8], "ci95_clusters": [0.6, 0.7], "n": 9, "seeds": SEEDS}
GAP = {"value": 0.15, "ci95": [0.1, 0.2], "seeds": SEEDS, "p": 0.004, "p_holm": 0.012, "ci95_simultaneous": [0.05, 0.25]}
WEAK = GAP | {"p_holm": 0.2}
NOTHING = {"value": None, "ci95": None, "n": 0, "reason": "undefined: no lesion", "seeds": {**SEEDS, "n": 0, "values": {}}}


def make_document():
    only = {name: METRICS[name] for name in ("auroc", "lesion_hit_ratio")}
    losses = {"kl": None, "entropy": {"weight": 0.0}}
    arm = {"base": "grpo", "rule": "policy", "set": {"algorithm": {"losses": losses, "replay": None}, "model": {}}}
    document = {
        "task": "attention", "control": "supervised", "split": "test", "seeds": [0, 1], "primary_metrics": list(only),
        "commit": "<b>abc</b>", "run": "0a1b", "n": {"examples": 9, "clusters": 3, "cluster": "patient_id"},
        "interval": {"method": "percentile bootstrap of whole clusters", "level": 0.95, "resamples": 100},
        "correction": {"method": "Holm", "family": "arms x primary metrics", "comparisons": 3},
        "arms": {name: arm | {"metrics": dict.fromkeys(only, SHOWN)} for name in ("supervised", "no_kl", "weak")},
        "differences": {
            "no_kl": {"auroc": GAP, "lesion_hit_ratio": {k: v for k, v in NOTHING.items() if k != "n"}},
            "weak": {"auroc": WEAK, "lesion_hit_ratio": WEAK},
        },
        "baselines": {"no_kl": {"oracle": {"metrics": {"auroc": SHOWN, "lesion_hit_ratio": NOTHING}}}, "weak": {}},
        "trials": {"no_kl.seed0": {"status": "failed", "seconds": 1.26, "reason": "a <sentence>"}},
        "summary": ["One & two."],
    }  # fmt: skip
    return document, only


def drawn(figure):
    """Lines of a forest by name: the numbers along the axis."""
    [axes] = figure.axes
    return {line.get_gid(): list(line.get_xdata()) for line in axes.get_lines() if line.get_gid()}


def test_the_summary_is_markdown_with_even_columns_that_fit_a_terminal():
    text = tables.summary(*make_document())
    blocks = [block.splitlines() for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)]
    assert len(blocks) == 3
    assert all({len(line) for line in lines} == {min(len(lines[0]), 120)} for lines in blocks)
    assert "| no_kl      | 0.650 [0.500, 0.800] | 0.600 to 0.700 (2) [0.600, 0.700] | +0.150 [+0.100, +0.200] | 0.012   |" in text
    assert "| supervised | 0.650 [0.500, 0.800] | 0.600 to 0.700 (2) [0.600, 0.700] | control " in text
    assert "| no_kl | oracle | 0.650 [0.500, 0.800] | -" in text
    assert text.endswith("- One & two.\n")


def test_only_what_survives_the_correction_is_marked():
    document, metrics = make_document()
    rows = {row[0].text: row for row in tables.metric_table(document, "auroc", metrics["auroc"]).rows}
    assert {arm: row[3].tone for arm, row in rows.items()} == {"supervised": "", "no_kl": "better", "weak": ""}
    assert rows["no_kl"][4:] == [Cell("[+0.050, +0.250]"), Cell("0.004"), Cell("0.012")]
    undefined = tables.metric_table(document, "lesion_hit_ratio", metrics["lesion_hit_ratio"]).rows[1]
    assert (undefined[3].text, undefined[3].note, undefined[6].text) == ("undefined", "no lesion", "")
    settings = [cell.text for cell in tables.settings_table(document).rows[1]]
    changed = "algorithm.losses.kl = null; algorithm.losses.entropy.weight = 0.0; algorithm.replay = null"
    assert settings == ["no_kl", "grpo", "policy", changed]
    assert [tables.p_text(p) for p in (1.0, 0.25, 0.0012, 0.0004)] == ["1", "0.25", "0.0012", "4.0e-04"]


def test_a_forest_shows_intervals_mean_and_seeds_and_says_where_there_is_no_value():
    document, metrics = make_document()
    figure, undefined = (forest(document, name, metrics[name]) for name in ("auroc", "lesion_hit_ratio"))
    shown = {"ci95": [0.1, 0.2], "ci95_simultaneous": [0.05, 0.25], "mean": [0.15], "seeds": [0.6, 0.7]}
    assert {f"no_kl {name}": line for name, line in shown.items()}.items() <= drawn(figure).items()
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["no_kl", "weak"]
    assert figure.axes[0].get_title(loc="left") == "AUROC"
    assert figure.axes[0].get_xlabel().startswith("difference to supervised, right is better\n")
    assert not [name for name in drawn(undefined) if name.startswith("no_kl")]
    assert [text.get_text() for text in undefined.axes[0].texts] == ["undefined"]


def test_the_page_opens_with_the_answer_and_escapes_what_it_shows():
    document, metrics = make_document()
    forests = {f"{name}.svg": f"<svg id='{name}'></svg>".encode() for name in metrics}
    answer = state_grid_answer(EVALUATION, document)
    page = Page("compare.html", document, answer, "core", "<i>", page_tables.page_parts(document, metrics, forests))
    html = unmarked(render(page))
    first = html[: html.index("<nav")]
    assert "is no_kl, the best of 2 arms, better than supervised, its control?" in first
    assert "Which arms are better than the control?" in first
    assert all(f"<svg id='{name}'>" in html for name in metrics)
    assert not re.findall(r"(?:src|href)=\"(?!data:|#)", html)
    for text in ("&lt;b&gt;abc&lt;/b&gt;", "a &lt;sentence&gt;", "One &amp; two.", "&lt;i&gt;", "no_kl.seed0", "1.3"):
        assert text in html
