from grpo_pipeline.tasks.attention.evaluation.summary import (
    auroc_sentence,
    lesion_sentence,
    oracle_sentences,
    pointless_sentences,
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


def entry(value, low, high):
    return {"value": value, "ci95": [low, high], "n": 9}


RATIO = entry(6.1, 5.0, 7.0)


def lesions(gain, *, has_moved=True, is_read=True):
    return lesion_sentence("grpo", RATIO, gain=gain, has_moved=has_moved, is_read=is_read)


def test_points_are_judged_beside_those_of_the_start():
    for interval, kind in (((-0.2, -0.01), -1), ((-0.01, 0.2), 0), ((0.01, 0.2), 1)):
        gain = entry(0.1, *interval)
        ending = {-1: "its points are worse.", 0: "no difference shown.", 1: "its points are better."}[kind]
        assert reward_sentence("grpo", gain).endswith(f"over those that it began with: {ending}")
        than = {-1: "less often than those.", 0: "no difference shown.", 1: "more often than those."}[kind]
        assert lesions(gain) == (
            "grpo: points fall into lesions 6.1 times as often as uniform points (95% interval 5.0 to 7.0); those of its start "
            f"6.0 times: {than}"
        )
    sentence = auroc_sentence("grpo", {"value": 0.01, "ci95": [-0.02, 0.04]}, control="supervised")
    assert sentence == "grpo: AUROC difference to supervised +0.010 (95% interval -0.020 to +0.040): no difference shown."


def test_what_was_not_learned_and_what_nobody_reads_is_called_so():
    assert lesions(entry(0.0, 0.0, 0.0), has_moved=False).endswith("; a fixed detector, not learned.")
    assert lesions(entry(3.0, 2.0, 4.0), is_read=False).endswith(": more often than those. No prediction reads them.")
    assert lesions(None).endswith("; beside its start: no statement.")
    assert sensitivity_sentence("grpo", entry(0.0, 0.0, 0.0)) == (
        "grpo: its decoder reads no point: with another core's points no probability moves."
    )
    assert sensitivity_sentence("grpo", entry(0.004, 0.0, 0.1)).endswith("moves by 0.004 on average.")


def test_what_points_are_worth_is_said_where_it_is_known():
    """Beside an arm without points; beside a decoder that says nothing without them; else how to know it."""
    document = {"baseline_arm": "grpo", "rules": {"supervised": "policy", "nothing": "none", "grpo": "policy"}}
    for gap, ending in ((entry(0.011, -0.02, 0.044), "no difference shown."), (entry(-0.2, -0.3, -0.1), "points harm.")):
        [said] = pointless_sentences(document | {"own_minus_arms": {"nothing": {"auroc": gap}}})
        assert said.startswith("grpo: AUROC minus that of nothing, an arm without any points: ")
        assert said.endswith(ending)
    document = {"baseline_arm": "grpo", "rules": {"supervised": "policy", "grpo": "policy"}}
    constant, varying = {"value": 0.5, "ci95": [0.5, 0.5], "se": 0.0}, {"value": 0.78, "ci95": [0.7, 0.8], "se": 0.03}
    for withheld, said in ((constant, "says the same of every core"), (varying, "No arm without points was trained")):
        [sentence] = pointless_sentences(document | {"baselines": {"none": {"metrics": {"auroc": withheld}}}})
        assert said in sentence
    assert pointless_sentences(document | {"baselines": {}}) == []


def test_what_is_undefined_is_not_claimed():
    said = [sentence("grpo", NO_LESION) for sentence in (sensitivity_sentence, reward_sentence)]
    said.append(lesion_sentence("grpo", NO_LESION, gain=None, has_moved=True, is_read=True))
    for sentence in (*said, auroc_sentence("grpo", NO_LESION, control="supervised")):
        assert "no statement (undefined: needs a core with a lesion outline)" in sentence
    for baselines in ({}, {"oracle": {"metrics": {"auroc": NO_LESION}}}):
        assert oracle_sentences({"baselines": baselines, "baseline_arm": "grpo"}) == []
