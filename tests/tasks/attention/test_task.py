import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tiny_attention import (
    N_TRAIN,
    algorithm_params,
    make_batch,
    make_data,
    make_examples,
    make_state,
    make_task,
    section,
    shake,
    training_params,
)
from torch import Tensor

from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.pipelines.step.advantages import compute_advantages
from grpo_pipeline.pipelines.step.parts.replay import weigh_samples
from grpo_pipeline.pipelines.training.loop import StepRunner
from grpo_pipeline.tasks.attention.batch import AttentionBatch, AttentionData, region_cells
from grpo_pipeline.tasks.attention.losses.supervised_loss import supervised_loss
from grpo_pipeline.tasks.attention.model.model import AttentionModel
from grpo_pipeline.tasks.attention.rewards.params import RewardParams
from grpo_pipeline.tasks.attention.task import AttentionTask
from grpo_pipeline.tasks.base import Proposal


def make_policy(task: AttentionTask) -> AttentionModel:
    policy = task.build_policy(0)
    shake(policy)
    return policy


def sample(
    task: AttentionTask, policy: AttentionModel, *, group: int = 400, proposal: Proposal = "policy", temperature: float = 1.0
) -> Rollouts:
    context = task.encode(policy, make_batch(task))
    generator = torch.Generator().manual_seed(0)
    return task.sample(policy, context, group, temperature=temperature, proposal=proposal, generator=generator)


def naive_logprobs(logits: Tensor, cells: Tensor, points: list[int], temperature: float) -> list[float]:
    """Take the points one after the other; a softmax over the cells that are left."""
    left = cells.clone()
    logprobs = []
    for point in points:
        z = (logits.double() / temperature).masked_fill(~left, -torch.inf)
        logprobs.append(float(z.log_softmax(0)[point]))
        left[point] = False
    return logprobs


def test_logprobs_equal_a_naive_loop_and_reward_weights_come_from_the_parameters():
    task = make_task(reward={"class": {"weight": 0.3}, "heatmap": {"weight": 0.7}})
    policy, batch = make_policy(task), make_batch(task)
    context = task.encode(policy, batch)
    logits = policy.policy(context.features, context.texture)[0].detach()
    for temperature in (1.0, 0.5):
        rollouts = sample(task, policy, group=3, temperature=temperature)
        for p, g in np.ndindex(4, 3):
            expected = naive_logprobs(logits[p], context.cells[p], rollouts.actions[p, g].tolist(), temperature)
            assert rollouts.logprobs[p, g].tolist() == pytest.approx(expected, abs=1e-5)
    grouped = task.replicate(batch, 3)
    parts, rates = task.reward(grouped, rollouts, task.decode(policy, context, rollouts, grouped))
    assert rates == {"class": 0.3, "heatmap": 0.7}
    assert {name: tuple(part.shape) for name, part in parts.items()} == {"class": (4, 3), "heatmap": (4, 3)}


def test_glimpse_decoder_is_asked_along_the_bag():
    task = make_task()
    examples = make_examples()
    examples.bag[:] = False
    examples.bag[:, 8:16, 0:24] = True  # row 1 of the cells, columns 0 to 2; column 0 is partly outside the region
    batch = task.replicate(task.make_batch(AttentionData(examples, None), np.arange(3)), 2)
    policy = make_policy(task)
    context = task.encode(policy, batch)
    rollouts = sample(task, policy, group=2)
    first = Rollouts(*(x[:3] for x in vars(rollouts).values()))
    outcomes = task.decode(policy, context, first, batch)
    loss = task.supervised_loss(policy, context, batch, outcomes).detach()
    centres = torch.tensor([[0.125, 0.375], [0.375, 0.375], [0.625, 0.375]]).expand(3, 3, 2)
    involvement = policy.class_decoder.estimate_involvement(batch.images, centres, torch.ones(3, 3, dtype=torch.bool))
    expected = supervised_loss(batch, outcomes, task.supervised, glimpse_involvement=involvement).detach()
    torch.testing.assert_close(loss, expected)
    without = supervised_loss(batch, outcomes, task.supervised, glimpse_involvement=None).detach()
    assert float(expected - without) > 1e-2


def test_the_table_of_samples_names_its_points():
    task, data = make_task(), make_data()
    batch = make_batch(task, (5, 2))
    actions = torch.tensor([[[0, 6, 15], [1, 2, 3]], [[4, 5, 6], [7, 8, 9]]])
    table = task.tabulate(data, batch, Rollouts(actions, torch.zeros(2, 2, 3), torch.ones(2, 2, 3, dtype=torch.bool)))
    assert table[["core_id", "sample", "label"]].values.tolist() == [["c05", 0, 1], ["c05", 1, 1], ["c02", 0, 0], ["c02", 1, 0]]
    # Cell 6 is row 1, column 2 of 4.
    assert table.loc[0, ["x0", "y0", "x1", "y1", "x2", "y2"]].tolist() == [0.125, 0.125, 0.625, 0.375, 0.875, 0.875]


def test_the_fingerprint_follows_model_objective_and_data():
    data, other_split = make_data(), make_examples()
    other_split.table.loc[0, "split"] = "val"
    tasks = make_task(), make_task(points=2), make_task(reward={"heatmap": {"weight": 1.0}})
    prints = [task.fingerprint(data) for task in tasks]
    prints += [tasks[0].fingerprint(make_data(examples)) for examples in (make_examples(1), other_split)]
    assert len({json.dumps(p, sort_keys=True) for p in prints}) == len(prints)
    assert make_task().fingerprint(data) == prints[0]


@torch.no_grad()
def test_reference_logits_are_those_of_each_row():
    task, data = make_task(), make_data()
    reference = make_policy(task)
    cached = task.with_reference(data, reference)
    assert cached.reference_logits.shape == (15, 16)
    rows = np.array([7, 0, 12])
    rollouts = Rollouts(*(x[:3] for x in vars(sample(task, reference, group=2)).values()))
    for temperature in (1.0, 0.7):
        direct = task.score_reference(reference, task.make_batch(data, rows), rollouts, temperature=temperature)
        from_cache = task.score_reference(task.build_policy(9), task.make_batch(cached, rows), rollouts, temperature=temperature)
        torch.testing.assert_close(from_cache.log_probs_full, direct.log_probs_full, atol=1e-5, rtol=0)
        torch.testing.assert_close(from_cache.logprobs, direct.logprobs, atol=1e-5, rtol=0)
        assert not torch.allclose(direct.log_probs_full[0], direct.log_probs_full[1], atol=1e-3)


NAN = float("nan")
REWARDS = torch.tensor([[0.0, 1.0, 2.0, 4.0], [-3.0, -1.0, -1.0, 0.5]])


def graded(*grades: float) -> AttentionBatch:
    return replace(make_batch(make_task(), tuple(range(len(grades)))), grade_group=torch.tensor(grades))


def advantages(weight: float, rewards: torch.Tensor = REWARDS, importance: torch.Tensor | None = None) -> torch.Tensor:
    """Advantages of a significant cancer (row 0) and of another core (row 1)."""
    task = make_task(reward={"priority": {"weight": weight, "min_grade": 3}})
    named = combine_rewards({"class": rewards}, {"class": 1.0})
    found = compute_advantages(algorithm_params(), task, graded(4, 1), named, None)
    return (found if importance is None else weigh_samples(found, importance)).values


def test_high_grades_weigh_more_where_that_is_asked_for():
    task = make_task(reward={"priority": {"weight": 2.5, "min_grade": 3}})
    assert task.prompt_weights(graded(0, 2, 3, 5, NAN)).tolist() == [1.0, 1.0, 2.5, 2.5, 1.0]
    from_2 = make_task(reward={"priority": {"weight": 0.5, "min_grade": 2}})
    assert from_2.prompt_weights(graded(0, 2, 3, 1, NAN)).tolist() == [1.0, 0.5, 0.5, 1.0, 1.0]
    assert make_task().rewards.priority is None
    assert make_task().prompt_weights(graded(5, 0)) is None
    examples = make_examples()
    examples.table.loc[[1, 3], "grade_group"] = [NAN, 4.0]
    task = make_task(examples, reward={"priority": {"weight": 3.0, "min_grade": 3}})
    batch = task.make_batch(AttentionData(examples, None), np.array([3, 0, 1, 5]))
    assert task.prompt_weights(task.replicate(batch, 4)).tolist() == [3.0, 1.0, 1.0, 3.0]  # grades 4, 0, unknown, 3


def test_a_factor_on_the_rewards_cancels_and_the_weight_does_not():
    scaled = REWARDS * torch.tensor([[4.0], [1.0]])
    torch.testing.assert_close(advantages(1.0, scaled), advantages(1.0), atol=1e-3, rtol=0)  # eps / std is left: 1e-4 / 1.7
    weighed = advantages(4.0)
    torch.testing.assert_close(weighed[0], 4 * advantages(1.0)[0], atol=1e-12, rtol=0)
    assert torch.equal(weighed[1], advantages(1.0)[1])
    importance = torch.tensor([[1.0, 0.5, 2.0, 0.0], [1.0, 1.0, 0.25, 1.0]])
    expected = advantages(1.0) * torch.tensor([[3.0], [1.0]]) * importance
    torch.testing.assert_close(advantages(3.0, importance=importance), expected, atol=1e-12, rtol=0)


def test_wrong_priorities_are_refused():
    for name, value in (("weight", 0.0), ("weight", float("inf")), ("min_grade", 0), ("min_grade", 6)):
        with pytest.raises(ValidationError, match=rf"priority\.{name}\n"):
            RewardParams.model_validate(section("reward", priority={"weight": 2.0, "min_grade": 3, name: value}))


@pytest.mark.parametrize("part", ["class", "heatmap", "dice"])
def test_one_part_of_the_reward_is_enough_and_none_is_refused(part: str) -> None:
    """Outlines alone may pay: a core without a shown one then teaches the policy nothing."""
    nothing = dict.fromkeys(("class", "heatmap", "dice"))
    assert RewardParams.model_validate(section("reward", **nothing | {part: {"weight": 0.5}})).weights[part] == 0.5
    with pytest.raises(ValidationError, match=r"class, heatmap or dice must be given, got none of them"):
        RewardParams.model_validate(section("reward", **nothing, boundary={"weight": 1.0, "margin": 0.1}))


ROWS = np.arange(N_TRAIN)


def draw(task: AttentionTask, proposal: Proposal, *, oracle: bool = False) -> Rollouts:
    data = task.with_oracle(make_data()) if oracle else make_data()
    policy = task.build_policy(0)
    context = task.encode(policy, task.make_batch(data, ROWS))
    generator = torch.Generator().manual_seed(0)
    return task.sample(policy, context, 50, temperature=1.0, proposal=proposal, generator=generator)


def lesions(task: AttentionTask) -> Tensor:
    return region_cells(torch.as_tensor(make_examples().lesion[ROWS]), task.grid)


def test_oracle_points_lie_in_the_lesion_or_are_the_uniform_ones():
    task = make_task(patch_size=4)  # in a grid of 8 cells a lesion covers at least k = 3 of them
    inside, drawn, uniform = lesions(task)[:, None].expand(-1, 50, -1), draw(task, "oracle", oracle=True), draw(task, "uniform")
    known, unknown = [3, 5, 7], [0, 1, 2, 4, 6]  # benign, and row 1, whose outline is unknown
    assert bool(inside.gather(2, drawn.actions)[known].all())
    assert float(inside.gather(2, uniform.actions)[known].float().mean()) < 0.5
    assert torch.equal(drawn.actions[unknown], uniform.actions[unknown])
    assert torch.equal(drawn.logprobs[unknown], uniform.logprobs[unknown])


def test_without_the_step_no_batch_holds_the_lesion():
    task, shown = make_task(), make_data()
    lesion = lesions(task)

    def holds(batch: object) -> list[str]:
        tensors = {name: value for name, value in vars(batch).items() if isinstance(value, Tensor)}
        return [
            name for name, value in tensors.items() if value.shape == lesion.shape and torch.equal(value.float(), lesion.float())
        ]

    assert holds(task.make_batch(task.with_oracle(shown), ROWS)) == ["lesion_cells"]
    assert holds(task.make_batch(shown, ROWS)) == []
    assert holds(task.encode(task.build_policy(0), task.make_batch(shown, ROWS))) == []


def test_the_oracle_needs_the_step_and_a_lesion():
    task = make_task()
    with pytest.raises(ValueError, match=r"the batch must hold the lesion for proposal: oracle, got one without; make it from"):
        draw(task, "oracle")
    examples = make_examples()
    examples.lesion[:] = False
    with pytest.raises(ValueError, match=r"proposal: oracle must have cores with a lesion outline, got none among 15; name the"):
        task.with_oracle(make_data(examples))


@pytest.mark.parametrize("decoder", ["glimpse", "global"])
def test_a_step_without_points_teaches_the_decoders(decoder: str):
    task, training = make_task(class_decoder={"kind": decoder}), training_params()
    algorithm = algorithm_params("supervised", proposal="none")
    state = make_state(task, make_data(), algorithm, training)
    done = StepRunner(task, algorithm, training).run(state, make_batch(task))
    assert done.experience.rollouts.actions.shape == (4, 4, 0)
    logits = done.experience.outcomes.class_logits
    assert torch.equal(logits, logits[:, :1].expand_as(logits))  # nothing tells the samples of a core apart
    assert bool(done.experience.advantages.is_tied.all())
    assert done.metrics["supervised/loss"] > 0
    table = task.tabulate(make_data(), make_batch(task), done.experience.rollouts)
    assert table.columns.tolist() == ["core_id", "sample", "label"]
    assert len(table) == 16


SHAPED = {"points": {"weight": 0.3}, "activation": {"weight": 0.5}, "boundary": {"weight": 0.4, "margin": 0.3}}


@pytest.mark.parametrize(
    "changes",
    [
        {"reward": {"heatmap": {"weight": 0.7}}},
        {"policy": {"stop": {"min_points": 1}}, "reward": SHAPED},
        {"class_decoder": {"kind": "statistics", "region": True, "folds": 2}},
        {"class_decoder": {"kind": "global"}},
    ],
    ids=["points", "stop", "statistics", "global"],
)
def test_parts_of_a_set_earn_what_they_earn_when_nothing_else_was_drawn(changes):
    """Each part is decoded as the set of its points, whatever stands in the places that are left out."""
    task = make_task(**changes)
    policy, batch = make_policy(task), make_batch(task)
    rollouts, context = sample(task, policy, group=3), task.encode(policy, batch)
    kept = torch.tensor([[False, False, False], [True, False, False], [False, True, True], [True, True, True]])
    found = task.subset_rewards(policy, context, rollouts, task.replicate(batch, 3), kept=kept)
    assert (found.dtype, found.requires_grad) == (torch.float64, False)
    want = torch.zeros(len(batch.rows), 3, len(kept), dtype=torch.float64)
    for p, g, m in np.ndindex(*want.shape):
        one = task.make_batch(make_data(), np.array([p]))
        is_point = kept[m] & rollouts.is_valid[p, g] & (rollouts.actions[p, g] < task.grid**2)
        actions = rollouts.actions[p, g][is_point][None, None]
        alone = Rollouts(actions, torch.zeros(actions.shape), torch.ones_like(actions, dtype=torch.bool))
        with torch.no_grad():
            outcomes = task.decode(policy, task.encode(policy, one), alone, task.replicate(one, 1))
        parts, weights = task.reward(task.replicate(one, 1), alone, outcomes)
        if "points" in parts:
            parts["points"] = parts["points"] * len(actions[0, 0]) / 3  # k is that of the model
        want[p, g, m] = combine_rewards(parts, weights).total
    torch.testing.assert_close(found, want, atol=2e-6, rtol=0)
    assert want.std(2).mean() > 1e-3


def test_credit_per_point_is_refused_beside_a_reward_that_compares_sets():
    task = make_task(reward={"diversity": {"weight": 0.5}})
    task.check_algorithm(algorithm_params())
    with pytest.raises(ValueError, match=r"reward.diversity must be null with advantage.credit = marginal, got a value; it"):
        task.check_algorithm(algorithm_params(advantage={"credit": "marginal"}))


@torch.no_grad()
@pytest.mark.parametrize("reads_mask", [None, "seeded"])
def test_a_point_that_was_not_placed_is_no_evidence(reads_mask: str | None):
    task = make_task(class_decoder={"kind": "statistics", "mask": reads_mask}, policy={"stop": {"min_points": 1}})
    batch, policy = make_batch(task), make_policy(task)
    context = task.encode(policy, batch)
    actions = torch.tensor([[[5, 6, 9], [5, 6, 16]]]).expand(4, -1, -1)  # 16 is a stop
    sets = Rollouts(actions, torch.zeros(actions.shape), torch.ones_like(actions, dtype=torch.bool))
    said = task.decode(policy, context, sets, batch).class_logits
    two = Rollouts(*(part[:, 1:, :2] for part in vars(sets).values()))
    torch.testing.assert_close(said[:, 1:], task.decode(policy, context, two, batch).class_logits, atol=1e-6, rtol=0)
    assert not torch.allclose(said[:, 0], said[:, 1], atol=1e-4)
