import pytest
from pydantic import ValidationError

from grpo_pipeline.pipelines.experiments.trials.arms import CompareParams

GOOD = {
    "seeds": [0, 1],
    "control": "supervised",
    "arms": {"grpo": {"base": "grpo"}, "supervised": {"base": "supervised"}},
    "primary_metrics": ["auroc"],
    "baseline_rules": ["uniform"],
    "keep": "predictions",
}


def test_the_control_comes_first_and_an_arm_set_to_null_is_left_out():
    params = CompareParams.model_validate(GOOD | {"arms": GOOD["arms"] | {"ppo": None}})
    assert list(params.present) == ["supervised", "grpo"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"control": "gropo"}, r"control must be one of the arms grpo, supervised, got 'gropo'; name one of them"),
        ({"control": "grpo", "arms": GOOD["arms"] | {"grpo": None}}, "control must be one of the arms supervised"),
        ({"arms": {"supervised": {"base": "supervised"}}}, "arms must hold the control and at least one more"),
        ({"arms": GOOD["arms"] | {"../x": {"base": "grpo"}}}, r"arms must be named by small letters, digits and _, got '\.\./x'"),
        ({"seeds": [0, 0]}, r"seeds must be different numbers of at least 0, got \[0, 0\]"),
        ({"seeds": [-1]}, "seeds must be different numbers of at least 0"),
        ({"seeds": []}, "seeds"),
        ({"primary_metrics": []}, "primary_metrics"),
        ({"arms": GOOD["arms"] | {"ppo": {"base": "grpo", "sett": {}}}}, "sett"),
        ({"keep": "all"}, "keep"),
    ],
)
def test_what_cannot_be_compared_is_refused(change, message):
    with pytest.raises(ValidationError, match=message):
        CompareParams.model_validate(GOOD | change)
