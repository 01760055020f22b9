"""Rows of an audit become spread and correlations, against loops and scipy; the document, its table, figure and warnings."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import pearsonr, rankdata, spearmanr
from tiny_audit import MODEL, OWNERS, PLAN, STYLE, model_samples, rows_of, sound, with_model

from grpo_pipeline.pipelines.reporting.reward_section import reward_section
from grpo_pipeline.pipelines.reward_audit.agreement import agree_between, agree_within
from grpo_pipeline.pipelines.reward_audit.document import RewardDocument
from grpo_pipeline.pipelines.reward_audit.group_spread import find_constant, find_ties, measure_spread  # fmt: skip
from grpo_pipeline.pipelines.reward_audit.policy_table import policy_table
from grpo_pipeline.pipelines.reward_audit.samples import PolicySamples, read_samples
from grpo_pipeline.pipelines.reward_audit.warnings import find_no_ceiling, find_warnings, way_to_ceiling
from grpo_pipeline.statistics import bootstrap, wording

ONCE, EACH = np.ones((1, 12)), np.arange(12)
OTHER = np.array([[0.3, 0.1, 0.0], [0.0, 0.5, 0.2], [0.1, 0.1, 0.1], [0.9, 0.2, 0.4]])


@pytest.fixture(autouse=True)
def two_clusters_are_enough(request, monkeypatch):
    """Give intervals to four examples of two clusters, which can be worked out by hand."""
    if "few" not in request.node.name:
        for module in (bootstrap, wording):
            monkeypatch.setattr(module, "FEW_CLUSTERS", 2)


def build(rows=None, *, resamples=200):
    return RewardDocument(read_samples(sound() if rows is None else rows, PLAN), PLAN, resamples=resamples, seed=0).build()


def test_arrays_follow_examples_and_samples_in_any_order_of_rows():
    samples = read_samples(sound().sample(frac=1.0, random_state=0), PLAN)
    model = samples.policies["model"]
    np.testing.assert_array_equal(model.components["f1"], MODEL)
    np.testing.assert_allclose(model.reward, MODEL + 0.5 * STYLE, atol=1e-15)
    np.testing.assert_array_equal(model.metrics["quality"], MODEL)
    assert list(model.scored) == ["reward", "f1", "style"]  # what has a weight and is not in the rows is not made up
    assert samples.clusters.tolist() == list(OWNERS)
    assert {name: one.is_sampled for name, one in samples.policies.items()} == {name: name == "model" for name in PLAN.policies}


def test_incomplete_rows_are_refused():
    for spoil, message in (
        (lambda rows: rows.drop(columns="quality"), r"must have the columns .*got none named \['quality'\]"),
        (lambda rows: rows.assign(reward_new=1.0), r"every reward component must have a weight, got none for \['new'\]"),
        (lambda rows: rows.assign(reward_f1=np.inf), r"must be finite, or NaN where not scored, .*\['reward_f1'\]"),
        (lambda rows: rows[rows["policy"] != "parrot"], "same number of samples of policy parrot, got \\[\\]"),
        (lambda rows: rows.drop(index=rows.index[0]), "same number of samples of policy model, got"),
        (
            lambda rows: pd.concat([rows, rows_of("parrot", np.zeros((4, 1))).assign(name="other")[:1]]),
            "must score the same examples, got 4 of 5 for model",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            read_samples(spoil(sound().reset_index(drop=True)), PLAN)


def test_spread_is_that_of_a_loop_over_the_samples_that_were_scored():
    f1 = np.vstack([MODEL])
    f1[0, 1], f1[1, :2] = np.nan, np.nan
    for scores in (MODEL, f1):
        spread = measure_spread(model_samples(scores, style=OTHER), PLAN.weights)
        for p in range(4):
            is_known = ~np.isnan(scores[p])
            reward = (scores[p] + 0.5 * OTHER[p])[is_known]
            std = np.std(reward, ddof=1) if len(reward) > 1 else np.nan  # one sample: no deviation
            assert spread.std[p] == pytest.approx(std, abs=1e-15, nan_ok=True)
            assert spread.total[p] == pytest.approx(((reward - reward.mean()) ** 2).sum(), abs=1e-15)
            for component, values in (("f1", scores[p][is_known]), ("style", 0.5 * OTHER[p][is_known])):
                expected = sum((v - values.mean()) * (r - reward.mean()) for v, r in zip(values, reward, strict=True))
                assert spread.sums[component][p] == pytest.approx(expected, abs=1e-15)
        assert spread.is_tied.tolist() == [False, scores is f1, False, False]
        assert (spread.is_constant["style"][2], spread.is_constant["f1"][2]) == (True, False)
    nan = OTHER.copy()
    nan[0, 1] = np.nan
    level = measure_spread(model_samples(MODEL, style=1000.0), PLAN.weights)
    free = measure_spread(PolicySamples(MODEL, {"f1": MODEL, "style": nan}, {}), {"f1": 1.0, "style": 0.0})
    for spread in (level, free):  # a large part that does not differ, one of weight 0
        np.testing.assert_allclose(spread.sums["style"], 0.0, atol=1e-12)
        np.testing.assert_allclose(spread.sums["f1"], spread.total, atol=1e-12)
    # Parts tie up to the rounding of float32, rewards as in training.
    almost = np.array([[0.3, np.nextafter(np.float32(0.3), np.float32(1.0))]])
    assert (find_constant(almost).item(), find_ties(almost).item(), find_ties(almost[:, [0, 0]]).item()) == (True, False, True)


def draw(seed: int = 0, *, n: int = 12, size: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Draw a reward and a metric that agree inside groups and disagree between examples; some ties."""
    rng = np.random.default_rng(seed)
    level, reward = rng.normal(size=(n, 1)), rng.normal(size=(n, size)).round(1)
    return reward + 5 * level, (reward + rng.normal(size=(n, size))).round(1) - 5 * level


def test_agreement_is_scipys_on_what_is_left_of_each_group_and_on_the_means():
    """Unknown values leave only their own samples out; groups in which one of the two is constant say nothing."""
    reward, metric = draw()
    reward[0, 1], metric[0, 3], metric[1] = np.nan, np.nan, np.nan
    kept = [(reward[0, [0, 2, 4]], metric[0, [0, 2, 4]]), *((reward[p], metric[p]) for p in range(2, 12))]
    level = np.vstack([reward, [[1.0] * 5, [1, 2, 3, 4, 5]]]), np.vstack([metric, [[1, 2, 3, 4, 5], [2.0] * 5]])
    for pair in ((reward, metric), level):
        found = agree_within(*pair, np.ones((1, len(pair[0]))), clusters=np.arange(len(pair[0])) // 2)
        # Of two groups each, one of which the second cluster has without a value.
        assert {one.clusters for one in found.values()} == {6}
        for name, centred in (("pearson", lambda x: x - x.mean()), ("spearman", lambda x: rankdata(x) - (len(x) + 1) / 2)):
            x, y = (np.concatenate([centred(one[side]) for one in kept]) for side in (0, 1))
            assert found[name].value == pytest.approx(pearsonr(x, y).statistic, abs=1e-12)
            assert found[name].n == 11
    between, means = agree_between(reward + 1e6, metric, ONCE, clusters=EACH), np.array([(x.mean(), y.mean()) for x, y in kept])
    assert between["pearson"].value == pytest.approx(pearsonr(*means.T).statistic, abs=1e-8)
    assert between["spearman"].value == pytest.approx(spearmanr(*means.T).statistic, abs=1e-12)
    assert between["pearson"].n == 11


@pytest.mark.parametrize("correlate", [agree_within, agree_between])
def test_weights_repeat_examples_and_a_constant_metric_has_no_correlation(correlate):
    reward, metric = draw()
    weights = np.vstack([np.ones(12), np.random.default_rng(1).integers(0, 3, 12)])
    rows = np.repeat(np.arange(12), weights[1].astype(int))
    repeated = correlate(reward[rows], metric[rows], np.ones((1, len(rows))), clusters=rows)["pearson"].value
    assert correlate(reward, metric, weights, clusters=EACH)["pearson"].resamples == pytest.approx([repeated], abs=1e-9)
    found = correlate(reward, np.full_like(metric, 0.3), ONCE, clusters=EACH)["spearman"]
    assert (np.isnan(found.value), found.n, bool(found.reason)) == (True, 0, True)
    found = correlate(reward, np.full_like(metric, np.nan), np.ones((3, 12)), clusters=EACH)["pearson"]
    assert np.isnan([found.value, *found.resamples]).all()


def test_document_and_table_golden():
    document, rows = build(), sound()
    model, parrot = document["policies"]["model"], document["policies"]["parrot"]
    # mean f1 2.8 / 12, style 0.4 * that, reward f1 + style / 2
    assert model["reward"]["value"] == pytest.approx(0.28)
    assert model["metrics"]["quality"] == model["components"]["f1"]
    assert model["components"]["f1"]["value"] == pytest.approx(2.8 / 12)
    assert parrot["more_than_start"]["value"] == pytest.approx(-0.28)
    # clusters a and b have means 0.3 and 0.26: resamples are aa, ab, ba, bb
    assert parrot["more_than_start"]["ci95"] == pytest.approx([-0.3, -0.26])
    assert (model["more_than_start"], parrot["groups"]) == (None, None)
    rewards = MODEL + 0.5 * STYLE
    assert model["groups"]["std"]["value"] == pytest.approx(rewards.std(axis=1, ddof=1).mean())
    share = {name: component["explained"]["value"] for name, component in model["groups"]["components"].items()}
    centred = rewards - rewards.mean(1, keepdims=True)
    assert share["f1"] == pytest.approx((MODEL * centred).sum() / (centred**2).sum())
    assert sum(share.values()) == pytest.approx(1.0)
    assert document["n"] == {"examples": 4, "clusters": 2, "cluster": "owner"}
    assert document["agreement"].keys() == {"model"}
    assert document["agreement"]["model"]["f1"]["quality"]["within"]["pearson"]["value"] == pytest.approx(1.0)
    # A difference is taken over the examples that both have.
    rows.loc[(rows["policy"] == "parrot") & (rows["name"] == "e0"), "quality"] = np.nan
    gap = build(rows)["policies"]["parrot"]["metrics_more_than_start"]["quality"]
    assert (gap["value"], gap["n"]) == (pytest.approx(-MODEL[1:].mean()), 3)
    table = policy_table(document).set_index("policy")
    assert table["role"].to_dict() == PLAN.policies
    assert table.loc["parrot", ["reward", "more_than_start_low", "quality", "samples"]].tolist() == pytest.approx([0, -0.3, 0, 1])
    assert table.loc["parrot", "way_to_ceiling"] == pytest.approx(-0.28 / 0.72)
    assert table.loc["model", ["more_than_start", "way_to_ceiling"]].isna().all()
    assert table.loc["answer", ["group_std", "tied_groups"]].isna().all()
    assert table.loc["model", "tied_groups"] == 0


def judge(rows):
    document = build(rows, resamples=50)
    return document, find_warnings(document)


def policy(name, f1, **columns):
    rows = sound()
    return pd.concat([rows[rows["policy"] != name], rows_of(name, f1, **columns)])


def only(found):
    (sentence,) = found
    return sentence


def test_a_trivial_policy_paid_more_than_the_start_and_an_unpaid_ceiling_are_said():
    """A sound reward has no warning, nor a trivial policy within chance of the start."""
    assert judge(sound())[1] == []
    document, found = judge(policy("parrot", MODEL.mean(1, keepdims=True) + np.array([[0.5], [0.4], [-0.2], [-0.3]])))
    assert (document["policies"]["parrot"]["more_than_start"]["value"] > 0, found) == (True, [])
    parrot = np.full((4, 1), 0.9)
    document, found = judge(policy("parrot", parrot, quality=0.0))
    # The model is paid mean f1 0.23333 + 0.5 * 0.4 * 0.23333 = 0.28; (0.9 - 0.28) / (1 - 0.28) = 0.861.
    assert way_to_ceiling(document, "parrot") == pytest.approx(0.62 / 0.72)
    document["policies"]["half"] = {"role": "ceiling", "more_than_start": {"value": 0.36}}  # the highest one counts
    assert way_to_ceiling(document, "parrot") == pytest.approx(0.62 / 0.72)
    assert only(found).startswith("a trivial policy (parrot) is paid 0.900, the start (model) 0.280 (difference +0.620 [")
    assert "86% of the way to the ceiling), and worse by quality: the reward can be raised without learning" in only(found)
    found = judge(policy("answer", np.full((4, 1), 0.2)))[1]
    assert only(found).startswith("the ceiling (answer) is paid 0.200, less than the start (model) 0.280 (difference -0.080 [")
    document = {"start": "model", "policies": {"model": {"role": "start", "reward": {"value": 0.5}, "more_than_start": None}}}
    for value, interval, said in (
        (0.1, [-0.1, 0.3], "is paid 0.600, not shown to be more than"), (None, None, "could not be compared with the start"),
    ):  # fmt: skip
        gap, reward = {"value": value, "ci95": interval, "reason": "no value"}, {"value": None if value is None else 0.6}
        answer = {"role": "ceiling", "reward": reward, "more_than_start": gap, "not_scored": 4}
        assert said in only(find_no_ceiling(document | {"policies": document["policies"] | {"answer": answer}}))
    assert only(found).endswith("nothing shows that the reward asks for what is wanted")


TIES, ONE_TIES, LOST = MODEL.copy(), MODEL.copy(), MODEL.copy()
TIES[:2], ONE_TIES[0], LOST[0, 0] = 0.25, 0.25, np.nan
CONSTANT = "component style is constant within groups{}: it teaches nothing there, whatever its weight"


@pytest.mark.parametrize(
    ("f1", "style", "said"),
    [
        (np.full((4, 3), 0.25), 0.0, "the reward is dead: the samples of model tie in every group, and the adv"),
        (TIES, TIES, "50% of the groups of model tie: they teach nothing"),
        (ONE_TIES, ONE_TIES, None),
        (MODEL, 0.3, CONSTANT.format("")),
        (MODEL, MODEL * 0.01, "component style explains 0.5% of the variance within groups: its weight hardly matters"),
        (MODEL, -0.4 * MODEL, "component style pulls against the others within groups (share of the variance -0.250"),
        (LOST, STYLE, "1 of 12 samples of model could not be scored: they are in no figure"),
    ],
)
def test_ties_and_components_that_teach_nothing_are_named(f1, style, said):
    found = judge(with_model(f1, style=style))[1]
    assert [sentence[: len(said)] for sentence in found] == [said] if said else found == []


@pytest.mark.parametrize(("share", "said"), [(0.95, [CONSTANT.format(" in 95% of the groups")]), (0.94, [])])
def test_a_component_may_be_constant_within_some_groups(share, said):
    document = build(resamples=50)
    document["policies"]["model"]["groups"]["components"]["style"]["constant"] = share
    assert find_warnings(document) == said


def test_reward_and_metric_disagree_inside_groups_only():
    quality = -MODEL + 10 * MODEL.mean(1, keepdims=True)  # better examples have better replies, but inside a group it is reversed
    rows = policy("model", MODEL, style=STYLE, quality=quality)
    rows.loc[rows["policy"] == "answer", "quality"] = 9.0
    document, found = judge(rows)
    assert document["agreement"]["model"]["reward"]["quality"]["between"]["pearson"]["value"] > 0.9
    assert only(found).startswith("reward and quality disagree within groups: rho = -")
    assert only(found).endswith("over 4 groups, where higher quality is better")
    rho = document["agreement"]["model"]["reward"]["quality"]["within"]["spearman"]
    for value, is_named in ((-0.11, True), (-0.09, False)):
        rho |= {"value": value, "ci95": [-0.2, -0.05]}
        assert bool(find_warnings(document)) == is_named
    # Nor is one whose interval holds 0 a warning, of a correlation or of a component that pulls against the others.
    document = build(resamples=50)
    document["agreement"]["model"]["reward"]["quality"]["within"]["spearman"] |= {"value": -0.5, "ci95": [-0.9, 0.1]}
    document["policies"]["model"]["groups"]["components"]["style"]["explained"] |= {"value": -0.2, "ci95": [-0.5, 0.1]}
    assert find_warnings(document) == []
    # A correlation without an interval is no warning.
    f1 = np.full((4, 3), 0.25)
    f1[0] = [0.1, 0.2, 0.3]
    document, found = judge(with_model(f1, style=f1, quality=-f1))
    rho = document["agreement"]["model"]["reward"]["quality"]["within"]["spearman"]
    assert (rho["value"], rho["ci95"], rho["n"]) == (-1.0, None, 1)
    assert only(found) == "75% of the groups of model tie: they teach nothing"


def test_a_few_clusters_call_no_trivial_policy_better_and_stop_no_run_by_chance():
    """The same rows warn of the parrot with two clusters allowed; here the table tells, and the answer is paid more."""
    rows = sound()
    rows = pd.concat([rows[rows["policy"] != "parrot"], rows_of("parrot", np.full((4, 1), 0.9), quality=-1.0)])
    document = build(rows)
    assert document["policies"]["parrot"]["more_than_start"]["value"] > 0
    assert document["policies"]["parrot"]["more_than_start"]["reason"] == "no interval: 2 clusters, fewer than 10"
    [said] = find_warnings(document)
    assert said.startswith("Only 2 clusters by owner are scored, fewer than 10")
    table = reward_section({"warnings": [said], "warmup_steps": 0, "split": "val", **document}).policies
    assert not any(cell.tone for row in table.rows for cell in row)
    assert find_no_ceiling(document) == []
    poor = build(pd.concat([rows[rows["policy"] != "answer"], rows_of("answer", np.zeros((4, 1)))]))
    [found] = find_no_ceiling(poor)
    assert "not shown to be more than the start" in found
    assert "no interval: 2 clusters" in found
