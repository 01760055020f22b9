import numpy as np
import pandas as pd
import pytest
from tiny_audit import audit_document
from tiny_replies import evaluation_params, make_predictions

from grpo_pipeline.pipelines.data.dialogue.report import plot_scores_by_need, render_replies
from grpo_pipeline.pipelines.evaluation.nodes import compare_arms
from grpo_pipeline.pipelines.reporting.pipeline import create_pipeline, plot_learning_curves

PARAMS = evaluation_params()
ARMS = ("supervised", "reinforce", "grpo")
ROLLOUTS = pd.DataFrame(
    {
        "example_id": ["e1", "e1"],
        "needs": "story",
        "question": "persona: x context: <script>alert(1)</script>",
        "answer": "a ring",
        "sample": [0, 1],
        "reply": ["a ring", "<b>bell</b>"],
        "reward_f1": [1.0, 0.0],
        "reward": [1.0, 0.0],
        "advantage": [0.7, -0.7],
    }
)


@pytest.fixture(scope="module")
def page(metric_rows):
    arms = {arm: make_predictions(skill=0.4 + 0.2 * i, seed=i).assign(reward_brevity=0.5) for i, arm in enumerate(ARMS)}
    comparison = compare_arms(PARAMS, "0123abc", **arms)
    parts = {
        "comparison": comparison,
        "learning_curves": plot_learning_curves(PARAMS, grpo=metric_rows(seed=1).assign(**{"reply/tokens": 7.0})),
        "scores_by_need": plot_scores_by_need(PARAMS, **arms),
        "rollouts": ROLLOUTS,
        "reward_audit": audit_document(),
        "reward_audit_figure": b"",
        "data_report": {"rows": {"read": 612}},
        "token_report": {"splits": {"test": {"cut_prompt_texts": 3}}},
        "retrieval_report": {"test": {"found": np.nan, "asked": 41}},
        "quarantine": pd.DataFrame(
            {"row": [3], "example_id": ["x"], "file": ["rows.jsonl"], "reason": ["reply must not be blank"]}
        ),
        "parameters": {"dialogue": {"replies": {"temperature": 0.9}}, "attention": {"secret": 1}},
    }
    return comparison, parts, render_replies(PARAMS, **parts)


def test_the_page_holds_verdict_tables_samples_data_and_configuration(page):
    comparison, _, html = page
    for sentence in comparison["summary"]:
        assert sentence.replace("'", "&#39;") in html
    value = comparison["differences"]["grpo"]["reward"]["value"]
    for text in (
        *(
            f"{value:+.3f}",
            "Distinct-2 ↑",
            "Perplexity of the references ↓",
            "Reward, brevity component ↑",
            "grpo: its replies − the start",
        ),
        *("copy_last_turn", "needs story", "48 test examples of 12 personas", "split</dt><dd>test: 48 examples, 12 clusters"),
        *("rows.jsonl", "cut_prompt_texts", "temperature: 0.9", "0123abc", "Tokens in a reply"),
    ):
        assert text in html, text
    assert "secret" not in html


def test_what_a_model_wrote_cannot_become_markup(page):
    html = page[2]
    assert "<script>alert(1)</script>" not in html
    assert "&lt;b&gt;bell&lt;/b&gt;" in html


def test_the_pipeline_reads_what_the_run_stores():
    pipeline = create_pipeline("dialogue", ARMS)
    of_arms = {f"dialogue.{arm}.{name}" for arm in ARMS for name in ("predictions", "metric_rows")}
    reports = {f"dialogue.{name}" for name in ("comparison", "data_report", "token_report", "retrieval_report", "quarantine")}
    reports |= {"dialogue.reward_audit", "dialogue.reward_audit_figure"}
    assert pipeline.inputs() == {"params:dialogue.evaluation", "parameters", "dialogue.grpo.rollouts"} | of_arms | reports
    assert pipeline.outputs() == {"dialogue.report"}


def test_a_task_without_a_page_is_refused():
    with pytest.raises(ValueError, match="a task must be one of attention, dialogue, molecules, got 'talk'"):
        create_pipeline("talk", ARMS)
