import pytest

from grpo_pipeline.pipelines.evaluation.comparison import EvaluationParams


@pytest.fixture(scope="session")
def params():
    return EvaluationParams(
        task="attention",
        split="test",
        control="supervised",
        baseline_arm="grpo",
        headline_rule="policy",
        chance_rule="uniform",
        cluster="patient_id",
        seed=0,
        resamples=100,
        max_undefined=0.1,
        metric_options={},
    )


@pytest.fixture(scope="session")
def arms(predictions):
    return {"supervised": predictions(seed=1, skill=0.0), "grpo": predictions(seed=2, skill=1.0)}
