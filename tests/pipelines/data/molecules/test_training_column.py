import pytest
from sampled_graphs import all_arms, evaluation_params

from grpo_pipeline.pipelines.data.molecules.report import beside_table
from grpo_pipeline.pipelines.evaluation.nodes import compare_arms
from grpo_pipeline.tasks.molecules.metrics import METRICS


def test_training_molecules_stand_beside_policy_and_start():
    arms = all_arms()
    comparison = compare_arms(evaluation_params(), "none", **arms)
    table = beside_table(comparison, METRICS, arms["grpo"])
    training = arms["grpo"][arms["grpo"]["rule"] == "training"]
    assert table.heads == ["metric", "policy", "start", f"{len(training)} training molecules"]
    cells = dict(zip(METRICS, table.rows, strict=True))
    assert float(cells["logp"][3].text) == pytest.approx(training["logp"].mean(), abs=5e-4)
    assert (cells["validity"][3].text, cells["uniqueness"][3].text) == ("1.000", "1.000")
    assert [cells[name][3].text for name in ("novelty", "vun", "w1_atoms", "w1_logp")] == [""] * 4
    assert float(cells["validity"][2].text) == pytest.approx(
        comparison["baselines"]["start"]["metrics"]["validity"]["value"], abs=5e-4
    )


def test_predictions_without_training_molecules_leave_the_column_empty():
    arms = {arm: rows[rows["rule"] != "training"] for arm, rows in all_arms().items()}
    comparison = compare_arms(evaluation_params(), "none", **arms)
    table = beside_table(comparison, METRICS, arms["grpo"])
    assert {row[3].text for row in table.rows} == {""}
