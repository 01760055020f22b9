import pytest

from grpo_pipeline.tasks.attention.metrics import (
    auroc_sentence,
    lesion_sentence,
    oracle_sentences,
    reward_sentence,
    sensitivity_sentence,
)

NO_LESION = {"value": None, "ci95": None, "n": 0, "reason": "undefined: needs a core with a lesion outline"}


@pytest.mark.parametrize(
    ("interval", "ending"),
    [
        ((0.01, 0.2), "the policy has learned from reward."),
        ((-0.01, 0.2), "no difference shown."),
        ((-0.2, -0.01), "the policy is worse than chance."),
    ],
)
def test_reward_is_judged_by_its_interval(interval, ending):
    assert reward_sentence("grpo", {"value": 0.1, "ci95": list(interval)}).endswith(ending)


@pytest.mark.parametrize(
    ("interval", "ending"),
    [((5.0, 7.0), "finds lesions."), ((0.5, 1.5), "no difference shown."), ((0.0, 0.4), "avoids lesions.")],
)
def test_lesions_are_judged_against_a_ratio_of_one(interval, ending):
    sentence = lesion_sentence("grpo", {"value": 6.1, "ci95": list(interval), "n": 9})
    assert sentence.endswith(ending)
    assert "6.1 times as often as uniform points" in sentence


def test_auroc_sentence_names_the_control_and_the_sign():
    sentence = auroc_sentence("grpo", {"value": 0.01, "ci95": [-0.02, 0.04]}, control="supervised")
    assert sentence == "grpo: AUROC difference to supervised +0.010 (95% interval -0.020 to +0.040): no difference shown."


def test_undefined_gives_the_reason_and_no_claim():
    for sentence in (
        lesion_sentence("grpo", NO_LESION),
        sensitivity_sentence("grpo", NO_LESION),
        reward_sentence("grpo", NO_LESION),
        auroc_sentence("grpo", NO_LESION, control="supervised"),
    ):
        assert "no statement (undefined: needs a core with a lesion outline)" in sentence


def test_an_oracle_that_was_not_measured_is_not_mentioned():
    assert oracle_sentences({"baselines": {}, "baseline_arm": "grpo"}) == []
    assert oracle_sentences({"baselines": {"oracle": {"metrics": {"auroc": NO_LESION}}}, "baseline_arm": "grpo"}) == []
