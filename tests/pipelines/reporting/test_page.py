import json
import re
from html.parser import HTMLParser

import pandas as pd
import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner
from tiny_audit import audit_document

from grpo_pipeline.pipelines.data.attention.report import oracle_arms, outline_sentence, plot_roc, render_report
from grpo_pipeline.pipelines.evaluation.nodes import compare_arms
from grpo_pipeline.pipelines.reporting.pipeline import create_pipeline, plot_learning_curves
from grpo_pipeline.pipelines.reporting.tables import difference_cell, frame_table, shorten
from grpo_pipeline.tasks.attention.metrics import METRICS

PNG = b"\x89PNG\r\n\x1a\nnot really"
QUARANTINE = pd.DataFrame({"file": ["a.png"], "row": [3], "reason": ["image must be readable, got <script>alert(1)</script>"]})
DATA = {"rows": {"read": 612, "refused": 1}, "imputed": {"psa": 3}}
FETCHED = ("src", "href", "srcset", "data", "action", "poster")


class Page(HTMLParser):
    """Collects what a browser would fetch, and the text."""

    def __init__(self, html):
        super().__init__()
        self.links, self.tags, self.words = [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [(tag, name, value) for name, value in attrs if name in FETCHED]

    def handle_data(self, data):
        if self.tags[-1:] not in (["script"], ["style"]):
            self.words.append(data)


@pytest.fixture(scope="module")
def make_page(params, arms, metric_rows):
    parts = {
        "comparison": compare_arms(params, "0123abc", **arms),
        "learning_curves": plot_learning_curves(params, supervised=metric_rows(seed=1), grpo=metric_rows(seed=2)),
        "roc": plot_roc(params, **arms), "image_sheet": PNG,
        "reward_audit": audit_document(), "reward_audit_figure": PNG, "data_report": DATA, "quarantine": QUARANTINE,
        "parameters": {"attention": {"evaluation": params, "training": {"lr": 0.001}}, "other": 1},
    }  # fmt: skip
    return lambda **changes: render_report(params, **parts | changes)


def test_the_page_is_self_contained_and_shows_verdict_numbers_commit_and_configuration(make_page, params, arms):
    html = make_page()
    page, text = Page(html), " ".join(Page(html).words)
    assert [link for link in page.links if not link[2].startswith(("#", "data:"))] == []
    assert ("img", "src", "data:image/png;base64,iVBORw0KGgpub3QgcmVhbGx5") in page.links
    assert "link" not in page.tags
    assert "default-src 'none'" in html
    assert html.count("plotly.js v") == 1
    assert len(re.findall(r'"showSendToCloud": ?false', html)) == 2
    for division in ("learning-curves", "roc"):
        (data,) = re.findall(rf'Plotly\.newPlot\(\s*"{division}",\s*(\[.*?\]),\s*\{{"', html, flags=re.DOTALL)
        names = " ".join(trace.get("name", "") for trace in json.loads(data))
        assert all(arm in names for arm in arms)
    comparison = compare_arms(params, "0123abc", **arms)
    entries = [comparison["arms"][arm]["metrics"]["auroc"] for arm in arms]
    values = [t for e in entries for t in (f"{e['value']:.3f}", f"[{e['ci95'][0]:.3f}, {e['ci95'][1]:.3f}]")]
    words = ("0123abc", "240 test cores of 40 patients", "rows.read", "612", "lr: 0.001", "resamples: 100", "a.png")
    assert [word for word in (*comparison["summary"], *values, *words) if word not in text] == []
    assert "other: 1" not in text
    assert "<script>alert(1)</script>" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html


def test_names_cannot_end_the_script_and_undefined_is_shown_with_its_reason(make_page, params, arms, metric_rows):
    evil = plot_learning_curves(params, **{"</script><b>x": metric_rows(seed=1)})
    comparison = compare_arms(params, "x", **{arm: rows.assign(lesion_hit=float("nan")) for arm, rows in arms.items()})
    html = make_page(learning_curves=evil, comparison=comparison)
    assert "</script><b>x" not in html
    text = " ".join(Page(html).words)
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
    table = frame_table("Refused rows", pd.DataFrame({"row": range(60)}), limit=50)
    assert (len(table.rows), table.caption) == (50, "Refused rows: 60, the first 50 are shown")
    assert shorten("x" * 400) == "x" * 300 + " … (400 characters)"


def test_whether_outlines_taught_the_model_is_read_off_the_data() -> None:
    parameters = {"attention": {"supervised": {"algorithm": {"proposal": "oracle"}}, "grpo": {"algorithm": {}}, "training": {}}}
    arms = oracle_arms(["supervised", "grpo", "more"], parameters, task="attention")
    assert arms == ["supervised"]
    never, drawn = (
        "The lesion outline was never shown to the model.",
        "The points of supervised were drawn from lesion outlines in training.",
    )
    bag = "In 640 of 647 images the lesion outline is the bag mask too: the losses of the decoder and of the heatmap"
    for usable, masks, bags, given, start, end in (
        (647, 647, 640, [], bag, ""), (9, 4, 0, [], never, never), (9, 0, 0, [], "", ""),
        (9, 4, 0, arms, drawn, drawn), (9, 4, 2, arms, "In 2 of 9 images", drawn),
    ):  # fmt: skip
        said = outline_sentence({"usable": usable, "lesion_masks": masks, "bags_that_are_the_lesion_outline": bags}, given)
        assert said.startswith(start)
        assert said.endswith(end)
        assert bool(said) == bool(start)
        assert (never in said) == (start == never)


def test_pipeline_draws_everything_from_the_catalogue_names(params, arms, metric_rows, showcase):
    pipeline = create_pipeline("attention", list(arms))
    given = {
        "parameters": {"attention": {}}, "params:attention.evaluation": params,
        "attention.comparison": compare_arms(params, "x", **arms), "attention.reward_audit": audit_document(),
        "attention.reward_audit_figure": PNG, "attention.data_report": DATA, "attention.quarantine": QUARANTINE,
        "attention.grpo.showcase": showcase(size=32, cells=8),
    }  # fmt: skip
    given |= {f"attention.{arm}.predictions": rows for arm, rows in arms.items()}
    given |= {f"attention.{arm}.metric_rows": metric_rows(seed=1) for arm in arms}
    assert pipeline.inputs() == set(given)
    assert pipeline.outputs() == {"attention.report"}
    drawn = {f"attention.{name}" for name in ("learning_curves", "roc", "image_sheet")}
    figures = pipeline.to_outputs(*drawn)
    catalog = DataCatalog({name: MemoryDataset(given[name], copy_mode="assign") for name in figures.inputs()})
    assert set(SequentialRunner().run(figures, catalog)) == drawn
    with pytest.raises(ValueError, match="a task must be one of attention, dialogue, molecules, got 'talk'"):
        create_pipeline("talk", list(arms))
