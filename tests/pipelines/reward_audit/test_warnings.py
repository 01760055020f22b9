"""Each warning is given where its cause is put in, and none without."""

import numpy as np
import pandas as pd
import pytest
from tiny_audit import MODEL, PLAN, STYLE, rows_of, sound, with_model

from grpo_pipeline.pipelines.params import WarningLimits
from grpo_pipeline.pipelines.reward_audit.document import RewardDocument
from grpo_pipeline.pipelines.reward_audit.samples import read_samples
from grpo_pipeline.pipelines.reward_audit.warnings import find_warnings, way_to_ceiling

LIMITS = WarningLimits(trivial_share=0.0, tied_groups=0.5, constant_groups=0.95, explained_share=0.01, disagreement=0.1)


def judge(rows, **limits):
    document = RewardDocument(read_samples(rows, PLAN), PLAN, resamples=50, seed=0).build()
    return document, find_warnings(document, LIMITS.model_copy(update=limits))


def policy(name, f1, **columns):
    rows = sound()
    return pd.concat([rows[rows["policy"] != name], rows_of(name, f1, **columns)])


def only(found):
    (sentence,) = found
    return sentence


def test_a_sound_reward_has_no_warning_nor_a_trivial_policy_within_chance_of_the_start():
    assert judge(sound())[1] == []
    document, found = judge(policy("parrot", MODEL.mean(1, keepdims=True) + np.array([[0.5], [0.4], [-0.2], [-0.3]])))
    assert document["policies"]["parrot"]["more_than_start"]["value"] > 0
    assert found == []


def test_a_trivial_policy_that_is_paid_more_than_the_start_and_a_ceiling_that_is_not_paid_for():
    parrot = np.full((4, 1), 0.9)
    document, found = judge(policy("parrot", parrot, quality=0.0))
    # The model is paid mean f1 0.23333 + 0.5 * 0.4 * 0.23333 = 0.28; (0.9 - 0.28) / (1 - 0.28) = 0.861.
    assert way_to_ceiling(document, "parrot") == pytest.approx(0.62 / 0.72)
    assert only(found).startswith("a trivial policy (parrot) is paid 0.900, the start (model) 0.280 (difference +0.620 [")
    assert "86% of the way to the ceiling), and worse by quality: the reward can be raised without learning" in only(found)
    assert judge(policy("parrot", parrot), trivial_share=0.9)[1] == []
    found = judge(policy("answer", np.full((4, 1), 0.2)))[1]
    assert only(found).startswith("the ceiling (answer) is paid 0.200, not more than the start (model) 0.280 (difference -0.080")
    assert only(found).endswith("the reward does not ask for what is wanted")


TIES, LOST, CANCELS = MODEL.copy(), MODEL.copy(), np.where(np.arange(4)[:, None] == 3, STYLE, 0.1)
TIES[:2], LOST[0, 0] = 0.25, np.nan
CONSTANT = "component style is constant within groups{}: it teaches nothing there, whatever its weight"


@pytest.mark.parametrize(
    ("f1", "style", "limits", "said"),
    [
        (np.full((4, 3), 0.25), 0.0, {}, "the reward is dead: the samples of model tie in every group, and the adv"),
        (TIES, TIES, {}, "50% of the groups of model tie: they teach nothing"),
        (TIES, TIES, {"tied_groups": 0.6}, None),
        (MODEL, 0.3, {}, CONSTANT.format("")),
        (MODEL, CANCELS, {"constant_groups": 0.75}, CONSTANT.format(" in 75% of the groups")),
        (MODEL, MODEL * 0.01, {}, "component style explains 0.5% of the variance within groups: its weight hardly matters"),
        (MODEL, -0.4 * MODEL, {}, "component style pulls against the others within groups (share of the variance -0.250"),
        (LOST, STYLE, {}, "1 of 12 samples of model could not be scored: they are in no figure"),
    ],
)
def test_ties_and_components_that_teach_nothing_are_named(f1, style, limits, said):
    found = judge(with_model(f1, style=style), **limits)[1]
    assert [sentence[: len(said)] for sentence in found] == [said] if said else found == []


def test_reward_and_metric_disagree_inside_groups_only():
    quality = -MODEL + 10 * MODEL.mean(1, keepdims=True)  # better examples have better replies, but inside a group it is reversed
    rows = policy("model", MODEL, style=STYLE, quality=quality)
    rows.loc[rows["policy"] == "answer", "quality"] = 9.0
    document, found = judge(rows)
    assert document["agreement"]["model"]["reward"]["quality"]["between"]["pearson"]["value"] > 0.9
    assert only(found).startswith("reward and quality disagree within groups: rho = -")
    assert only(found).endswith("over 4 groups, where higher quality is better")
    assert judge(rows, disagreement=0.99)[1] == []


def test_a_correlation_without_an_interval_is_no_warning():
    f1 = np.full((4, 3), 0.25)
    f1[0] = [0.1, 0.2, 0.3]
    document, found = judge(with_model(f1, style=f1, quality=-f1), tied_groups=1.0, constant_groups=1.0)
    rho = document["agreement"]["model"]["reward"]["quality"]["within"]["spearman"]
    assert (rho["value"], rho["ci95"], rho["n"]) == (-1.0, None, 1)
    assert found == []
