from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score
from tiny_attention import GRID, SIZE, make_data, make_examples, make_task, shake
from torch import Tensor

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.pipelines.reward_audit.samples import read_samples
from grpo_pipeline.tasks.attention.batch import Outcomes, region_cells
from grpo_pipeline.tasks.attention.evaluation import point_rules
from grpo_pipeline.tasks.attention.evaluation.frames import turn_about
from grpo_pipeline.tasks.attention.evaluation.metrics import METRICS
from grpo_pipeline.tasks.attention.evaluation.point_rules import as_rollouts, points_of_others
from grpo_pipeline.tasks.attention.model.baselines import RULES
from grpo_pipeline.tasks.attention.model.lesion_distances import lesion_distances, mean_distance
from grpo_pipeline.tasks.attention.model.model import AttentionModel
from grpo_pipeline.tasks.attention.task import AttentionTask

ROWS = np.arange(10, 15)
SETS = 4
COLUMNS = ["core_id", "patient_id", "center", "label", "involvement", "grade_group", "rule", "prob", "heatmap_prob",
           "heatmap_top", "pointing_hit", "prob_std",
           "reward", "reward_class", "reward_heatmap", "lesion_hit", "lesion_coverage", "points_used",
           "lesion_distance_mm", "outlined_share"]  # fmt: skip


def make_policy(task: AttentionTask, seed: int = 1) -> AttentionModel:
    policy = task.build_policy(0)
    shake(policy, seed=seed)
    return policy


def evaluate(
    *, arm: int = 1, seed: int = 0, n_samples: int = SETS, rows: np.ndarray = ROWS, task: AttentionTask | None = None
) -> pd.DataFrame:
    task = task or make_task()
    return task.evaluate(make_policy(task, arm), make_data(), rows, seed=seed, n_samples=n_samples)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Outcomes]]:
    """Return the point sets that were decoded, in the order of the rules."""
    decoded: list[tuple[Tensor, Outcomes]] = []
    decode = AttentionTask.decode

    def spy(self: AttentionTask, policy: Any, context: Any, rollouts: Any, batch: Any) -> Outcomes:
        outcomes = decode(self, policy, context, rollouts, batch)
        decoded.append((rollouts.actions, outcomes))
        return outcomes

    monkeypatch.setattr(AttentionTask, "decode", spy)
    return decoded


def chosen(seen: list[tuple[Tensor, Outcomes]]) -> dict[str, Tensor]:
    return {rule: actions for rule, (actions, _) in zip(RULES, seen, strict=True)}


def test_each_rule_has_a_row_per_core_from_exactly_one_set(seen: list[tuple[Tensor, Outcomes]]):
    task = make_task()
    policy, data = make_policy(task), make_data()
    table = evaluate(task=task)
    assert list(table.columns) == COLUMNS
    expected = {(core, rule) for core in ("c10", "c11", "c12", "c13", "c14") for rule in RULES}
    assert len(table) == len(expected)
    assert set(zip(table["core_id"], table["rule"], strict=True)) == expected
    table, batch = table.set_index(["rule", "core_id"]), task.make_batch(data, ROWS)
    context = task.encode(policy, batch)
    for rule, actions in list(chosen(seen).items()):
        assert actions.shape[1] == (SETS if rule in ("policy", "start", "uniform", "oracle", "pooled") else 1), rule
        read = AttentionTask.decode(task, policy, context, as_rollouts(actions), batch).class_logits.sigmoid().detach()
        alone = AttentionTask.decode(task, policy, context, as_rollouts(actions[:, :1]), batch)
        expected = read.mean(1) if rule == "pooled" else alone.class_logits[:, 0].sigmoid().detach()
        np.testing.assert_allclose(table.loc[rule, "prob"], expected, atol=1e-6)
        np.testing.assert_allclose(table.loc[rule, "heatmap_prob"], alone.bag_probs[:, 0].detach(), atol=1e-6)
    logits, greedy = policy.policy(context.features, context.texture)[0].detach(), seen[list(RULES).index("greedy")][0]
    same = [name for name in table.columns if name not in ("prob", "rule")]
    pd.testing.assert_frame_equal(table.loc["pooled", same], table.loc["policy", same])
    assert (table.loc["pooled", "prob"] != table.loc["policy", "prob"]).all()
    for row in range(5):
        ranked = [v for v in logits[row].argsort(descending=True).tolist() if context.cells[row, v]]
        assert greedy[row, 0].tolist() == ranked[:3]


@pytest.mark.parametrize("model", [{}, {"policy": {"stop": {"min_points": 1}}}], ids=["fixed", "stops"])
def test_the_start_is_the_untrained_policy_under_the_decoder_of_the_arm(
    seen: list[tuple[Tensor, Outcomes]], model: dict[str, Any]
):
    """A policy that has not moved chooses the same points as its start; one that has does not, and its own decoder reads both."""
    task, data = make_task(**model), make_data()
    table = task.evaluate(task.build_policy(3), data, ROWS, seed=3, n_samples=SETS).set_index("rule")
    own, start = (table.loc[rule].reset_index(drop=True) for rule in ("policy", "start"))
    pd.testing.assert_frame_equal(own, start)
    unmoved = chosen(seen)["policy"]
    seen.clear()
    policy = make_policy(task, seed=5)
    table = task.evaluate(policy, data, ROWS, seed=3, n_samples=SETS).set_index(["rule", "core_id"])
    assert torch.equal(chosen(seen)["start"], unmoved)
    assert not torch.equal(chosen(seen)["policy"], unmoved)
    batch = task.make_batch(data, ROWS)
    read = AttentionTask.decode(task, policy, task.encode(policy, batch), as_rollouts(unmoved[:, :1]), batch)
    np.testing.assert_allclose(table.loc["start", "prob"], read.class_logits[:, 0].sigmoid().detach(), atol=1e-6)


def test_arms_share_the_uniform_and_the_oracle_points(seen: list[tuple[Tensor, Outcomes]]):
    evaluate(arm=1)
    first = chosen(seen)
    seen.clear()
    evaluate(arm=2)
    second = chosen(seen)
    for rule in ("uniform", "oracle", "centre", "fixed"):
        assert torch.equal(first[rule], second[rule]), rule
    assert not torch.equal(first["policy"], second["policy"])


def test_every_rule_stays_in_the_region(seen: list[tuple[Tensor, Outcomes]]):
    examples = make_data().examples
    examples.region[10:, :, :16] = False  # only the two right columns of cells are left
    task = make_task(examples)
    task.evaluate(make_policy(task), type(make_data())(examples, None), ROWS, seed=0, n_samples=50)
    for rule, actions in chosen(seen).items():
        assert bool((actions % task.grid >= 2).all()), rule
        assert actions.sort(-1).values.diff(dim=-1).ne(0).all(), rule
    assert chosen(seen)["none"].shape == (5, 1, 0)


def test_oracle_is_in_the_lesion_where_there_is_one(seen: list[tuple[Tensor, Outcomes]]):
    # In a grid of 8 cells a lesion covers at least k = 3 of them.
    task = make_task(patch_size=4)
    table = evaluate(task=task).query("rule == 'oracle'")
    lesion = region_cells(torch.as_tensor(make_data().examples.lesion[ROWS]), task.grid)
    for row, actions in enumerate(chosen(seen)["oracle"]):
        assert bool(lesion[row][actions].all()) == bool(lesion[row].any())
    assert table["lesion_hit"].tolist() == [
        pytest.approx(1.0) if label else pytest.approx(np.nan, nan_ok=True) for label in table["label"]
    ]


def test_without_any_outline_there_is_no_oracle():
    data = make_data()
    blind = replace(data, examples=replace(data.examples, lesion=np.zeros_like(data.examples.lesion)))
    task = make_task()
    policy = make_policy(task)
    known, unknown = (task.evaluate(policy, d, ROWS, seed=0, n_samples=2) for d in (data, blind))
    assert set(known["rule"]) - set(unknown["rule"]) == {"oracle", "constant"}
    # The other rules draw what they draw beside an oracle.
    same = ["rule", "core_id", "prob", "reward"]
    pd.testing.assert_frame_equal(
        known.loc[known["rule"].isin(unknown["rule"]), same].reset_index(drop=True), unknown[same].reset_index(drop=True)
    )
    audited = task.audit(policy, blind, ROWS, seed=0, n_samples=2)
    assert set(audited["policy"]) == {"policy", "uniform", "centre", "fixed"}
    assert set(read_samples(audited, task.audit_plan).policies) == set(audited["policy"])


def test_the_constant_points_and_the_shown_share_are_those_of_training_cores(seen: list[tuple[Tensor, Outcomes]]):
    data, task = make_data(), make_task(patch_size=4)
    lesion, bag = np.zeros_like(data.examples.lesion), data.examples.bag.copy()
    lesion[:8, 8:16, 8:16], lesion[8:, 20:28, 20:28] = True, True
    bag[:2], bag[8:] = lesion[:2], lesion[8:]  # the losses learn from the outlines of two of the eight training cores
    data = replace(data, examples=replace(data.examples, lesion=lesion, bag=bag))
    table = task.evaluate(make_policy(task), data, ROWS, seed=0, n_samples=2)
    assert set(table["outlined_share"]) == {2 / 8}
    inside = region_cells(torch.as_tensor(lesion[:1]), task.grid)[0]
    assert bool(inside[chosen(seen)["constant"]].all())
    assert table.query("rule == 'constant'")["lesion_hit"].tolist() == [0.0] * 5


def test_shuffled_uses_the_points_of_another_core(seen: list[tuple[Tensor, Outcomes]], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(point_rules, "BATCH_SIZE", 3)
    evaluate(seed=2)  # with seed 0 two cores happen to draw the same three cells
    batches = [seen[: len(RULES)], seen[len(RULES) :]]
    policy, shuffled = (torch.cat([chosen(batch)[rule][:, :1] for batch in batches]) for rule in ("policy", "shuffled"))
    # Batches of 3 and 2 cores: the first core takes the third's points, every other core those of the core before it.
    assert torch.equal(shuffled, policy[[2, 0, 1, 2, 3]])
    assert len({tuple(sorted(points.flatten().tolist())) for points in policy}) == 5


def test_rewards_and_spread_are_over_all_sets(seen: list[tuple[Tensor, Outcomes]]):
    task = make_task(reward={"class": {"weight": 2.0}, "heatmap": {"weight": 3.0}})
    table = evaluate(task=task).set_index(["rule", "core_id"])
    made = dict(zip(RULES, seen, strict=True))["policy"][1]
    probs = made.class_logits.sigmoid().numpy()
    label = make_data().examples.table["label"].to_numpy()[ROWS, None]
    np.testing.assert_allclose(table.loc["policy", "reward_class"], np.log(np.where(label, probs, 1 - probs)).mean(1), atol=1e-5)
    np.testing.assert_allclose(table.loc["policy", "prob_std"], probs.std(1), atol=1e-6)
    np.testing.assert_allclose(table["reward"], 2 * table["reward_class"] + 3 * table["reward_heatmap"], atol=1e-5)


def test_the_reward_counts_the_parts_of_the_points(seen: list[tuple[Tensor, Outcomes]]):
    weights = {"diversity": {"weight": 0.5}, "activation": {"weight": 0.25}, "boundary": {"weight": 2.0, "margin": 0.1}}
    task = make_task(patch_size=4, reward=weights)
    table = evaluate(task=task).set_index(["rule", "core_id"])
    batch = task.make_batch(make_data(), ROWS)
    for rule, (actions, outcomes) in zip(RULES, seen, strict=True):
        rollouts, grouped = as_rollouts(actions), task.replicate(batch, actions.shape[1])
        named, _ = task.reward(grouped, rollouts, outcomes)
        extra = 0.5 * named["diversity"] + 0.25 * named["activation"] + 2 * named["boundary"]
        expected = table.loc[rule, "reward_class"] + extra.mean(1).numpy()
        np.testing.assert_allclose(table.loc[rule, "reward"], expected, atol=1e-5)
        assert (float(extra.abs().max()) == 0.0) == (rule == "none"), rule
    plain = make_task(patch_size=4).validate(make_policy(task), make_data(), ROWS, seed=0, n_samples=3)
    shaped = task.validate(make_policy(task), make_data(), ROWS, seed=0, n_samples=3)
    assert shaped["reward/mean"] != pytest.approx(plain["reward/mean"], abs=1e-3)


def test_validate_measures_the_gain_over_uniform_points(seen: list[tuple[Tensor, Outcomes]], monkeypatch: pytest.MonkeyPatch):
    task, data = make_task(patch_size=4), make_data()
    untrained = task.build_policy(0)
    numbers = task.validate(untrained, data, ROWS, seed=0, n_samples=3)
    assert set(numbers) == {"reward/mean", "reward/gain_over_uniform", "lesion_hit", "uniform_hit", "auroc"}
    # An untrained policy is uniform and draws from the same generator: the very same points.
    assert numbers["reward/gain_over_uniform"] == 0.0
    assert numbers["lesion_hit"] == numbers["uniform_hit"]
    benign = task.validate(untrained, data, ROWS[::2], seed=0, n_samples=3)
    assert set(benign) == {"reward/mean", "reward/gain_over_uniform"}  # without a lesion there is nothing to hit, or to rank
    seen.clear()
    monkeypatch.setattr(point_rules, "BATCH_SIZE", 1)
    task.validate(untrained, data, ROWS, seed=0, n_samples=3)
    assert len({tuple(actions.flatten().tolist()) for actions, _ in seen}) == len(ROWS)  # each batch has its own noise


def test_the_validated_auroc_is_of_the_mean_probability_of_the_sets(seen: list[tuple[Tensor, Outcomes]]):
    task, data, rows = make_task(patch_size=4), make_data(), np.array([9, 10, 11, 12, 13, 14])
    seen.clear()
    found = task.validate(make_policy(task), data, rows, seed=2, n_samples=3)
    [prob] = [outcomes.class_logits.sigmoid().mean(1) for _, outcomes in seen[:1]]  # of the policy; then the uniform points
    assert len({*prob.tolist()}) == len(rows)
    label = data.examples.table["label"].to_numpy()[rows]
    assert found[task.validated_by] == pytest.approx(roc_auc_score(label, prob.numpy()))


def test_a_validation_of_unequal_batches_is_the_mean_over_cores(monkeypatch: pytest.MonkeyPatch):
    """Of 3 and 2 cores, with 1 and 2 outlines: each part alone draws the same, as its noise is that of its first row."""
    task, data, rows = make_task(patch_size=4, policy={"stop": {"min_points": 1}}), make_data(), np.array([10, 11, 12, 13, 9])
    policy, parts = make_policy(task), (rows[:3], rows[3:])
    outlined = [int(data.examples.lesion[part].any((1, 2)).sum()) for part in parts]
    assert outlined == [1, 2]
    alone = [task.validate(policy, data, part, seed=4, n_samples=3) for part in parts]
    monkeypatch.setattr(point_rules, "BATCH_SIZE", 3)
    found = task.validate(policy, data, rows, seed=4, n_samples=3)
    for name, counts in (("reward/mean", (3, 2)), ("reward/gain_over_uniform", (3, 2)), ("points_used", (3, 2)),
                         ("lesion_hit", outlined), ("uniform_hit", outlined)):  # fmt: skip
        one, other = (part[name] for part in alone)
        assert one != other
        assert found[name] == pytest.approx((counts[0] * one + counts[1] * other) / sum(counts)), name
    earned = {}
    batch = task.make_batch(data, parts[1])
    context, grouped = task.encode(policy, batch), task.replicate(batch, 3)
    for proposal in ("policy", "uniform"):
        generator = step_generator(4, 13, stream=Stream.VALIDATION)
        drawn = task.sample(policy, context, 3, temperature=1.0, proposal=proposal, generator=generator)
        named, weights = task.reward(grouped, drawn, task.decode(policy, context, drawn, batch))
        earned[proposal] = float(sum(weights[name] * part for name, part in named.items()).mean())
    assert alone[1]["reward/mean"] == pytest.approx(earned["policy"], abs=1e-6)
    assert alone[1]["reward/gain_over_uniform"] == pytest.approx(earned["policy"] - earned["uniform"], abs=1e-6)
    assert abs(earned["policy"] - earned["uniform"]) > 1e-3


def test_an_evaluation_of_unequal_batches_has_the_rows_of_each(
    seen: list[tuple[Tensor, Outcomes]], monkeypatch: pytest.MonkeyPatch
):
    task, data, n = make_task(patch_size=4), make_data(), 3
    policy, parts = make_policy(task), (ROWS[:n], ROWS[n:])
    alone = pd.concat([task.evaluate(policy, data, part, seed=4, n_samples=SETS) for part in parts])
    seen.clear()
    monkeypatch.setattr(point_rules, "BATCH_SIZE", n)
    found = task.evaluate(policy, data, ROWS, seed=4, n_samples=SETS)
    in_order = alone.sort_values(["rule", "core_id"], ignore_index=True)
    same = found["rule"] != "shuffled"  # whose first core takes points of another one of its batch
    pd.testing.assert_frame_equal(found[same], in_order[same])
    uniform = [chosen(batch)["uniform"] for batch in (seen[: len(RULES)], seen[len(RULES) :])]
    assert [len(points) for points in uniform] == [3, 2]


def test_rows_of_cores_that_are_alike_have_noise_of_their_own_in_each_batch(monkeypatch: pytest.MonkeyPatch):
    """Cores that are the same image, one a batch: with the noise of another batch, both have the same points."""
    monkeypatch.setattr(point_rules, "BATCH_SIZE", 1)
    examples = make_examples()
    for name in ("images", "region", "bag", "lesion"):
        getattr(examples, name)[11] = getattr(examples, name)[10]
    examples.table.loc[11, ["label", "involvement"]] = examples.table.loc[10, ["label", "involvement"]]
    data, task, rows = replace(make_data(), examples=examples), make_task(patch_size=4), np.array([10, 11])
    policy = make_policy(task)
    evaluated = task.evaluate(policy, data, rows, seed=0, n_samples=SETS).rename(columns={"rule": "policy"})
    audited = task.audit(policy, data, rows, seed=0, n_samples=SETS)
    for table in (evaluated, audited):
        of = dict(list(table.groupby(["policy", "core_id"])))
        for rule, differs in (("policy", True), ("uniform", True), ("centre", False)):
            assert (of[rule, "c10"]["reward"].tolist() != of[rule, "c11"]["reward"].tolist()) == differs


def with_spacing(row_mm, column_mm):
    examples = make_examples()
    return replace(examples, table=examples.table.assign(row_mm=row_mm, column_mm=column_mm))


def brute_force(lesion, row_mm, column_mm):
    """Every cell against every lesion pixel."""
    found = np.empty((GRID, GRID))
    inside = np.argwhere(lesion)
    for i in range(GRID):
        for j in range(GRID):
            at = (int((i + 0.5) * SIZE / GRID), int((j + 0.5) * SIZE / GRID))
            found[i, j] = min(np.hypot((at[0] - y) * row_mm, (at[1] - x) * column_mm) for y, x in inside)
    return found.ravel()


@pytest.mark.parametrize(("row_mm", "column_mm"), [(1.0, 1.0), (0.3, 0.1), (0.05, 2.0)])
def test_distances_are_those_of_every_pair_of_pixels(row_mm, column_mm):
    examples = with_spacing(row_mm, column_mm)
    examples.lesion[5] = np.random.default_rng(2).random((SIZE, SIZE)) > 0.995
    rows = np.array([5, 3, 0, 7])
    found = lesion_distances(examples, rows, GRID).numpy()
    for place, row in enumerate(rows):
        if row:
            np.testing.assert_allclose(found[place], brute_force(examples.lesion[row], row_mm, column_mm), rtol=1e-12)
    assert np.isnan(found[2]).all()  # a benign core


def test_golden():
    """A lesion of one pixel, (4, 4), the centre of cell (0, 0): cell (1, 2) is 8 rows and 16 columns away."""
    examples = with_spacing(0.5, 0.25)
    examples.lesion[3] = False
    examples.lesion[3, 4, 4] = True
    distances = lesion_distances(examples, np.array([3]), GRID)
    assert distances[0, 0] == 0
    assert distances[0, 1 * GRID + 2] == pytest.approx(np.hypot(8 * 0.5, 16 * 0.25))
    actions = torch.tensor([[[0, 6], [6, 6]]])
    assert mean_distance(actions, distances) == pytest.approx(np.hypot(4, 4) * 3 / 4)
    stopped = torch.tensor([[[6, GRID * GRID], [0, GRID * GRID]]])  # the action V is no point
    assert mean_distance(stopped, distances) == pytest.approx(np.hypot(4, 4) / 2)
    assert np.isnan(mean_distance(torch.full((1, 2, 2), GRID * GRID), distances)).all()
    rows = np.array([3, 5])
    assert lesion_distances(make_examples(), rows, GRID).isnan().all()  # no spacing
    some = lesion_distances(with_spacing([0.1] * 5 + [np.nan] * 10, 0.1), rows, GRID)
    assert some.isnan().all(1).tolist() == [False, True]
    assert np.isnan(mean_distance(torch.zeros(2, 1, 0, dtype=torch.int64), some)).all()


def test_a_lesion_between_the_centres_of_cells_is_left_out_of_hits_and_said(caplog: pytest.LogCaptureFixture) -> None:
    task, data = make_task(), make_data()
    rows = task.rows(data, "test")
    outlined = np.array(data.examples.lesion[rows]).any((1, 2))
    for inside, said in (((4, 4), 0), ((0, 0), 1)):  # the centre of the first cell, and its corner
        caplog.clear()
        lesion = np.array(data.examples.lesion)
        lesion[rows[0]] = False
        lesion[rows[0]][inside] = True
        small = replace(data, examples=replace(data.examples, lesion=lesion))
        table = task.evaluate(task.build_policy(0), small, rows, seed=0, n_samples=2)
        of_policy = table[table["rule"] == "policy"]
        assert of_policy["lesion_hit"].notna().sum() == outlined[1:].sum() + 1 - said
        warned = [line for line in caplog.messages if "held-out lesions hold the centre of no cell: no point can hit" in line]
        assert [int(line.split()[0]) for line in warned] == [1] * said


def test_prediction_rows_and_the_metric():
    task, data = make_task(), make_data(with_spacing(0.1, 0.2))
    rows = task.rows(data, "test")
    table = task.evaluate(task.build_policy(0), data, rows, seed=0, n_samples=3)
    known = table["lesion_distance_mm"].notna()
    assert known.equals(table["lesion_hit"].notna())
    assert (table.loc[known & (table["lesion_hit"] == 1), "lesion_distance_mm"] == 0).all()
    means = table.groupby("rule")["lesion_distance_mm"].mean()
    assert means["oracle"] < means["uniform"]
    policy = table[table["rule"] == "policy"].reset_index(drop=True)
    value = METRICS["lesion_distance_mm"](policy, np.ones((1, len(policy))))[0]
    assert value == pytest.approx(np.nanmean(policy["lesion_distance_mm"]))
    table = task.evaluate(task.build_policy(0), make_data(), rows, seed=0, n_samples=1)
    assert table["lesion_distance_mm"].isna().all()
    for rows in (table, table.drop(columns="lesion_distance_mm")):  # no spacing; a table of an older version
        assert np.isnan(METRICS["lesion_distance_mm"](rows, np.ones((2, len(rows))))).all()


def with_frames(cores: list[str]) -> Any:
    """Return the data with these cores for its rows 0, 1, ..., each row being a frame."""
    data = make_data()
    frame = pd.Series(cores).groupby(pd.Series(cores)).cumcount().astype(str)
    rest = len(data.examples.table) - len(cores)
    names = {"core_id": [*cores, *(f"z{i}" for i in range(rest))], "frame": [*frame, *["0"] * rest]}
    return replace(data, examples=replace(data.examples, table=data.examples.table.assign(**names)))


def test_every_frame_has_a_row_and_the_rules_that_combine_it():
    data, task = with_frames(["a"] * 7 + ["b"] * 2 + ["c"]), make_task()
    table = task.evaluate(make_policy(task), data, np.arange(10), seed=0, n_samples=2)
    policy = table.query("rule == 'policy'")
    assert list(zip(policy["core_id"], policy["frame"], strict=True)) == [
        *(("a", str(i)) for i in range(7)), ("b", "0"), ("b", "1"), ("c", "0")
    ]  # fmt: skip
    assert set(table["over_frames"]) | set(table["over_cores"]) == {"mean", "max"}
    names = task.tabulate(data, task.make_batch(data, np.arange(8, 10)), task_rollouts(task, data))["core_id"]
    assert names.tolist() == ["b / 1", "b / 1", "c / 0", "c / 0"]


def task_rollouts(task: AttentionTask, data: Any) -> Any:
    batch = task.make_batch(data, np.arange(8, 10))
    policy = make_policy(task)
    generator = torch.Generator().manual_seed(0)
    context = task.encode(policy, batch)
    return task.sample(policy, context, 2, temperature=1.0, proposal="policy", generator=generator)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 64])
@pytest.mark.parametrize("cores", ["aaaaaaabbc", "abcdefghij", "aabb", "aaaa", "abbbbbbbbb"])
def test_shuffled_points_are_those_of_another_core(cores: str, batch_size: int):
    data = with_frames(list(cores))
    rows = turn_about(data, np.arange(len(cores)))
    assert sorted(rows) == list(range(len(cores)))
    codes = np.array([ord(core) for core in cores])[rows]
    earlier, taken = None, []
    for start in range(0, len(rows), batch_size):
        own = torch.as_tensor(rows[start : start + batch_size])[:, None, None]
        points, earlier = points_of_others(own, codes[start : start + batch_size], earlier)
        taken += points.flatten().tolist()
    others = [codes[np.flatnonzero(rows == row)[0]] for row in taken]
    differs = np.array(others) != codes
    if len(set(cores)) == 1:
        assert taken == rows.tolist()
    else:
        # A batch of one row has no other core yet.
        assert differs[1 if batch_size == 1 else 0 :].all()
    if cores == "abcdefghij":
        assert taken[1:] == rows[:-1].tolist()  # the core before it, as it always was
        assert taken[0] == rows[:batch_size][-1]


def test_the_rule_blobs_looks_where_a_policy_that_is_its_prior_does(seen: list[tuple[Tensor, Outcomes]]) -> None:
    """Widths of their own: with those of the default the likeliest points of the prior are others."""
    found = []
    for widths in ((0.02,), (0.05, 0.07, 0.1)):
        task = make_task(policy={"prior": {"kind": "dark_blobs", "widths": widths}})
        task.evaluate(task.build_policy(0), make_data(), ROWS, seed=0, n_samples=SETS)
        points = chosen(seen)
        assert torch.equal(points["blobs"], points["greedy"])
        found.append(points["blobs"])
        seen.clear()
    assert not torch.equal(*found)


def test_the_dice_of_a_validation_is_that_of_the_policy_s_own_points():
    """Of the mean over the sets of each core with an outline; each set's mask at the size of the images."""
    reward = {"dice": {"weight": 1.0}}
    task = make_task(patch_size=4, reward=reward, supervised={"mask_share": 1.0, "outline": {"weight": 1.0}})
    policy, data, rows = make_policy(task), make_data(), np.array([11, 12, 13])
    found = task.validate(policy, data, rows, seed=2, n_samples=3)["dice"]
    batch = task.make_batch(data, rows)
    context, of = task.encode(policy, batch), {}
    for proposal in ("policy", "uniform"):
        generator = step_generator(2, 11, stream=Stream.VALIDATION)
        drawn = task.sample(policy, context, 3, temperature=1.0, proposal=proposal, generator=generator)
        logits = task.decode(policy, context, drawn, batch).segmentation_logits.detach()
        masks = (torch.nn.functional.interpolate(logits, size=(SIZE, SIZE), mode="bilinear") > 0).numpy()
        of[proposal] = np.mean([
            2 * (mask & lesion).sum() / (mask.sum() + lesion.sum())
            for sets, lesion in zip(masks[::2], data.examples.lesion[rows[::2]], strict=True) for mask in sets
        ])  # fmt: skip
    assert found == pytest.approx(of["policy"])
    assert abs(of["policy"] - of["uniform"]) > 1e-6
