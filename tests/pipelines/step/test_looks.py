"""Trajectories of looks: their likelihood by enumeration, their gradient by finite differences, and a whole loop with them."""

import math
from dataclasses import replace
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
import torch
from tiny_attention import algorithm_params, constant, make_batch, make_data, make_state, make_task, shake, training_params
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from grpo_pipeline.core.storage.checkpoint import NoCheckpoint
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.pipelines.training import nodes
from grpo_pipeline.tasks.attention.batch import AttentionContext
from grpo_pipeline.tasks.attention.inference.predictor import Predictor
from grpo_pipeline.tasks.attention.losses import location_losses
from grpo_pipeline.tasks.attention.model.looks import LookRollouts
from grpo_pipeline.tasks.attention.model.model import AttentionModel
from grpo_pipeline.tasks.attention.model.sam import cell_centres
from grpo_pipeline.tasks.attention.task import AttentionTask

V = 4
SMALL = {"patch_size": 16, "policy_channels": 16}  # a grid of 2 x 2


def looking(**model: Any) -> tuple[AttentionTask, AttentionModel, AttentionContext]:
    """Return a task on 2 x 2 cells, a policy whose maps depend on what it sees, and the encoding of two images."""
    task = make_task(**SMALL | model)
    policy = task.build_policy(0).eval()
    shake(policy)
    with torch.no_grad():
        for parameter in policy.sam.net.mask_decoder.output_hypernetworks_mlps[0].proj_out.parameters():
            parameter.mul_(60.0)  # masks that are sure of themselves, so that the points of a set show in them
        policy.mask_reader.of_mask.weight.mul_(5.0)
        context = task.encode(policy, make_batch(task, (0, 3)))
    assert bool(context.cells.all())
    return task, policy, context


def see_one(policy: AttentionModel, context: AttentionContext, row: list[int]) -> Tensor:
    """Return what one set's points so far show, [P, V]; the points of each label are given to SAM by themselves."""
    actions = torch.tensor(row).expand(len(context.cells), 1, -1)
    placed = Rollouts(actions, torch.zeros(actions.shape), torch.ones_like(actions, dtype=torch.bool))
    return policy.see(context, placed)[:, 0]


def naive_logprobs(
    task: AttentionTask, policy: AttentionModel, context: AttentionContext, row: list[int], temperature: float
) -> list[float]:
    """Return the log-probability of one trajectory on each image: look, see, decide one by one."""
    size, totals = task.model.points // task.model.looks, []
    for p in range(len(context.cells)):
        trunk = policy.policy.read(context.features, context.texture)
        first, total, taken = policy.propose(context)[0], 0.0, set()
        for i, action in enumerate(row):
            if i % size == 0:  # a new look
                maps = [first.cells[p]] if first.background is None else [first.cells[p], first.background[p]]
                if i:
                    seen = see_one(policy, context, row[:i])[p].reshape(1, 1, 2, 2)
                    reader = policy.mask_reader
                    change = reader.change((reader.of_image(trunk[p : p + 1]) + reader.of_mask(seen)).relu())
                    maps = [z + change[0, y].flatten() for y, z in enumerate(maps)]
                every = {(v, y): math.exp(float(z[v]) / temperature) for y, z in enumerate(maps) for v in range(V)}
            mass = {choice: m for choice, m in every.items() if choice[0] not in taken}
            odds = 0.0
            if first.stops is not None and i >= task.model.stop.min_points:
                h = float(first.stops[p, i - task.model.stop.min_points])
                if i >= size:
                    looked_at = torch.stack([seen.mean(), seen.max()])  # the region is the whole image
                    h += float(policy.mask_reader.stop(looked_at)[i - task.model.stop.min_points])
                odds = math.exp(h / temperature) / (sum(mass.values()) / sum(every.values()))
            if action == V:
                total += math.log(odds / (1 + odds))
                break
            choice = (action, 0) if action < V else (action - V - 1, 1)
            total += math.log(mass[choice] / sum(mass.values()) / (1 + odds))
            taken.add(choice[0])
        totals.append(total)
    return totals


def every_trajectory(task: AttentionTask) -> Tensor:
    """Return all rows of actions: cells in every order, with every label, stopped after every number of points that may be."""
    k = task.model.points
    least = k if task.model.stop is None else task.model.stop.min_points
    labels = (0, V + 1) if task.model.point_labels == "both" else (0,)
    rows = [
        [*(cell + label for cell, label in zip(cells, kinds, strict=True)), *[V] * (k - n)]
        for n in range(least, k + 1)
        for cells in permutations(range(V), n)
        for kinds in product(labels, repeat=n)
    ]
    return torch.tensor(rows)


def observed(task: AttentionTask, policy: AttentionModel, context: AttentionContext, rows: Tensor) -> LookRollouts:
    """Return trajectories [R, k] as R samples of each image, with what the policy has seen on the way."""
    size, k = task.model.points // task.model.looks, task.model.points
    actions = rows.expand(len(context.cells), -1, -1)
    is_valid = torch.arange(k) <= (actions != V).sum(-1, keepdim=True)
    drawn = Rollouts(actions, torch.zeros(actions.shape), is_valid)
    cut = [replace(drawn, actions=actions[..., :d], is_valid=is_valid[..., :d]) for d in range(size, k, size)]
    return LookRollouts(*vars(drawn).values(), seen=torch.stack([policy.see(context, part) for part in cut], 2))


CASES = {
    "two looks": {"points": 2, "looks": 2},
    "two points a look": {"points": 4, "looks": 2},
    "four looks": {"points": 4, "looks": 4},
    "labels": {"points": 2, "looks": 2, "point_labels": "both"},
    "stops": {"points": 3, "looks": 3, "stop": {"min_points": 1}},
    "two points a look and stops": {"points": 4, "looks": 2, "stop": {"min_points": 1}},
    "a mask prompt": {"points": 4, "looks": 4, "mask_prompt": True},
    "a cell's policy": {"points": 2, "looks": 2, "policy_reads": "cell"},
}


@torch.no_grad()
def test_the_choices_of_each_look_add_up_to_one_over_the_samples_of_an_image():
    """So that a KL between them is a sum over looks of means over samples: here of three samples and two looks."""
    task, policy, context = looking(points=2, looks=2)
    other = looking(points=2, looks=2)[1]
    shake(other, seed=5)
    drawn = task.look(policy, context, 3, temperature=0.7, generator=torch.Generator().manual_seed(0))
    full, others = (task.score(one, context, drawn, temperature=0.7).log_probs_full for one in (policy, other))
    first, later = full.exp()[:, :V], full.exp()[:, V:].reshape(2, 3, V)
    torch.testing.assert_close((first.sum(1), later.sum(2)), (torch.ones(2), torch.full((2, 3), 1 / 3)))
    alone = [
        task.score(one, context, part(drawn, g), temperature=0.7).log_probs_full for g in range(3) for one in (policy, other)
    ]
    kl = [torch.where(p > -torch.inf, p.exp() * (p - q), 0.0).sum(1) for p, q in zip(alone[::2], alone[1::2], strict=True)]
    found = torch.where(full > -torch.inf, full.exp() * (full - others), 0.0).sum(1)
    torch.testing.assert_close(found, torch.stack(kl).mean(0))


def part(drawn: LookRollouts, g: int) -> LookRollouts:
    """Return one sample of each image."""
    return LookRollouts(*(value[:, g : g + 1] for value in vars(drawn).values()))


@pytest.mark.parametrize("model", CASES.values(), ids=CASES.keys())
@torch.no_grad()
def test_every_trajectory_agrees_with_a_plain_loop_and_all_sum_to_one(model: dict[str, Any]):
    task, policy, context = looking(**model)
    rollouts = observed(task, policy, context, every_trajectory(task))
    scored = task.score(policy, context, rollouts, temperature=0.7).logprobs
    assert torch.count_nonzero(scored[~rollouts.is_valid]) == 0
    total = scored.double().sum(-1)
    torch.testing.assert_close(total.exp().sum(-1), torch.ones(2, dtype=torch.float64), atol=2e-6, rtol=0)
    some = torch.randperm(rollouts.actions.shape[1], generator=torch.Generator().manual_seed(0))[:25].tolist()
    for g in some:
        want = naive_logprobs(task, policy, context, rollouts.actions[0, g].tolist(), 0.7)
        assert total[:, g].tolist() == pytest.approx(want, abs=2e-5)
    one = replace(rollouts, **{name: value[:, -1:] for name, value in vars(rollouts).items()})
    alone = task.score(policy, context, one, temperature=0.7).logprobs.double().sum(-1)
    torch.testing.assert_close(alone[:, 0], total[:, -1], atol=2e-6, rtol=0)  # whatever the group
    # What was seen counts: with the masks of other trajectories the probabilities are others.
    blind = task.score(policy, context, replace(rollouts, seen=rollouts.seen.flip(1)), temperature=0.7).logprobs
    assert float((blind.double().sum(-1) - total).abs().max()) > 0.05


@pytest.mark.parametrize("case", ["two points a look", "four looks", "labels", "stops", "a mask prompt"])
def test_outlines_teach_every_look_where_the_place_still_has_a_cell(case: str):
    """Against a loop over images, looks and samples; a look that a stopped set never took is not asked."""
    task, policy, context = looking(**CASES[case])
    rollouts = observed(task, policy, context, every_trajectory(task)[::3])
    bag = torch.zeros(2, 8, 8)
    bag[0, :4, 4:], bag[1, 4:] = 1.0, 1.0  # cell 1 of the first image, cells 2 and 3 of the second
    batch, size = replace(make_batch(task, (0, 3)), bag=bag), task.model.points // task.model.looks
    found = location_losses(task.model, policy, context, batch, rollouts)
    said = found.detach()
    trunk, first = policy.policy.read(context.features, context.texture), policy.propose(context)[0].cells
    for p, place in enumerate(({1}, {2, 3})):
        for look in range(task.model.looks):
            of_samples = []
            for g, row in enumerate(rollouts.actions[p].tolist()):
                if not rollouts.is_valid[p, g, look * size]:
                    continue
                z = first[p].tolist()
                if look:
                    seen = rollouts.seen[p, g, look - 1].reshape(1, 1, 2, 2)
                    reader = policy.mask_reader
                    change = reader.change((reader.of_image(trunk[p : p + 1]) + reader.of_mask(seen)).relu())
                    z = (first[p] + change[0, 0].flatten()).tolist()
                taken = {action % (V + 1) for action in row[: look * size]} - {V}
                left = set(range(V)) - taken
                mass = {v: math.exp(z[v]) for v in left}
                of_samples.append(-math.log(sum(mass[v] for v in left & place) / sum(mass.values())) if left & place else 0.0)
            assert float(said[p, look]) == pytest.approx(np.mean(of_samples), abs=1e-4), (p, look)
    assert found.shape == (2, task.model.looks)
    assert float((said[:, 1:] - said[:, :1]).abs().min()) > 1e-3
    torch.testing.assert_close(location_losses(task.model, policy, context, batch, None), found[:, :1])
    slope = torch.autograd.grad(found[:, 1:].sum(), policy.mask_reader.change.weight)[0]
    assert float(slope.abs().max()) > 1e-4


@torch.no_grad()
def test_drawn_trajectories_follow_the_enumerated_distribution_and_keep_what_they_saw():
    task, policy, context = looking(points=3, looks=3, stop={"min_points": 1}, point_labels="both")
    n, rows = 6000, every_trajectory(task)
    drawn = task.sample(policy, context, n, temperature=0.7, proposal="policy", generator=torch.Generator().manual_seed(2))
    base = (2 * V + 1) ** torch.arange(3)
    where = {int(code): i for i, code in enumerate((rows * base).sum(-1))}
    exact = observed(task, policy, context, rows)
    total = task.score(policy, context, exact, temperature=0.7).logprobs.double().sum(-1)
    for p in range(2):
        index = torch.tensor([where[int(code)] for code in (drawn.actions[p] * base).sum(-1)])
        torch.testing.assert_close(drawn.logprobs[p].double().sum(-1), total[p, index], atol=2e-5, rtol=0)
        torch.testing.assert_close(drawn.seen[p], exact.seen[p, index], atol=2e-5, rtol=0)
        share = torch.bincount(index, minlength=len(rows)).double() / n
        bound = 4.5 * (total[p].exp() * (1 - total[p].exp()) / n).sqrt() + 1 / n
        assert bool(((share - total[p].exp()).abs() < bound).all())
    assert set((drawn.actions != V).sum(-1).flatten().tolist()) == {1, 2, 3}


def test_the_mean_estimate_is_the_gradient_of_the_expected_reward():
    """Finite differences of sum over trajectories of p * R, beside the mean of R * grad log p over drawn trajectories."""
    task, policy, context = looking(points=2, looks=2)
    rows = every_trajectory(task)
    reward = torch.randn(len(rows), generator=torch.Generator().manual_seed(4)).double()
    exact = observed(task, policy, context, rows)
    learned = [*policy.policy.attention.parameters(), *policy.mask_reader.parameters(), *policy.policy.trunk.parameters()]
    way = [torch.randn(x.shape, generator=torch.Generator().manual_seed(i)) for i, x in enumerate(learned)]

    @torch.no_grad()
    def expected(shift: float) -> float:
        for x, d in zip(learned, way, strict=True):
            x.add_(shift * d)
        logprobs = task.score(policy, context, exact, temperature=1.0).logprobs.double().sum(-1)
        for x, d in zip(learned, way, strict=True):
            x.sub_(shift * d)
        return float((logprobs[0].exp() * reward).sum())

    step = 2e-3
    slope = (expected(step) - expected(-step)) / (2 * step)
    base, n = V ** torch.arange(2), 12_000
    where = {int(code): i for i, code in enumerate((rows * base).sum(-1))}
    drawn = task.sample(policy, context, n, temperature=1.0, proposal="policy", generator=torch.Generator().manual_seed(0))
    index = torch.tensor([where[int(code)] for code in (drawn.actions[0] * base).sum(-1)])
    # grad log p of each of the 12 trajectories along the way, once; then its mean over what was drawn.
    logprobs = task.score(policy, context, exact, temperature=1.0).logprobs[0].sum(-1)
    along = []
    for one in logprobs:
        found = torch.autograd.grad(one, learned, retain_graph=True, allow_unused=True)
        along.append(sum(float((g * d).sum()) for g, d in zip(found, way, strict=True) if g is not None))
    estimates = (torch.tensor(along, dtype=torch.float64) * reward)[index]
    error = float(estimates.std() / n**0.5)
    assert abs(slope) > 10 * error  # the test has power
    assert float(estimates.mean()) == pytest.approx(slope, abs=4 * error)


@torch.no_grad()
def test_with_a_mask_prompt_each_look_refines_the_mask_of_the_one_before():
    task, policy, context = looking(points=3, looks=3, mask_prompt=True)
    batch, row = make_batch(task, (0, 3)), [2, 0, 3]
    actions = torch.tensor(row).expand(2, 1, -1)
    rollouts = Rollouts(actions, torch.zeros(actions.shape), torch.ones_like(actions, dtype=torch.bool))
    mask = None
    for d in (1, 2, 3):
        mask = policy.sam.decode(context.features, cell_centres(actions[..., :d], 2), earlier=mask).mask_logits
        mask = mask + policy.heatmap_level
        sure = adaptive_avg_pool2d((mask / 2).tanh(), 2).flatten(2)[:, 0]
        torch.testing.assert_close(see_one(policy, context, row[:d]), sure, atol=1e-6, rtol=0)
    torch.testing.assert_close(task.decode(policy, context, rollouts, batch).mask_logits, mask, atol=1e-5, rtol=0)
    blank = policy.sam.decode(context.features, cell_centres(actions, 2), earlier=torch.zeros_like(mask)).mask_logits
    assert not torch.allclose(blank, mask, atol=1e-3)


@torch.no_grad()
def test_a_look_is_at_the_prompted_mask_where_a_loss_teaches_it():
    shown = {"mask_share": 1.0, "outline_weight": 1.0}
    assert make_task(looks=3).model.looks_at == "heatmap"
    assert make_task(looks=3, looks_at="heatmap", supervised=shown).model.looks_at == "heatmap"
    task = make_task(looks=3, supervised=shown)
    policy = task.build_policy(0)
    shake(policy)
    again = AttentionModel.from_description(task.describe(policy))  # as a prediction builds it: without losses
    again.load_state_dict(policy.state_dict())
    context = task.encode(policy, make_batch(task))
    actions = torch.tensor([[[5]]]).expand(4, 1, 1)
    placed = Rollouts(actions, torch.zeros(actions.shape), torch.ones_like(actions, dtype=torch.bool))
    drawn = policy.sam.decode(context.features, cell_centres(actions, 4), with_segmentation=True)
    for logits, model in ((drawn.segmentation_logits, policy), (drawn.segmentation_logits, again)):
        wanted = adaptive_avg_pool2d((logits / 2).tanh(), 4).flatten(2)
        torch.testing.assert_close(model.see(context, placed), wanted, atol=1e-6, rtol=0)
    other = adaptive_avg_pool2d((drawn.mask_logits / 2).tanh(), 4).flatten(2)
    assert not torch.allclose(policy.see(context, placed), other, atol=1e-3)


def test_an_untrained_policy_looks_as_one_that_looks_once():
    once, often = make_task(points=2).build_policy(0), make_task(points=2, looks=2).build_policy(0)
    mine, theirs = once.state_dict(), often.state_dict()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())
    assert {name.split(".")[0] for name in theirs.keys() - mine.keys()} == {"mask_reader"}
    task = make_task(points=2, looks=2)
    context = task.encode(often, make_batch(task))
    drawn = task.sample(often, context, 6, temperature=1.0, proposal="policy", generator=torch.Generator().manual_seed(0))
    plain = Rollouts(drawn.actions, drawn.logprobs, drawn.is_valid)
    scored = make_task(points=2).score(once, make_task(points=2).encode(once, make_batch(task)), plain, temperature=1.0)
    torch.testing.assert_close(drawn.logprobs, scored.logprobs.detach(), atol=1e-6, rtol=0)
    assert bool(drawn.seen.any())


def test_greedy_takes_the_likeliest_cell_of_each_look():
    task, policy, context = looking(points=4, looks=4)
    greedy = task.look(policy, context, 1, temperature=1.0, generator=None).actions
    for p in range(2):
        row: list[int] = []
        for _ in range(4):
            left = [v for v in range(V) if v not in row]
            rest = [[*row, v, *(x for x in left if x != v)] for v in left]
            logprobs = task.score(policy, context, observed(task, policy, context, torch.tensor(rest)), temperature=1.0).logprobs
            row.append(left[int(logprobs[p, :, len(row)].argmax())])
        assert greedy[p, 0].tolist() == row


def test_sets_without_what_was_seen_are_refused():
    task, policy, context = looking(points=2, looks=2)
    uniform = task.sample(policy, context, 3, temperature=1.0, proposal="uniform", generator=torch.Generator().manual_seed(0))
    assert type(uniform) is Rollouts
    with pytest.raises(ValueError, match="rollouts must hold the masks that were seen with attention.model.looks above 1"):
        task.score(policy, context, uniform, temperature=1.0)
    for wrong, message in (
        ({"points": 3, "looks": 2}, r"attention.model.looks must divide points = 3, got 2"),
        ({"mask_prompt": True}, r"attention.model.looks must be above 1 with mask_prompt, got 1"),
        ({"looks": 3, "looks_at": "mask"}, r"attention.model.looks_at must be heatmap with .*outline_weight = 0, got mask"),
        ({"points": 2, "looks": 2, "likelihood": "independent"}, r"likelihood must be plackett_luce with looks above 1"),
    ):
        with pytest.raises(ValueError, match=message):
            make_task(**wrong)


REPLAYED = {
    "replay": {"capacity": 32, "max_age_steps": 5, "share": 0.5, "importance_cap": 2.0}, "kl_estimator": "exact",
    "kl_weight": constant(0.1), "dynamic_sampling": {"max_retries": 2}, "update_epochs": 2,
}  # fmt: skip


def test_an_arm_with_looks_and_options_trains_is_exported_and_predicts():
    task, data = make_task(points=3, looks=3, stop={"min_points": 1}, point_labels="both"), make_data()
    algorithm, training = algorithm_params(**REPLAYED), training_params(epochs=2, batch_size=4)
    state = make_state(task, data, algorithm, training)
    shake(state.policy)
    yielded = list(nodes.train(algorithm, training, "never", task, data, state, NoCheckpoint("nowhere"), None))
    trained = [row for rows, _ in yielded for row in rows if row["split"] == "train"]
    assert [row["policy/ratio_first"] for row in trained] == [1.0] * 4
    assert [row.get("replay/groups") for row in trained] == [None, 2.0, 2.0, 2.0]
    assert all(row["kl/reference"] > 0 for row in trained[1:])
    model = nodes.export_model(task, [checkpoint for _, checkpoint in yielded if checkpoint is not False][-1])
    policy = AttentionModel.from_description(model.config)
    policy.load_state_dict(dict(model.tensors))
    predictions, rollouts, shown = nodes.predict(algorithm, training, 0, task, data, model)
    assert predictions.groupby("rule")["points_used"].mean()["uniform"] == 3.0
    assert rollouts["point_label0"].notna().all()
    assert shown["labels_trained"].shape == shown["contribution"].shape
    context = task.encode(policy, make_batch(task))
    predictor = Predictor(task, policy, None, None)
    few, many = (predictor._sample(context, content=1, seed=0, n_samples=n) for n in (1, 3))
    assert torch.equal(few.actions, many.actions[:, :1])
    assert np.isfinite(predictions["reward"]).all()
