import json
import re
from html.parser import HTMLParser

import pandas as pd
import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner
from tiny_audit import audit_document

from grpo_pipeline.pipelines.data.attention.report import plot_roc, render_report
from grpo_pipeline.pipelines.evaluation.nodes import compare_arms
from grpo_pipeline.pipelines.reporting.pipeline import create_pipeline, plot_learning_curves
from grpo_pipeline.pipelines.reporting.tables import difference_cell, frame_table, shorten
from grpo_pipeline.tasks.attention.metrics import METRICS

PNG = b"\x89PNG\r\n\x1a\nnot really"
QUARANTINE = pd.DataFrame({"file": ["a.png"], "row": [3], "reason": ["image must be readable, got <script>alert(1)</script>"]})
DATA = {"rows": {"read": 612, "refused": 1}, "imputed": {"psa": 3}}


class Page(HTMLParser):
    """Collects what a browser would fetch, and the text."""

    def __init__(self, html):
        super().__init__()
        self.links, self.tags, self.words = [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [
            (tag, name, value) for name, value in attrs if name in ("src", "href", "srcset", "data", "action", "poster")
        ]

    def handle_data(self, data):
        if self.tags[-1:] not in (["script"], ["style"]):
            self.words.append(data)


@pytest.fixture(scope="module")
def make_page(params, arms, metric_rows):
    comparison = compare_arms(params, "0123abc", **arms)
    curves = plot_learning_curves(params, supervised=metric_rows(seed=1), grpo=metric_rows(seed=2))
    roc = plot_roc(params, **arms)

    def make(**changes):
        parts = {
            "comparison": comparison,
            "learning_curves": curves,
            "roc": roc,
            "image_sheet": PNG,
            "reward_audit": audit_document(),
            "reward_audit_figure": PNG,
            "data_report": DATA,
            "quarantine": QUARANTINE,
            "parameters": {"attention": {"evaluation": params, "training": {"lr": 0.001}}, "other": 1},
        }
        return render_report(params, **parts | changes)

    return make


@pytest.fixture(scope="module")
def html(make_page):
    return make_page()


def test_nothing_is_fetched_from_elsewhere(html):
    links = Page(html).links
    outside = [link for link in links if not link[2].startswith(("#", "data:"))]
    assert outside == []
    assert ("img", "src", "data:image/png;base64,iVBORw0KGgpub3QgcmVhbGx5") in links
    assert "link" not in Page(html).tags
    assert "default-src 'none'" in html


def test_plotly_is_inside_once_and_its_upload_button_is_off(html):
    assert html.count("plotly.js v") == 1
    assert len(re.findall(r'"showSendToCloud": ?false', html)) == 2


def test_both_figures_hold_both_arms(html):
    for division in ("learning-curves", "roc"):
        (data,) = re.findall(rf'Plotly\.newPlot\(\s*"{division}",\s*(\[.*?\]),\s*\{{"', html, flags=re.DOTALL)
        names = " ".join(trace.get("name", "") for trace in json.loads(data))
        assert "supervised" in names
        assert "grpo" in names


def test_page_shows_verdict_numbers_commit_and_configuration(html, params, arms):
    text = " ".join(Page(html).words)
    comparison = compare_arms(params, "0123abc", **arms)
    for sentence in comparison["summary"]:
        assert sentence in text
    for arm in arms:
        entry = comparison["arms"][arm]["metrics"]["auroc"]
        assert f"{entry['value']:.3f}" in text
        assert f"[{entry['ci95'][0]:.3f}, {entry['ci95'][1]:.3f}]" in text
    for word in ("0123abc", "240 test cores of 40 patients", "rows.read", "612", "lr: 0.001", "resamples: 100", "a.png"):
        assert word in text
    assert "other: 1" not in text


def test_values_are_escaped(html):
    assert "<script>alert(1)</script>" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html


def test_names_inside_figures_cannot_end_the_script(make_page, params, metric_rows):
    evil = plot_learning_curves(params, **{"</script><b>x": metric_rows(seed=1)})
    html = make_page(learning_curves=evil)
    assert "</script><b>x" not in html


def test_undefined_is_shown_with_its_reason_and_never_as_nan(make_page, params, arms):
    comparison = compare_arms(params, "x", **{arm: rows.assign(lesion_hit=float("nan")) for arm, rows in arms.items()})
    text = " ".join(Page(make_page(comparison=comparison)).words)
    assert "needs a core with a lesion outline" in text
    assert "nan" not in text.lower().split()


@pytest.mark.parametrize(
    ("metric", "interval", "tone"),
    [
        ("auroc", (0.01, 0.03), "better"),
        ("auroc", (-0.03, -0.01), "worse"),
        ("auroc", (-0.01, 0.03), ""),
        ("brier", (0.01, 0.03), "worse"),
        ("brier", (-0.03, -0.01), "better"),
        ("prompt_sensitivity_samples", (0.01, 0.03), ""),
    ],
)
def test_a_difference_is_marked_by_interval_and_direction(metric, interval, tone):
    entry = {"value": sum(interval) / 2, "ci95": list(interval)}
    assert difference_cell(entry, METRICS[metric]).tone == tone


def test_long_tables_and_values_are_cut_and_say_so():
    frame = pd.DataFrame({"row": range(60)})
    table = frame_table("Refused rows", frame, limit=50)
    assert (len(table.rows), table.caption) == (50, "Refused rows: 60, the first 50 are shown")
    assert shorten("x" * 400) == "x" * 300 + " … (400 characters)"


def test_pipeline_draws_everything_from_the_catalogue_names(params, arms, metric_rows, showcase):
    pipeline = create_pipeline("attention", list(arms))
    given = {
        "parameters": {"attention": {}},
        "params:attention.evaluation": params,
        "attention.comparison": compare_arms(params, "x", **arms),
        "attention.reward_audit": audit_document(),
        "attention.reward_audit_figure": PNG,
        "attention.data_report": DATA,
        "attention.quarantine": QUARANTINE,
        "attention.grpo.showcase": showcase(size=32, cells=8),
    }
    given |= {f"attention.{arm}.predictions": rows for arm, rows in arms.items()}
    given |= {f"attention.{arm}.metric_rows": metric_rows(seed=1) for arm in arms}
    assert pipeline.inputs() == set(given)
    assert pipeline.outputs() == {"attention.report"}
    figures = pipeline.to_outputs("attention.learning_curves", "attention.roc", "attention.image_sheet")
    catalog = DataCatalog({name: MemoryDataset(given[name], copy_mode="assign") for name in figures.inputs()})
    drawn = SequentialRunner().run(figures, catalog)
    assert set(drawn) == {"attention.learning_curves", "attention.roc", "attention.image_sheet"}
