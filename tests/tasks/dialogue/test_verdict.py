import pytest

from grpo_pipeline.tasks.dialogue.metrics import verdict
from grpo_pipeline.tasks.dialogue.warning_signs import READ_BY_PEOPLE, TRIVIAL_RULES, WarningBounds

BOUNDS = WarningBounds()
SOUND = {"reward": 1.2, "distinct_2": 0.5, "perplexity": 4.0, "length": 6.0}


def entry(value, *, spread=0.05):
    return {"value": value, "ci95": [value - spread, value + spread]}


def scores(**values):
    return {"metrics": {name: {"value": value, "ci95": None, "n": 9, "reason": "x"} for name, value in values.items()}}


def document(*, grpo=None, start=None, trivial=0.3, reward=0.2, **moved):
    """A comparison in which grpo earns 0.2 more reward; ``moved`` are differences of scores to the control, 0 if not named."""
    differences = {"reward": entry(reward)} | {name: entry(moved.get(name, 0.0)) for name in READ_BY_PEOPLE}
    baselines = {rule: scores(reward=trivial) for rule in TRIVIAL_RULES[:-1]} | {"reference": scores(reward=3.0)}
    if start is not False:
        baselines["start"] = scores(**SOUND | {"reward": 1.0} | (start or {}))
    return {
        "control": "supervised",
        "arms": {"supervised": scores(**SOUND | {"reward": 1.0}), "grpo": scores(**SOUND | (grpo or {}))},
        "differences": {"grpo": differences},
        "policy_gain": {"grpo": {"reward": entry(0.25)}, "supervised": {"reward": entry(0.0)}},
        "baselines": baselines,
    }


def said(**changes):
    return "\n".join(verdict(document(**changes), bounds=BOUNDS))


def warned(**changes):
    return [line for line in verdict(document(**changes), bounds=BOUNDS) if "WARNING" in line]


def test_the_reward_is_compared_with_the_control_and_the_start():
    text = said()
    assert (
        "grpo: its replies earn +0.200 (95% interval +0.150 to +0.250) reward against supervised: more than supervised." in text
    )
    assert "grpo: its replies earn +0.250 (95% interval +0.200 to +0.300) reward against the start: more than the start." in text
    assert "supervised: its replies earn +0.000 (95% interval -0.050 to +0.050) reward against the start: no difference" in text
    assert "less than supervised." in said(reward=-0.2)


def test_it_says_which_scores_moved_with_the_reward():
    line = "grpo: against supervised: F1, BLEU higher; ROUGE-1 lower; ROUGE-2, ROUGE-L not shown to differ."
    assert line in said(f1=0.1, bleu=0.1, rouge_1=-0.1)


def test_without_an_interval_nothing_is_claimed():
    found = document()
    found["differences"]["grpo"]["reward"] = {"value": 0.2, "ci95": None, "reason": "no interval: one cluster"}
    assert "grpo: reward against supervised: no statement (no interval: one cluster)." in verdict(found, bounds=BOUNDS)


def test_a_sound_arm_has_no_warning_and_says_what_was_looked_at():
    assert warned() == []
    for arm in ("supervised", "grpo"):
        assert f"{arm}: no bound of a warning is passed: distinct-2 fell by at most 20%" in said()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"grpo": {"distinct_2": 0.39}},
            "distinct-2 is 22% below that of the start (0.390 against 0.500; the bound is 20%): the reward is bought with",
        ),
        (
            {"grpo": {"perplexity": 8.1}},
            "the perplexity of the references is 2.0 times that of the start (8.10 against 4.00; the bound is 2 times)",
        ),
        ({"grpo": {"length": 3.9}}, "replies have shrunk to 0.65 times the length of the start (3.9 against 6.0 words"),
        ({"grpo": {"length": 9.1}}, "replies have grown to 1.52 times the length of the start (9.1 against 6.0 words"),
        ({"f1": -0.1}, "the reward rises and F1 falls: the reward does not measure what is reported"),
    ],
)
def test_one_sign_is_one_warning(change, sentence):
    (line,) = warned(**change)
    assert line.startswith(f"grpo: WARNING: {sentence}")


@pytest.mark.parametrize(
    "grpo", [{"distinct_2": 0.41}, {"perplexity": 7.9}, {"length": 4.1}, {"length": 8.9}, {"distinct_2": 0.9}]
)
def test_inside_the_bounds_nothing_is_warned_of(grpo):
    assert warned(grpo=grpo) == []


def test_a_trivial_rule_that_earns_as_much_is_named_for_each_arm_that_it_beats():
    assert warned(trivial=0.99) == []
    (line,) = warned(trivial=1.0)
    assert line.startswith("supervised: WARNING: the trivial rule constant earns 1.000 reward without a model, the arm 1.000")
    assert [line.split(":")[0] for line in warned(trivial=1.3)] == ["supervised", "grpo"]


def test_replies_that_become_alike_without_a_gain_are_not_called_bought():
    found = document(grpo={"distinct_2": 0.2}, reward=0.0)
    found["policy_gain"]["grpo"]["reward"] = entry(0.0)
    (line,) = [line for line in verdict(found, bounds=BOUNDS) if "WARNING" in line]
    assert line.endswith("the replies have become alike.")


def test_without_a_start_the_control_is_the_measure():
    (line,) = warned(start=False, grpo={"distinct_2": 0.1})
    assert "distinct-2 is 80% below that of supervised" in line


def test_the_bounds_are_parameters():
    found = document(grpo={"distinct_2": 0.45})
    assert any("WARNING" in line for line in verdict(found, bounds=WarningBounds(distinct_fall=0.05)))
