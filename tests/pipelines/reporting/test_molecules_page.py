import re

import pandas as pd
from sampled_graphs import ARMS, all_arms, evaluation_params, reward_params
from tiny_audit import audit_document

from grpo_pipeline.pipelines.data.molecules.report import draw_molecules, measure_window, render_molecules
from grpo_pipeline.pipelines.evaluation.nodes import compare_arms
from grpo_pipeline.pipelines.reporting.pipeline import create_pipeline

PARAMS = evaluation_params()


QUARANTINE = {"row": [3], "name": ["<i>x</i>"], "text": ["C(C"], "reason": ["it must be SMILES"]}


def test_the_page_holds_verdict_tables_drawings_data_and_configuration_and_fetches_nothing():
    """Text that came with a molecule cannot become markup."""
    arms = {arm: rows.assign(cause="<script>alert(1)</script>") for arm, rows in all_arms().items()}
    comparison, drawn = compare_arms(PARAMS, "0123abc", **all_arms()), draw_molecules(PARAMS, **arms)
    html = render_molecules(
        PARAMS,
        comparison=comparison, predictions=arms["grpo"], logp_window=measure_window(PARAMS, reward_params(), **arms),
        curves=b"curves", distributions=b"distributions", validity=b"validity",
        reward_audit=audit_document(), reward_audit_figure=b"", data_report={"rows": {"read": 612}},
        quarantine=pd.DataFrame(QUARANTINE), parameters={"molecules": {"noise": {"steps": 50}}, "attention": {"secret": 1}},
        **drawn,
    )  # fmt: skip
    shown = [
        *(sentence.replace("'", "&#39;") for sentence in comparison["summary"]),
        f"{comparison['differences']['grpo']['validity']['value']:+.3f}", "Validity of the largest fragment ↑",
        "W1 distance to the training set, logP ↓", "Reward, logp component ↑", "grpo: its molecules − the start",
        "training molecules</th>", "Valid molecules with a logP from 0 to 1", "48 graphs that each arm drew",
        "split</dt><dd>test: 48 samples, 48 clusters", "After: eager", "Before: the start", "it must be SMILES",
        "&lt;i&gt;x&lt;/i&gt;", "steps: 50", "0123abc", "the reward is &lt;b&gt;dead&lt;/b&gt;", "&lt;script&gt;alert(1)",
        "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'\">",
    ]  # fmt: skip
    assert [text for text in shown if text not in html] == []
    assert not [text for text in ("secret", "<script", "script-src") if text in html]
    pictures = ["grpo_best_before", "grpo_random_before"] + [f"{a}_{c}_after" for a in ARMS for c in ("best", "random")]
    assert len({html.index(drawn[name]) for name in pictures}) == len(pictures)
    assert html.count("<svg xmlns") == sum(drawn[name].count("<svg xmlns") for name in pictures)
    assert re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', html) == []
    assert len(html.encode()) < 1_000_000


def test_the_pipeline_reads_what_the_run_stores():
    pipeline = create_pipeline("molecules", ARMS)
    of_arms = {f"molecules.{arm}.{name}" for arm in ARMS for name in ("predictions", "metric_rows")}
    reports = {f"molecules.{name}" for name in ("comparison", "data_report", "quarantine", "reward_audit", "reward_audit_figure")}
    params = {"params:molecules.evaluation", "params:molecules.rewards", "parameters"}
    assert pipeline.inputs() == params | of_arms | reports
    kept = {"molecules.learning_curves", "molecules.report"}
    drawn = {f"molecules.{arm}.{choice}_{when}" for arm in ARMS for choice in ("best", "random") for when in ("before", "after")}
    assert pipeline.all_outputs() >= kept | drawn
