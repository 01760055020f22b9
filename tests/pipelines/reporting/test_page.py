import io
import re
from base64 import b64decode, b64encode
from hashlib import sha256
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny_attention
import tiny_chemist
import tiny_talk
from matplotlib import rc_context
from PIL import Image
from sampled_graphs import ARMS, all_arms, evaluation_params, reward_params
from tiny_attention import section
from tiny_audit import audit_document
from tiny_replies import evaluation_params as reply_params
from tiny_replies import make_predictions as make_replies
from told_answers import unmarked

from grpo_pipeline import pipelines
from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.datasets.figure import SVG
from grpo_pipeline.pipelines.evaluation.nodes import compare_arms, state_answer
from grpo_pipeline.pipelines.reporting.page import image_source
from grpo_pipeline.pipelines.reporting.pipeline import create_pipeline, plot_learning_curves
from grpo_pipeline.pipelines.reporting.tables import difference_cell, frame_table, shorten
from grpo_pipeline.tasks.attention.evaluation.metrics import METRICS
from grpo_pipeline.tasks.attention.pipelines.report_nodes import outline_sentence, plot_roc, proposal_of, render_report
from grpo_pipeline.tasks.dialogue.pipelines.report import plot_scores_by_need, render_replies
from grpo_pipeline.tasks.molecules.pipelines.report import draw_molecules, measure_window, render_molecules

PNG = b"\x89PNG\r\n\x1a\nnot really"


def drawn(figures):
    """Return figures as the catalogue hands them to a page: the bytes of SVG files, by name where there are several."""

    def svg(figure):
        file = io.BytesIO()
        with rc_context(SVG):
            figure.savefig(file, format="svg", metadata={"Date": None})
        return file.getvalue()

    return {name: svg(one) for name, one in figures.items()} if isinstance(figures, dict) else svg(figures)


QUARANTINE = pd.DataFrame({"file": ["a.png"], "row": [3], "reason": ["image must be readable, got <script>alert(1)</script>"]})
DATA = {"rows": {"read": 612, "refused": 1}, "imputed": {"psa": 3}}


@pytest.fixture(scope="module")
def make_page(params, arms, metric_rows):
    parts = {
        "comparison": compare_arms(params, "0123abc", **arms),
        "learning_curves": drawn(plot_learning_curves(params, supervised=metric_rows(seed=1), grpo=metric_rows(seed=2))),
        "roc": drawn(plot_roc(params, **arms)), "image_sheet": PNG, "animation": b"",
        "reward_audit": audit_document(), "reward_audit_figure": PNG, "data_report": DATA, "quarantine": QUARANTINE,
        "examples": tiny_attention.make_examples(),
        "parameters": {"attention": {"evaluation": params, "training": {"lr": 0.001}}, "other": 1},
    }  # fmt: skip

    def page(**changes):
        given = parts | changes
        return unmarked(render_report(params, answer=state_answer(params, given["comparison"]), **given))

    return page


def plain(html):
    """Return a page without the bodies of its scripts and styles."""
    return re.sub(r"(?s)(<(?:script|style)[^>]*>).*?</(?:script|style)>", r"\1", html)


def words_of(html):
    return unescape(re.sub(r"<[^>]*>", " ", plain(html)))


def is_seen_in_five_seconds(html):
    """Check that a page opens with few words and numbers; return whether it begins with the verdict, in its title, too."""
    (first,) = re.findall(r'(?s)<section class="answer".*?</section>', html)
    said = words_of(first)
    title = unescape(re.search("<title>(.*)</title>", html)[1])
    verdict = re.search(r"<h1[^>]*>(.*)</h1>", first)[1]
    assert len(said.split()) <= 150
    assert len(re.findall(r"\d\.\d", said)) <= 25
    return title.endswith(f", {verdict.lower()}") and html.count("<h1") == 1 and html.index("<section") < html.index("<nav")


def test_the_page_is_self_contained_and_shows_verdict_numbers_and_configuration(make_page, params, arms, metric_rows):
    """No name ends the script, and what is undefined is shown with its reason."""
    html = make_page()
    assert is_seen_in_five_seconds(html)
    assert re.findall(r'<[^>]*(?:src|href|srcset|action|poster)="(?!data:|#)', plain(html)) == []
    assert 'src="data:image/png;base64,iVBORw0KGgpub3QgcmVhbGx5"' in html
    assert "default-src 'none'" in html
    # The curves, that of the reward once more beside the verdict, the ROC curve and the classes.
    assert html.count("<svg") == 7 + 1 + 1 + 1
    assert all(f'id="{arm} smoothed"' in html for arm in arms)
    for text in ("Policy entropy (nats)", "training step", "sensitivity"):  # texts that can be searched and read aloud
        assert text in words_of(html)
    assert "#222222" not in html.lower()  # the theme's colours
    (script,) = re.findall(r"(?s)<script>(.*?)</script>", html)
    assert f"script-src 'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" in unescape(html)
    comparison = compare_arms(params, "0123abc", **arms)
    entries = [comparison["arms"][arm]["metrics"]["auroc"] for arm in arms]
    values = [t for e in entries for t in (f"{e['value']:.3f}", f"[{e['ci95'][0]:.3f}, {e['ci95'][1]:.3f}]")]
    words = ("0123abc", "240 test cores of 40 patients", "rows.read", "612", "lr: 0.001", "resamples: 100", "a.png")
    assert [word for word in (*comparison["summary"], *values, *words) if word not in words_of(html)] == []
    assert "other: 1" not in words_of(html)
    assert "<script>alert(1)</script>" not in html
    evil = drawn(plot_learning_curves(params, **{"</script><b>x": metric_rows(seed=1)}))
    undefined = compare_arms(params, "x", **{arm: rows.assign(lesion_hit=float("nan")) for arm, rows in arms.items()})
    html = make_page(learning_curves=evil, comparison=undefined)
    assert "</script><b>x" not in html
    assert "needs a core with a lesion outline" in words_of(html)
    assert "nan" not in words_of(html).lower().split()


def test_metrics_that_only_some_rows_ask_for_are_in_the_table(make_page, params, arms):
    graded = {
        arm: rows.assign(
            **{"class": rows["label"], "prob_no": 1 - rows["prob"], "prob_yes": rows["prob"], "expected_class": rows["prob"]}
        )
        for arm, rows in arms.items()
    }
    titles = ("AUROC, yes against the other classes", "Quadratic weighted kappa of the grades", "Accuracy of the likeliest class")
    table = words_of(make_page(comparison=compare_arms(params, "x", **graded) | {"summary": []}))
    assert [title for title in titles if title not in table] == []
    assert "kappa" not in words_of(make_page())


def test_what_is_the_same_everywhere_is_said_beside_the_images(make_page, params, arms):
    dead = {"heatmap": np.broadcast_to(np.eye(8), (12, 8, 8))}
    html = make_page(comparison=compare_arms(params, "x", **arms, grpo__shown=dead))
    sentence = "grpo: the heatmap is the same everywhere: do not read it"
    assert words_of(html).count(sentence) == 2  # in the summary, and beside the images
    assert sentence in words_of(html[html.index('id="images"') : html.index('id="reward"')])
    assert sentence not in words_of(make_page())


def test_the_animation_has_a_still_picture_for_those_who_ask_for_less_motion(make_page):
    pictures, file = [Image.new("P", (3, 2), colour) for colour in (7, 1, 7)], io.BytesIO()
    pictures[0].save(file, "PNG", save_all=True, default_image=True, append_images=pictures[1:], duration=[1, 2])
    html = make_page(animation=file.getvalue())
    found = re.search(r'<source media="\(prefers-reduced-motion: reduce\)" srcset="(data:[^"]*)"><img src="(data:[^"]*)"', html)
    assert found[2] == image_source(file.getvalue())
    with Image.open(io.BytesIO(b64decode(found[1].partition(",")[2]))) as still:
        assert (getattr(still, "is_animated", False), still.size) == (False, (3, 2))
    assert "#training" in html
    assert "#training" not in make_page()


def test_a_large_picture_is_webp_on_the_page_with_its_frames_and_times():
    """A small one stays as it is; the still in front of an animation, for viewers without any, is no frame of it."""
    noise = [Image.fromarray(np.random.default_rng(seed).integers(0, 255, (200, 300), dtype=np.uint8)) for seed in range(3)]
    still, animated, small = io.BytesIO(), io.BytesIO(), io.BytesIO()
    noise[0].resize((900, 600)).save(still, "PNG")
    noise[0].save(animated, "PNG", save_all=True, default_image=True, append_images=noise[1:], duration=[100, 300])
    Image.new("L", (3, 2)).save(small, "PNG")
    assert image_source(small.getvalue()).startswith("data:image/png;")

    def shown(file):
        source = image_source(file.getvalue())
        assert source.startswith("data:image/webp;base64,")
        return Image.open(io.BytesIO(b64decode(source.partition(",")[2])))

    assert (shown(still).size, shown(still).format) == ((900, 600), "WEBP")
    moving, times = shown(animated), []
    assert (moving.size, moving.n_frames) == ((300, 200), 2)
    for number, expected in enumerate(noise[1:]):
        moving.seek(number)
        moving.load()
        times.append(moving.info["duration"])
        difference = np.abs(np.asarray(moving.convert("L"), dtype=float) - np.asarray(expected, dtype=float))
        assert difference.mean() < 25  # another frame of noise would be 85 away
    assert times == [100, 300]


def test_a_difference_is_marked_by_interval_and_direction():
    for metric, low, high, tone in [
        ("auroc", 0.01, 0.03, "better"), ("auroc", -0.03, -0.01, "worse"), ("auroc", -0.01, 0.03, ""),
        ("brier", 0.01, 0.03, "worse"), ("brier", -0.03, -0.01, "better"), ("prompt_sensitivity_samples", 0.01, 0.03, ""),
    ]:  # fmt: skip
        assert difference_cell({"value": (low + high) / 2, "ci95": [low, high]}, METRICS[metric]).tone == tone
    table = frame_table("Refused rows", pd.DataFrame({"row": range(60)}), limit=50)
    assert (len(table.rows), table.caption) == (50, "Refused rows: 60, the first 50 are shown")
    assert shorten("x" * 400) == "x" * 300 + " … (400 characters)"


def test_whether_outlines_taught_the_model_is_read_off_the_data() -> None:
    never, drawn = (
        "The lesion outline was never shown to the model.",
        "The points of supervised were drawn from lesion outlines in training.",
    )
    bag = "In 640 of 647 images the lesion outline is the bag mask too: the losses of the decoder and of the heatmap"
    arms, shown = ["supervised"], "The lesion outline of 33% of the training images was shown to losses and rewards"
    for usable, masks, bags, given, share, start, end in (
        (647, 647, 640, [], 1.0, bag, ""), (9, 4, 0, [], 0.0, never, never), (9, 0, 0, [], 0.0, "", ""),
        (9, 4, 0, arms, 0.0, drawn, drawn), (9, 4, 2, arms, 0.2, "In 2 of 9 images", drawn),
        (9, 4, 0, [], 0.33, shown, "images."),
    ):  # fmt: skip
        counts = {"usable": usable, "lesion_masks": masks, "bags_that_are_the_lesion_outline": bags}
        said = outline_sentence(counts, given, share=share)
        assert said.startswith(start)
        assert said.endswith(end)
        assert (bool(said), never in said) == (bool(start), start == never)


CONTROL = {"losses": {"supervised": {"weight": 1.0}}}


@pytest.mark.parametrize(
    ("algorithm", "proposal"),
    [(CONTROL, "uniform"), (CONTROL | {"proposal": "policy"}, "policy"), (CONTROL | {"proposal": "oracle"}, "oracle"),
     ({"losses": CONTROL["losses"] | {"policy": None}}, "uniform"), (section("grpo")["algorithm"], "policy")],
)  # fmt: skip
def test_the_page_says_where_the_control_drew_its_points(make_page, params, algorithm: dict[str, Any], proposal: str) -> None:
    parameters = {"attention": {"supervised": {"algorithm": algorithm}, "training": {}}}
    assert proposal_of("supervised", parameters, params) == proposal
    said = {"uniform": "drawn uniformly", "policy": "of its own policy", "oracle": "drawn from the lesion outlines"}
    text = words_of(make_page(parameters=parameters)).split("nothing learned from reward")[0]
    assert [word for word, sentence in said.items() if f"with points {sentence}" in text] == [proposal]
    given = {"advantage": section("grpo")["algorithm"]["advantage"], "proposal": None} | algorithm
    assert AlgorithmParams.model_validate(given).proposal == proposal


READ = {
    "attention": ({"grpo.showcase", "grpo.frames"}, set(), set()),
    "dialogue": ({"token_report", "retrieval_report", "grpo.rollouts"}, set(), set()),
    "molecules": (set(), {"reward"}, {"{arm}.best_before", "{arm}.best_after", "{arm}.random_before", "{arm}.random_after"}),
}


@pytest.mark.parametrize("task", READ)
def test_the_pipeline_of_a_page_reads_what_the_run_stores(task):
    arms, (own, sections, drawn) = ("supervised", "reinforce", "grpo"), READ[task]
    pipeline = create_pipeline(task, arms)
    read = {"comparison", "answer", "data_report", "quarantine", "examples", "reward_audit", "reward_audit_figure"} | own
    read |= {f"{arm}.{name}" for arm in arms for name in ("predictions", "metric_rows")}
    sections = {f"params:{task}.{name}" for name in {"evaluation"} | sections}
    assert pipeline.inputs() == {"parameters"} | {f"{task}.{name}" for name in read} | sections
    made = {"report"} | {name.format(arm=arm) for name in drawn for arm in arms}
    assert pipeline.all_outputs() >= {f"{task}.{name}" for name in made}


TALK = reply_params()
TALKERS = ("supervised", "reinforce", "grpo")
ROLLOUTS = pd.DataFrame(
    {
        "example_id": ["e1", "e1"], "needs": "story", "question": "persona: x context: <script>alert(1)</script>",
        "answer": "a ring", "sample": [0, 1], "reply": ["a ring", "<b>bell</b>"],
        "reward_f1": [1.0, 0.0], "reward": [1.0, 0.0], "advantage": [0.7, -0.7],
    }
)  # fmt: skip
REFUSED_REPLIES = {"row": [3], "example_id": ["x"], "file": ["rows.jsonl"], "reason": ["reply must not be blank"]}


def test_the_dialogue_page_holds_verdict_tables_samples_data_and_configuration(metric_rows):
    """Text that a model wrote cannot become markup."""
    arms = {arm: make_replies(skill=0.4 + 0.2 * i, seed=i).assign(reward_brevity=0.5) for i, arm in enumerate(TALKERS)}
    comparison = compare_arms(TALK, "0123abc", **arms)
    html = render_replies(
        TALK,
        comparison=comparison, answer=state_answer(TALK, comparison),
        learning_curves=drawn(plot_learning_curves(TALK, grpo=metric_rows(seed=1).assign(**{"reply/tokens": 7.0}))),
        scores_by_need=drawn(plot_scores_by_need(TALK, **arms)),
        rollouts=ROLLOUTS, reward_audit=audit_document(), reward_audit_figure=b"",
        data_report={"rows": {"read": 612}}, token_report={"splits": {"test": {"cut_prompt_texts": 3}}},
        retrieval_report={"test": {"found": np.nan, "asked": 41}}, quarantine=pd.DataFrame(REFUSED_REPLIES),
        examples=tiny_talk.make_examples(),
        parameters={"dialogue": {"replies": {"temperature": 0.9}}, "attention": {"secret": 1}},
    )  # fmt: skip
    html = unmarked(html)
    shown = [
        *(sentence.replace("'", "&#39;") for sentence in comparison["summary"]),
        f"{comparison['differences']['grpo']['reward']['value']:+.3f}", "Distinct-2 ↑", "Perplexity of the references ↓",
        "Reward, brevity component ↑", "grpo: its replies − the start", "copy_last_turn", "needs story",
        "48 test examples of 12 subjects", "split</dt><dd>test: 48 examples, 12 clusters", "rows.jsonl", "cut_prompt_texts",
        "temperature: 0.9", "0123abc", "Tokens in a reply", "&lt;b&gt;bell&lt;/b&gt;",
    ]  # fmt: skip
    assert [text for text in shown if text not in html] == []
    assert is_seen_in_five_seconds(html)
    assert "secret" not in html
    assert "<script>alert(1)</script>" not in html


GRAPHS = evaluation_params()
REFUSED_GRAPHS = {"row": [3], "name": ["<i>x</i>"], "text": ["C(C"], "reason": ["it must be SMILES"]}


def test_the_molecule_page_shows_what_its_run_found_and_fetches_nothing():
    """Text that came with a molecule cannot become markup."""
    arms = {arm: rows.assign(cause="<script>alert(1)</script>") for arm, rows in all_arms().items()}
    comparison, drawings = compare_arms(GRAPHS, "0123abc", **all_arms()), draw_molecules(GRAPHS, **arms)
    html = render_molecules(
        GRAPHS,
        comparison=comparison, answer=state_answer(GRAPHS, comparison), predictions=arms["grpo"],
        logp_window=measure_window(GRAPHS, reward_params(), **arms),
        learning_curves={}, distributions=b"distributions", validity=b"validity",
        reward_audit=audit_document(), reward_audit_figure=b"", data_report={"rows": {"read": 612}},
        quarantine=pd.DataFrame(REFUSED_GRAPHS), examples=tiny_chemist.make_examples(),
        parameters={"molecules": {"noise": {"steps": 50}}, "attention": {"secret": 1}},
        **drawings,
    )  # fmt: skip
    html = unmarked(html)
    shown = [
        *(sentence.replace("'", "&#39;") for sentence in comparison["summary"]),
        f"{comparison['differences']['grpo']['validity']['value']:+.3f}", "Validity of the largest fragment ↑",
        "W1 distance to the training set, logP ↓", "Reward, logp component ↑", "grpo: its molecules − the start",
        "training molecules</th>", "Valid molecules with a logP from 0 to 1", "48 graphs that each arm drew",
        "split</dt><dd>test: 48 samples, 48 clusters", "After: eager", "Before: the start", "it must be SMILES",
        "&lt;i&gt;x&lt;/i&gt;", "steps: 50", "0123abc", "the reward is &lt;b&gt;dead&lt;/b&gt;", "&lt;script&gt;alert(1)",
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-", "No training metrics were recorded.",
    ]  # fmt: skip
    assert [text for text in shown if text not in html] == []
    assert is_seen_in_five_seconds(html)
    assert not [text for text in ("secret", "<script>alert") if text in html]
    pictures = ["grpo_best_before", "grpo_random_before"] + [f"{a}_{c}_after" for a in ARMS for c in ("best", "random")]
    assert len({html.index(drawings[name]) for name in pictures}) == len(pictures)
    # Two more: the share of each size in each split, and a molecule of each.
    assert html.count("<svg xmlns") == sum(drawings[name].count("<svg xmlns") for name in pictures) + 2
    assert re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', html) == []
    assert len(html.encode()) < 1_000_000


TEMPLATES = sorted(Path(pipelines.__file__).parent.rglob("*.html"))


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_no_sentence_runs_into_the_next_line_of_a_template(template):
    """A line break behind a tag such as endif is dropped, unless the tag says ``+%}``: "reward." + "All" would be one word."""
    lines = template.read_text(encoding="utf-8").splitlines()
    ends = re.compile(r"[^>\s}]\s*(\{%-?[^%]*[^+%-]%\})+$")
    joined = [(one, after) for one, after in pairwise(lines) if ends.search(one) and re.match(r"\s*[^\s<{]", after)]
    assert joined == []
