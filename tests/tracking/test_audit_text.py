"""The text that the command prints about a reward."""

from grpo_pipeline.tracking.reward_audit_summary import reward_audit_text


def entry(value, ci95=None):
    return {"value": value, "ci95": ci95, "n": 4}


def policy(role, reward, gap, groups=None):
    return {"role": role, "reward": entry(reward), "more_than_start": gap, "metrics": {"f1": entry(reward / 2)}, "groups": groups}


GROUPS = {"std": entry(0.125), "tied": 0.25, "components": {"f1": {"explained": entry(0.75)}, "bleu": {"explained": entry(0.25)}}}
DOCUMENT = {
    "split": "val",
    "warmup_steps": 20,
    "start": "model",
    "n": {"examples": 64, "clusters": 28, "cluster": "patient_id"},
    "policies": {
        "model": policy("start", 0.25, None, GROUPS),
        "parrot": policy("trivial", 0.5, entry(0.25, [0.125, 0.375])),
    },
    "warnings": ["a trivial policy (parrot) is paid 0.500"],
}


def test_text_golden():
    assert reward_audit_text(DOCUMENT).split("\n") == [
        "val split, 64 examples, 28 clusters by patient_id, after 20 steps of the control",
        "           role reward          more than start     f1",
        "model     start  0.250                           0.125",
        "parrot  trivial  0.500  +0.250 [+0.125, +0.375]  0.250",
        "groups of model: standard deviation 0.125, 25% tied; share of the variance: f1 0.750, bleu 0.250",
        "- a trivial policy (parrot) is paid 0.500",
    ]


def test_a_long_warning_is_wrapped_and_a_brief_text_has_no_table():
    text = reward_audit_text(DOCUMENT | {"warnings": ["so " * 60 + "much", "little"]}, is_brief=True)
    title, first, second, third = text.split("\n")
    assert title.startswith("val split")
    assert (first[:5], second[:5], third) == ("- so ", "  so ", "- little")
    assert max(map(len, text.split("\n"))) <= 120
