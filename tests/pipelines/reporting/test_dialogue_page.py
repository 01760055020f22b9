import numpy as np
import pandas as pd
from tiny_audit import audit_document
from tiny_replies import evaluation_params, make_predictions

from grpo_pipeline.pipelines.data.dialogue.report import plot_scores_by_need, render_replies
from grpo_pipeline.pipelines.evaluation.nodes import compare_arms
from grpo_pipeline.pipelines.reporting.pipeline import create_pipeline, plot_learning_curves

PARAMS = evaluation_params()
ARMS = ("supervised", "reinforce", "grpo")
ROLLOUTS = pd.DataFrame(
    {
        "example_id": ["e1", "e1"], "needs": "story", "question": "persona: x context: <script>alert(1)</script>",
        "answer": "a ring", "sample": [0, 1], "reply": ["a ring", "<b>bell</b>"],
        "reward_f1": [1.0, 0.0], "reward": [1.0, 0.0], "advantage": [0.7, -0.7],
    }
)  # fmt: skip
QUARANTINE = {"row": [3], "example_id": ["x"], "file": ["rows.jsonl"], "reason": ["reply must not be blank"]}


def test_the_page_holds_verdict_tables_samples_data_and_configuration(metric_rows):
    """Text that a model wrote cannot become markup."""
    arms = {arm: make_predictions(skill=0.4 + 0.2 * i, seed=i).assign(reward_brevity=0.5) for i, arm in enumerate(ARMS)}
    comparison = compare_arms(PARAMS, "0123abc", **arms)
    html = render_replies(
        PARAMS,
        comparison=comparison,
        learning_curves=plot_learning_curves(PARAMS, grpo=metric_rows(seed=1).assign(**{"reply/tokens": 7.0})),
        scores_by_need=plot_scores_by_need(PARAMS, **arms),
        rollouts=ROLLOUTS, reward_audit=audit_document(), reward_audit_figure=b"",
        data_report={"rows": {"read": 612}}, token_report={"splits": {"test": {"cut_prompt_texts": 3}}},
        retrieval_report={"test": {"found": np.nan, "asked": 41}}, quarantine=pd.DataFrame(QUARANTINE),
        parameters={"dialogue": {"replies": {"temperature": 0.9}}, "attention": {"secret": 1}},
    )  # fmt: skip
    shown = [
        *(sentence.replace("'", "&#39;") for sentence in comparison["summary"]),
        f"{comparison['differences']['grpo']['reward']['value']:+.3f}", "Distinct-2 ↑", "Perplexity of the references ↓",
        "Reward, brevity component ↑", "grpo: its replies − the start", "copy_last_turn", "needs story",
        "48 test examples of 12 personas", "split</dt><dd>test: 48 examples, 12 clusters", "rows.jsonl", "cut_prompt_texts",
        "temperature: 0.9", "0123abc", "Tokens in a reply", "&lt;b&gt;bell&lt;/b&gt;",
    ]  # fmt: skip
    assert [text for text in shown if text not in html] == []
    assert "secret" not in html
    assert "<script>alert(1)</script>" not in html


def test_the_pipeline_reads_what_the_run_stores():
    pipeline = create_pipeline("dialogue", ARMS)
    of_arms = {f"dialogue.{arm}.{name}" for arm in ARMS for name in ("predictions", "metric_rows")}
    names = "comparison", "data_report", "token_report", "retrieval_report", "quarantine", "reward_audit", "reward_audit_figure"
    reports = {f"dialogue.{name}" for name in names}
    assert pipeline.inputs() == {"params:dialogue.evaluation", "parameters", "dialogue.grpo.rollouts"} | of_arms | reports
    assert pipeline.outputs() == {"dialogue.report"}
