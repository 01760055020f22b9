import pytest

from grpo_pipeline.tasks.attention.evaluation.summary import (
    auroc_sentence,
    lesion_sentence,
    oracle_sentences,
    reader_sentences,
    reward_sentence,
    sensitivity_sentence,
)


def test_the_reader_stands_in_the_summary():
    entry = {"value": -0.05, "ci95": [-0.09, -0.01], "n": 47, "reason": None}
    metrics = {"auroc_minus_reader": entry, "reader_auroc": {**entry, "value": 0.9}}
    document = {"n": {"examples": 60}, "arms": {"grpo": {"metrics": metrics}, "other": {"metrics": {}}}}
    assert reader_sentences(document) == [
        "grpo: AUROC minus that of the reader's score, 0.900, on 47 cores (13 without a score are left out of this comparison "
        "alone): -0.050 (95% interval -0.090 to -0.010): worse than the reader."
    ]
    entry.update(ci95=None, reason="one class")
    document["n"]["examples"] = 47
    assert reader_sentences(document) == ["grpo: AUROC beside the reader's score on 47 cores: no statement (one class)."]


NO_LESION = {"value": None, "ci95": None, "n": 0, "reason": "undefined: needs a core with a lesion outline"}


@pytest.mark.parametrize(
    ("judged", "worse", "none", "better"),
    [
        (reward_sentence, "its points are worse than chance.", "no difference shown.", "its points are better than chance."),
        (lesion_sentence, "avoids lesions.", "no difference shown.", "finds lesions."),
    ],
)
def test_points_are_judged_by_the_interval(judged, worse, none, better):
    """The reward beside 0, the ratio of lesions beside 1."""
    one = float(judged is lesion_sentence)
    for interval, ending in (((-0.2, -0.01), worse), ((-0.01, 0.2), none), ((0.01, 0.2), better)):
        entry = {"value": one + 5.1, "ci95": [one + end for end in interval], "n": 9}
        sentence = judged("grpo", entry)
        assert sentence.endswith(ending)
        assert "6.1 times as often as uniform points" in sentence or not one
    sentence = auroc_sentence("grpo", {"value": 0.01, "ci95": [-0.02, 0.04]}, control="supervised")
    assert sentence == "grpo: AUROC difference to supervised +0.010 (95% interval -0.020 to +0.040): no difference shown."


def test_what_is_undefined_is_not_claimed():
    said = [sentence("grpo", NO_LESION) for sentence in (lesion_sentence, sensitivity_sentence, reward_sentence)]
    for sentence in (*said, auroc_sentence("grpo", NO_LESION, control="supervised")):
        assert "no statement (undefined: needs a core with a lesion outline)" in sentence
    for baselines in ({}, {"oracle": {"metrics": {"auroc": NO_LESION}}}):
        assert oracle_sentences({"baselines": baselines, "baseline_arm": "grpo"}) == []
