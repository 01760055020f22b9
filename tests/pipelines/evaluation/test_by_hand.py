"""Arms, rules, seed and limits arrive in the comparison: twelve farms of two cows, of a task that no other file knows."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from grpo_pipeline.pipelines.evaluation import nodes
from grpo_pipeline.pipelines.evaluation.budget import read_budget
from grpo_pipeline.pipelines.evaluation.comparison import compare, gains_of_moved
from grpo_pipeline.pipelines.evaluation.unscored_samples import unscored_sentences
from grpo_pipeline.pipelines.experiments.compare import nodes as compare_nodes
from grpo_pipeline.pipelines.experiments.cross_validation import nodes as fold_nodes
from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.statistics.bootstrap import cluster_weights
from grpo_pipeline.statistics.columns import has_value
from grpo_pipeline.statistics.mean_metric import mean_metric
from grpo_pipeline.statistics.metric import Bar, MetricSuite, Unit

FARMS, NAN = 12, np.nan
COWS = [f"cow{number:02d}" for number in range(2 * FARMS)]
FARM = [f"farm{number // 2:02d}" for number in range(2 * FARMS)]
NOISE = np.random.default_rng(4).uniform(0.0, 1.0, 2 * FARMS)
MILK = mean_metric("milk", title="Milk", better="higher", reason="no milk", bounds=(0.0, 10.0))
SUITE = MetricSuite(
    unit=Unit("cow", "cow", ("breed",)), metrics={"milk": MILK}, rules=("own", "begun", "drift", "fixed"),
    required=("cow", "rule", "milk", "breed"), headline=("milk",),
)  # fmt: skip
PARAMS = EvaluationParams(
    task="attention", split="test", control="line", baseline_arm="net", headline_rule="own", rules={"rod": "fixed"},
    chance_rule="drift", cluster="farm", seed=5, resamples=60, metric_options={},
)  # fmt: skip


def table(**rules: Any) -> pd.DataFrame:
    """Return rows of rules, each a number or 24 of them."""
    parts = [pd.DataFrame({"cow": COWS, "farm": FARM, "breed": "x", "rule": rule, "milk": milk}) for rule, milk in rules.items()]
    return pd.concat(parts, ignore_index=True)


ARMS = {
    "net": table(own=6 + NOISE, drift=5 + NOISE[::-1], begun=2.0, fixed=9.0),
    "line": table(own=4 + NOISE[::-1], drift=3.0, begun=4 + NOISE[::-1], fixed=1.0),
    "rod": table(own=0.0, fixed=2.5, drift=8.0, begun=7.0),
}


def compared(params: EvaluationParams = PARAMS, suite: MetricSuite = SUITE, **more: Any) -> Any:
    return compare(ARMS, params, suite=suite, commit="x", **more)


def value(section: Any) -> Any:
    return pytest.approx(section["milk"]["value"] if "milk" in section else section["metrics"]["milk"]["value"])


def test_each_arm_is_judged_by_its_rule_and_compared_with_what_its_section_says() -> None:
    found, mean = compared(), NOISE.mean()
    assert [6 + mean, 4 + mean, 2.5] == [value(found["arms"][arm]) for arm in ("net", "line", "rod")]
    assert {arm: one["milk"]["value"] for arm, one in found["differences"].items()} == {
        "net": pytest.approx(2.0), "rod": pytest.approx(2.5 - 4 - mean),
    }  # fmt: skip
    # An arm with a rule of its own chooses nothing that would be better than chance.
    assert {arm: one["milk"]["value"] for arm, one in found["policy_gain"].items()} == {
        "net": pytest.approx(1.0), "line": pytest.approx(1.0 + mean),
    }  # fmt: skip
    assert list(found["baselines"]) == ["begun", "drift", "fixed"]  # of the arm net
    assert [2.0, 5 + mean, 9.0] == [value(one) for one in found["baselines"].values()]
    assert [4 + mean, 1.0, mean - 3] == [value(one) for one in found["own_minus_baseline"].values()]
    assert {arm: one["milk"]["value"] for arm, one in found["own_minus_arms"].items()} == {
        "line": pytest.approx(2.0), "rod": pytest.approx(3.5 + mean),
    }  # fmt: skip
    assert found["verdicts"] == {"begun": {"milk": "better"}, "drift": {"milk": "better"}, "fixed": {"milk": "worse"}}
    assert found["arm_verdicts"] == {"line": {"milk": "better"}, "rod": {"milk": "better"}}
    assert found["n"].items() >= {"examples": 24, "clusters": 12, "cluster": "farm"}.items()
    assert found["seed"] == 5


def test_intervals_are_those_of_the_seeds_resamples_of_whole_farms_within_the_range() -> None:
    found = compared()
    means = []
    for row in cluster_weights(pd.Series(FARM), resamples=60, seed=5):
        repeated = np.repeat(6 + NOISE, row.astype(int))
        means.append(repeated.mean())
    assert found["arms"]["net"]["metrics"]["milk"]["ci95"] == pytest.approx(np.quantile(means, [0.025, 0.975]).tolist())
    assert found["arms"]["net"]["metrics"]["milk"]["se"] == pytest.approx(np.std(means, ddof=1))
    # No resample changes 2.5: what 12 farms have not seen, u = 1 - 0.025^(1/12), on the way to 0 and to 10.
    unseen = 1 - 0.025 ** (1 / 12)
    assert found["arms"]["rod"]["metrics"]["milk"]["ci95"] == pytest.approx([2.5 - 2.5 * unseen, 2.5 + 7.5 * unseen])
    assert compared(PARAMS.model_copy(update={"seed": 6}))["arms"]["net"] != found["arms"]["net"]


@pytest.mark.parametrize(("most", "is_told"), [(1, False), (2, True)])
def test_of_many_undefined_resamples_there_is_no_interval(most: int, is_told: bool) -> None:
    def often_undefined(rows: pd.DataFrame, weights: np.ndarray) -> np.ndarray:
        return np.where(weights[:, 0] > most, NAN, weights @ rows["milk"].to_numpy() / weights.sum(axis=1))

    suite = replace(SUITE, metrics={"milk": replace(MILK, compute=often_undefined)})
    found = compared(suite=suite)
    for entry in (found["arms"]["net"]["metrics"]["milk"], found["differences"]["net"]["milk"]):
        assert 0 < entry["undefined_resamples"] < 30
        assert (entry["ci95"] is not None) == is_told


def test_what_one_would_try_instead_is_compared_with_its_arm_on_the_same_units() -> None:
    instead = table(constant=3.0)
    found = compared(instead=instead)
    assert list(found["baselines"]) == ["begun", "drift", "fixed", "constant"]
    assert value(found["own_minus_baseline"]["constant"]) == 3.0 + NOISE.mean()
    with pytest.raises(ValueError, match="constant .* got 23 cows against 24"):
        compared(instead=instead.head(23))
    with pytest.raises(ValueError, match="breed of cow 'cow00' must be the same in all arms"):
        compared(instead=instead.assign(breed="y"))


def test_a_value_rests_on_the_farms_whose_rows_it_can_use() -> None:
    """Nine farms have milk that is known: too few, though twelve are held out."""
    some = np.where(np.arange(24) < 18, 6 + NOISE, NAN)
    arms = ARMS | {"net": table(own=some, drift=5.0, begun=2.0, fixed=9.0)}
    found = compare(arms, PARAMS, suite=SUITE, commit="x")
    entry = found["arms"]["net"]["metrics"]["milk"]
    assert (entry["n"], entry["ci95"], entry["reason"]) == (18, None, "no interval: 9 clusters, fewer than 10")
    assert has_value("milk", arms["net"]).sum() == 18 + 3 * 24


def steps(n: int, **columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"split": "train", "samples": 4.0, "reward_calls": 4.0, "policy/loss": 0.1} | columns, index=range(n))


@pytest.mark.parametrize(
    ("name", "is_taught"), [("policy/loss", True), ("supervised/reads_rewards", True), ("supervised/loss", False)]
)
def test_an_arm_learns_from_reward_where_a_loss_reads_it(name: str, is_taught: bool) -> None:
    rows = pd.DataFrame({"split": ["train", "train", "val"], name: [NAN, 1.0, NAN]})
    assert read_budget(rows).learns_from_reward is is_taught
    assert not read_budget(rows.assign(**{name: NAN})).learns_from_reward


def test_the_bar_knows_starts_values_and_lengths_of_training() -> None:
    bar = Bar(metrics=("milk",), start="begun", fixed=("drift", "fixed"))
    training = {"net": steps(9), "line": steps(8), "rod": steps(8)}
    found = compared(suite=replace(SUITE, bar=bar), training=training)
    conditions = found["bar"]["net"]["milk"]["conditions"]
    # 9 is hardest; more steps than the control; the start is that of the arm itself.
    assert (conditions["fixed"]["than"], conditions["fixed"]["verdict"]) == ("fixed", "worse")
    assert conditions["control"] | {"ci95": None} == {
        "than": "line", "verdict": "no difference shown", "value": pytest.approx(2.0), "ci95": None, "trained_longer": True,
    }  # fmt: skip
    assert found["moved"] == {"net": True, "line": False}
    # Both are beaten: the one with the higher value, 5 and more beside 2, is the harder.
    beaten = compared(suite=replace(SUITE, bar=replace(bar, fixed=("begun", "drift"))))
    assert beaten["bar"]["net"]["milk"]["conditions"]["fixed"]["than"] == "drift"
    assert found["training"]["net"] == {"steps": 9, "samples": 36, "reward_calls": 36, "learns_from_reward": True}
    # Of an arm that has not moved no gain is told.
    assert gains_of_moved(found) == {"net": found["policy_gain"]["net"]}
    assert gains_of_moved(compared()) == compared()["policy_gain"]
    alone = compared(PARAMS.model_copy(update={"not_run": "trawl"}), replace(SUITE, bar=bar), training=training)
    assert alone["bar"]["line"]["milk"]["conditions"]["control"]["verdict"] == "no statement"
    assert alone["not_run"] == "trawl"


def test_of_one_sample_that_has_no_value_is_told_where_it_was_lost() -> None:
    one = {"count": 1.0, "share": 0.125}
    [said] = unscored_sentences({"net": {"fresh": {"test": one, "training": {"count": 0.0, "share": 0.0}}}})
    assert "12.5%" in said
    assert "0.0%" not in said
    assert list(unscored_sentences({"net": {"fresh": {"test": {"count": 0.0, "share": 0.0}}}})) == []


def test_the_options_of_the_metrics_arrive_at_every_node_that_computes_some(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def build(task: str, options: Any) -> MetricSuite:
        asked.append((task, dict(options)))
        return SUITE

    for module in (nodes, compare_nodes, fold_nodes):
        monkeypatch.setattr(module, "build_suite", build)
    params = PARAMS.model_copy(update={"metric_options": {"bins": 3.0}})
    nodes.compare_arms(params, "x", **ARMS)
    told: list[Any] = []
    answer = SimpleNamespace(model_copy=lambda update: SimpleNamespace(model_dump=lambda mode: update))
    of = lambda comparison, suite, seconds: told.append((comparison, suite, seconds)) or answer  # noqa: E731
    monkeypatch.setattr(nodes, "read_answer", of)
    rows = {"net": pd.DataFrame({"step_seconds": [1.5, None, 2.0]}), "line": pd.DataFrame({"step": [0]})}
    assert "threads" in nodes.state_answer(params, "comparison", **rows)["machine"]
    assert told == [("comparison", SUITE, {"net": 3.5})]
    result = {"arms": {"line": {"metrics": {"milk": {}}}}, "control": "line"}
    assert [*compare_nodes.metrics_of(params, result)] == [*fold_nodes.metrics_of(params, result)] == ["milk"]
    assert fold_nodes.suite_of(params) is SUITE
    assert asked == [("attention", {"bins": 3.0})] * 5


def test_baselines_are_fitted_with_the_seed_and_rows_of_the_split_that_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(nodes, "resolve_name", lambda name: lambda *given, seed: asked.append((*given, seed)) or ARMS["rod"])
    task = SimpleNamespace(rows=lambda data, split: (data, split))
    params = PARAMS.model_copy(update={"split": "val", "baselines": ("mean", "forest")})
    assert nodes.fit_baselines(params, task, "data") is ARMS["rod"]
    assert asked == [(task, "data", ("mean", "forest"), ("data", "val"), 5)]
    assert nodes.fit_baselines(PARAMS, task, "data").empty
    assert len(asked) == 1
