"""The prompted mask: what it is drawn with, who is shown an outline, and how well a mask meets one."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_attention import (
    GRID,
    N_TRAIN,
    SIZE,
    algorithm_params,
    differing,
    gather,
    make_data,
    make_examples,
    make_state,
    make_task,
    section,
    shake,
    training_params,
    weights,
)
from torch import Tensor

from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.pipelines.experiments.trials.trial_training import train_weights
from grpo_pipeline.pipelines.training.loader import make_training_batch
from grpo_pipeline.pipelines.training.loop import StepRunner
from grpo_pipeline.tasks.attention.batch import outlined_share, shown_outlines
from grpo_pipeline.tasks.attention.data.examples import Examples
from grpo_pipeline.tasks.attention.evaluation import evaluate
from grpo_pipeline.tasks.attention.evaluation.point_rules import as_rollouts
from grpo_pipeline.tasks.attention.model.mask_agreement import clicks_to, hausdorff95, overlap, resize_masks
from grpo_pipeline.tasks.attention.model.mask_reading import (
    MASK_PARTS,
    SHAPE,
    describe_shape,
    mask_parts,
    read_at_points,
    seeded_masks,
)
from grpo_pipeline.tasks.attention.model.segmentation import PixelFeatures, nearness
from grpo_pipeline.tasks.attention.task import AttentionTask

ROWS = np.arange(N_TRAIN)
REWARD = {"dice": {"weight": 0.5}}
SUPERVISED = {"outline": {"weight": 1.0}, "heatmap_outline": {"weight": 0.6}, "location": {"weight": 0.7}}


def segmenting(share: float = 0.5, examples: Examples | None = None, **model: Any) -> AttentionTask:
    model = {"detail": {"channels": 8}, "patch_size": 4} | model
    return make_task(examples, reward=REWARD, supervised=SUPERVISED | {"mask_share": share}, **model)


def with_detail() -> TrainingParams:
    rates = section("training")["optimizer"]["learning_rates"]
    return training_params(optimizer={"learning_rates": rates | {"detail": 0.003}})


def trained(task: AttentionTask, examples: Examples, steps: int = 3) -> dict[str, Tensor]:
    """Return the weights after a few steps of GRPO with losses and rewards of outlines."""
    algorithm, training, data = algorithm_params(), with_detail(), make_data(examples)
    state, run = make_state(task, data, algorithm, training), StepRunner(task, algorithm, training)
    for step in range(steps):
        state, _ = run(state, make_training_batch(task, data, ROWS, seed=0, step=step))
    return weights(state.policy)


def poisoned(examples: Examples, rows: np.ndarray) -> Examples:
    lesion = examples.lesion.copy()
    lesion[rows] = ~lesion[rows]
    return replace(examples, lesion=lesion)


def test_outlines_that_are_not_shown_reach_no_weight():
    examples = make_examples()
    task = segmenting(0.5, examples)
    shown = shown_outlines(examples, np.arange(len(examples.table)), 0.5)
    clean = trained(task, examples)
    assert 0 < shown[ROWS].sum() < N_TRAIN
    assert not shown[N_TRAIN:].any()  # no held-out core, whatever the share
    assert differing(clean, trained(task, poisoned(examples, np.flatnonzero(~shown)))) == []
    lesions = np.flatnonzero(shown & examples.lesion.any((1, 2)))
    assert differing(clean, trained(task, poisoned(examples, lesions)))


def test_whole_patients_are_shown_and_a_larger_share_holds_a_smaller_one():
    examples, rows = make_examples(), np.arange(15)
    before = np.zeros(15, dtype=bool)
    for share, patients in [(0.0, 0), (0.1, 1), (0.5, 2), (0.75, 3), (1.0, 4)]:  # of four training patients
        shown = shown_outlines(examples, rows, share)
        assert examples.table["patient_id"][shown].nunique() == patients
        assert shown.sum() == 2 * patients  # both cores of each
        assert (shown >= before).all()
        before = shown
    np.testing.assert_array_equal(shown_outlines(examples, rows[::-1], 0.5), shown_outlines(examples, rows, 0.5)[::-1])


def test_the_share_that_was_shown_is_said():
    examples = make_examples()
    known = examples.lesion[ROWS].any((1, 2)).sum()
    assert outlined_share(make_data(examples), ROWS, segmenting(1.0).supervised.mask_share) == known / N_TRAIN
    assert outlined_share(make_data(examples), ROWS, make_task().supervised.mask_share) == 0


def test_a_core_without_a_shown_outline_has_no_advantage():
    task = segmenting(0.5)
    algorithm, training, data = algorithm_params(), with_detail(), make_data()
    state = make_state(task, data, algorithm, training)
    shake(state.policy)
    found = gather(algorithm, training, task, state, task.make_batch(data, ROWS)).rewards
    is_shown = shown_outlines(make_examples(), ROWS, 0.5) & make_examples().lesion[ROWS].any((1, 2))
    assert torch.equal(found.components["dice"][~is_shown], torch.zeros(int((~is_shown).sum()), training.group_size))
    assert bool((found.components["dice"][is_shown] != 0).any())
    assert found.weights["dice"] == REWARD["dice"]["weight"]


@pytest.mark.parametrize("grid", [3, 4, 8])
def test_pixels_and_cells_have_their_shapes_and_start_as_nothing(grid: int):
    net = PixelFeatures(8, 4, grid)
    features, cells = net(torch.randn(2, 1, 8 * grid, 8 * grid))
    assert features.shape == (2, 8, 4 * grid, 4 * grid)
    assert cells.shape == (2, 8, grid, grid)
    points = torch.rand(2, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    pixels = net.prompted(features, points, None)
    assert torch.equal(pixels, torch.zeros(2, 3, 5, 4 * grid, 4 * grid))  # SAM's pixels, and a logit
    shake(net)
    drawn = net.prompted(features, points, None)
    assert not torch.allclose(drawn[:, 0], drawn[:, 1], atol=1e-3)  # the points are seen
    # Padding is no point, and no point is near nothing.
    is_point = torch.tensor([[[True, False], [False, False], [True, True]]]).expand(2, 3, 2)
    padded = net.prompted(features, points, is_point)
    torch.testing.assert_close(padded[:, 0], net.prompted(features, points[:, :, :1], None)[:, 0])
    torch.testing.assert_close(padded[:, 1], net.prompted(features, points[:, :, :0], None)[:, 1])
    torch.testing.assert_close(padded[:, 2], drawn[:, 2])


def test_nearness_golden():
    # Points at the centres of the pixels (row 0, column 1) and (row 2, column 1) of four: the first column is a quarter of the
    # side away from the nearer one.
    near = nearness(torch.tensor([[[[0.375, 0.125], [0.375, 0.625]]]]), None, 4)[0, 0]
    assert near.shape == (3, 4, 4)
    torch.testing.assert_close(near[:, 0, 1], torch.ones(3))
    torch.testing.assert_close(near[:, 2, 0], torch.tensor([math.exp(-0.0625 / (2 * s * s)) for s in (0.05, 0.1, 0.2)]))
    torch.testing.assert_close(near[:, 3, 3], torch.tensor([math.exp(-(0.25 + 0.0625) / (2 * s * s)) for s in (0.05, 0.1, 0.2)]))


# What a class decoder reads of a mask, against loops over cells and pixels.


def test_parts_of_a_mask_equal_a_naive_loop():
    grid = 6
    masks = torch.rand(2, 3, 4 * grid, 4 * grid, generator=torch.Generator().manual_seed(0)).pow(3)
    masks[1, 2, :, :8] = 0
    parts = mask_parts(masks, grid)
    assert len(parts) == len(MASK_PARTS)
    for p, g in np.ndindex(2, 3):
        cells = masks[p, g].reshape(grid, 4, grid, 4).mean((1, 3)).numpy()
        expected = np.zeros((3, grid, grid))
        for i, j in np.ndindex(grid, grid):
            near = cells[max(0, i - 2) : i + 3, max(0, j - 2) : j + 3].max()
            expected[:, i, j] = cells[i, j], near - cells[i, j], cells[: i + 1, j].max() - cells[i, j]
        expected /= expected.sum((1, 2), keepdims=True)
        found = np.stack([part[p, g].reshape(grid, grid).numpy() for part in parts])
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert not any(bool(part.any()) for part in mask_parts(torch.zeros(1, 1, 8, 8), 2))  # no mask has no parts


def test_the_shape_of_a_mask_equals_a_naive_loop():
    height, width = 10, 14
    masks = torch.rand(1, 2, height, width, generator=torch.Generator().manual_seed(1)).double().pow(2)
    usual, spread = np.array(list(SHAPE.values())).T
    for g in range(2):
        m = masks[0, g].numpy()
        places = [((i + 0.5) / height, (j + 0.5) / width, m[i, j]) for i, j in np.ndindex(height, width)]
        area = sum(weight for *_, weight in places)
        y, x = (sum(place[axis] * place[2] for place in places) / area for axis in (0, 1))
        v_y = sum((one - y) ** 2 * weight for one, _, weight in places) / area + 1 / (12 * height**2)
        v_x = sum((one - x) ** 2 * weight for _, one, weight in places) / area + 1 / (12 * width**2)
        c = sum((one - y) * (two - x) * weight for one, two, weight in places) / area
        perimeter = sum(abs(m[i, j] - m[i + 1, j]) for i, j in np.ndindex(height - 1, width))
        perimeter += sum(abs(m[i, j] - m[i, j + 1]) for i, j in np.ndindex(height, width - 1))
        root, share = math.sqrt(v_y * v_x - c * c), area / (height * width)
        expected = [
            math.log(share),
            y,
            math.log(v_y / v_x),
            math.log(perimeter / math.sqrt(area)),
            math.log((m * (1 - m)).sum() / perimeter),
            math.log(share / (4 * math.pi * root)),
            math.log(2 * root / (v_y + v_x)),
            c / (v_y + v_x),
        ]
        found = describe_shape(masks)[0, g].numpy() * math.sqrt(len(SHAPE)) * spread + usual
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    # An ellipse fills the ellipse with its variances, whatever its size, place and turn.
    row, column = (np.mgrid[:200, :200] + 0.5) / 200
    turned = ((row - 0.4) + 0.5 * (column - 0.6)) / 0.1, ((column - 0.6) - 0.5 * (row - 0.4)) / 0.25
    ellipse = torch.from_numpy((turned[0] ** 2 + turned[1] ** 2 < 1).astype(float))[None, None]
    fill = describe_shape(ellipse)[0, 0, list(SHAPE).index("log_fill")] * math.sqrt(len(SHAPE)) * SHAPE["log_fill"][1]
    assert float(fill) + SHAPE["log_fill"][0] == pytest.approx(0, abs=0.01)
    assert bool(describe_shape(torch.zeros(1, 1, 8, 8)).isfinite().all())


def test_seeded_masks_equal_a_naive_loop_and_take_bright_points_like_dark_ones():
    side = 12
    # So bright and dark that the bound of the contrast decides in some places.
    images = 5 * torch.randn(2, 1, 24, 24, generator=torch.Generator().manual_seed(2))
    points = torch.rand(2, 3, 2, 2, generator=torch.Generator().manual_seed(3))
    is_point = torch.tensor([[[True, True], [True, False], [False, False]]]).expand(2, 3, 2)
    found = seeded_masks(images, points, is_point, side)
    for p, g in np.ndindex(2, 3):
        small = images[p, 0].reshape(side, 2, side, 2).mean((1, 3))
        padded = torch.nn.functional.pad(small, (2, 2, 2, 2))
        smooth = [[float(padded[i : i + 5, j : j + 5].sum() / 25) for j in range(side)] for i in range(side)]
        seeds = [point.tolist() for point, there in zip(points[p, g], is_point[p, g], strict=True) if there]
        if not seeds:
            assert not bool(found[p, g].any())
            continue
        at_points = np.mean([smooth[int(y * side)][int(x * side)] for x, y in seeds])
        square = [
            [min(((j + 0.5) / side - x) ** 2 + ((i + 0.5) / side - y) ** 2 for x, y in seeds) for j in range(side)]
            for i in range(side)
        ]
        near = np.exp(-np.array(square) / (2 * 0.28**2))
        around = (near * np.array(smooth)).sum() / near.sum()
        above = ((at_points + around) / 2 - np.array(smooth)) * np.sign(around - at_points)
        assert (above / 0.3).max() > 2
        expected = 1 / (1 + np.exp(-(np.minimum(above / 0.3, 1) - np.array(square) / (2 * 0.14**2) + 1)))
        np.testing.assert_allclose(found[p, g].numpy(), expected, atol=1e-5)
        read = read_at_points(found, points, is_point)[p, g].numpy()
        np.testing.assert_allclose(read, expected * np.exp(-np.array(square) / (2 * 0.1**2)), atol=1e-5)
    torch.testing.assert_close(seeded_masks(-images, points, is_point, side), found)


def test_every_loss_of_an_outline_reaches_the_pixels():
    task = segmenting(1.0)
    policy = task.build_policy(0)
    shake(policy, scale=0.05)
    batch = task.replicate(task.make_batch(make_data(), ROWS), 2)
    context = task.encode(policy, batch)
    rollouts = task.sample(policy, context, 2, temperature=1.0, proposal="policy", generator=torch.Generator().manual_seed(0))
    outcomes = task.decode(policy, context, rollouts, batch)
    assert outcomes.segmentation_logits is not None
    assert outcomes.segmentation_logits.shape == outcomes.mask_logits.shape
    task.supervised_loss(policy, context, batch, outcomes).backward()
    assert all(p.grad is not None and bool((p.grad != 0).any()) for p in policy.detail.parameters())
    kept = task.detach(context)
    assert not kept.detail.requires_grad
    assert not kept.detail_cells.requires_grad


def test_without_a_reader_no_prompted_mask_is_drawn():
    task = make_task()
    policy = task.build_policy(0)
    batch = task.make_batch(make_data(), ROWS)
    context = task.encode(policy, batch)
    generator = torch.Generator().manual_seed(0)
    rollouts = task.sample(policy, context, 2, temperature=1.0, proposal="uniform", generator=generator)
    assert task.decode(policy, context, rollouts, batch).segmentation_logits is None
    assert batch.outline is None
    assert "dice" not in task.evaluate(policy, make_data(), np.arange(10, 15), seed=0, n_samples=2)


@pytest.mark.parametrize(
    ("reward", "supervised", "message"),
    [
        ({"dice": {"weight": 1.0}}, {}, r"mask_share must be given with attention.reward.dice, got null"),
        ({}, {"outline": {"weight": 1.0}}, r"mask_share must be above 0 with outline, got None; say whose"),
        ({}, {"heatmap_outline": {"weight": 0.5}}, r"mask_share must be above 0 with heatmap_outline, got None; say"),
        ({}, {"mask_share": 1.5}, "mask_share"),
    ],
)
def test_masks_that_nobody_is_shown_are_refused(reward: dict[str, float], supervised: dict[str, float], message: str):
    with pytest.raises(ValueError, match=message):
        make_task(reward=reward, supervised=supervised)


def test_an_outline_that_is_the_bag_and_a_share_without_outlines_are_refused():
    examples = make_examples()
    bag = examples.bag.copy()
    bag[3] = examples.lesion[3]
    with pytest.raises(
        ValueError, match=r"mask_share must be null where the outline is the bag mask, got 0.5, and .* core 'c03'"
    ):
        segmenting(0.5, replace(examples, bag=bag))
    none = replace(examples, lesion=np.zeros_like(examples.lesion))
    with pytest.raises(ValueError, match=r"mask_share must show an outline of at least one training core, got 1, with 8 cores"):
        segmenting(1.0, none)


# What the figures of masks are, against loops over pixels.


def edge_of(mask: np.ndarray) -> list[tuple[int, int]]:
    found = []
    for i, j in np.argwhere(mask):
        around = [(i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)]
        if any(not (0 <= a < mask.shape[0] and 0 <= b < mask.shape[1] and mask[a, b]) for a, b in around):
            found.append((int(i), int(j)))
    return found


def naive_hausdorff95(mask: np.ndarray, outline: np.ndarray, spacing: tuple[float, float]) -> float:
    edges = edge_of(mask), edge_of(outline)

    def directed(own: list[tuple[int, int]], other: list[tuple[int, int]]) -> list[float]:
        return [min(math.hypot((i - a) * spacing[0], (j - b) * spacing[1]) for a, b in other) for i, j in own]

    return max(float(np.percentile(directed(*edges), 95)), float(np.percentile(directed(*edges[::-1]), 95)))


def blobs(seed: int, size: int = 24) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:size, :size]
    made = []
    for _ in range(2):
        (cy, cx), (ry, rx) = rng.uniform(6, 18, 2), rng.uniform(2, 7, 2)
        made.append(((y - cy) / ry) ** 2 + ((x - cx) / rx) ** 2 < 1)
    return made[0], made[1]


@pytest.mark.parametrize("seed", range(6))
def test_distance_of_the_edges_equals_a_naive_loop(seed: int):
    mask, outline = blobs(seed)
    for spacing in ((1.0, 1.0), (0.5, 0.2)):
        assert hausdorff95(mask, outline, spacing) == pytest.approx(naive_hausdorff95(mask, outline, spacing), abs=1e-9)
    assert hausdorff95(outline, outline) == 0
    assert math.isnan(hausdorff95(mask, np.zeros_like(mask)))
    assert hausdorff95(np.zeros_like(mask), outline, (3.0, 4.0)) == pytest.approx(24 * 5)


def test_overlap_equals_counting_pixels():
    for seed in range(4):
        mask, outline = blobs(seed)
        dice, union = overlap(torch.from_numpy(mask)[None, None], torch.from_numpy(outline)[None])
        both, either = int((mask & outline).sum()), int((mask | outline).sum())
        assert float(union) == pytest.approx(both / either)
        assert float(dice) == pytest.approx(2 * both / (both + either))
    empty = torch.zeros(1, 2, 4, 4, dtype=torch.bool)
    assert overlap(empty, ~empty[:, 0])[0].tolist() == [[0.0, 0.0]]
    assert bool(overlap(~empty, empty[:, 0])[0].isnan().all())  # no outline: nothing is known


def test_clicks_are_counted_until_the_first_good_mask():
    nan = math.nan
    dice = torch.tensor([[0.2, 0.85, 0.7], [0.9, 0.1, 0.1], [0.1, 0.2, 0.3], [nan, nan, nan]])
    assert clicks_to(dice, 0.8).tolist()[:3] == [2, 1, 4]
    assert bool(clicks_to(dice, 0.8)[3].isnan())


def test_a_mask_is_where_the_enlarged_logits_are_positive():
    logits = torch.tensor([[[[-1.0, 1.0], [-1.0, 1.0]]]])
    assert resize_masks(logits, 4)[0, 0].tolist() == [[False, False, True, True]] * 4


def test_the_heatmap_begins_plain_and_gains_the_same_pixels_whatever_the_points():
    task, plain = segmenting(1.0), make_task(patch_size=4)
    policy, batch = task.build_policy(0), task.make_batch(make_data(), ROWS[:2])
    context = task.encode(policy, batch)
    points = torch.tensor([[[18, 19, 20], [40, 41, 42]]]).expand(2, 2, 3)
    drawn = task.decode(policy, context, Rollouts(points, torch.zeros(2, 2, 3), points >= 0), batch).mask_logits
    other = plain.build_policy(0)
    alone = plain.decode(
        other, plain.encode(other, batch), Rollouts(points, torch.zeros(2, 2, 3), points >= 0), batch
    ).mask_logits
    # Each begins at the level that its own losses ask for.
    torch.testing.assert_close(drawn - policy.heatmap_level, alone - other.heatmap_level, atol=1e-6, rtol=0)
    with torch.no_grad():
        policy.detail.heat.weight.normal_(generator=torch.Generator().manual_seed(2))
        policy.detail.heat.bias.fill_(0.3)
    gained = task.decode(policy, context, Rollouts(points, torch.zeros(2, 2, 3), points >= 0), batch).mask_logits - drawn
    weight = policy.detail.heat.weight[0, :, 0, 0]
    expected = (context.detail * weight[:, None, None]).sum(1) + 0.3
    torch.testing.assert_close(gained, expected[:, None].expand_as(gained), atol=1e-4, rtol=1e-4)
    # The prompted mask's pixels are told of no point that was not placed.
    shake(policy.detail)
    places = torch.rand(2, 2, 3, 2, generator=torch.Generator().manual_seed(3))
    is_point = torch.tensor([True, False, True]).expand(2, 2, 3)
    told = policy._prompted(context.detail, places, is_point)
    torch.testing.assert_close(told, policy.detail.prompted(context.detail, places[:, :, [0, 2]], None))
    assert not torch.allclose(told, policy.detail.prompted(context.detail, places, None), atol=1e-3)


def test_masks_of_held_out_cores_are_measured_for_every_rule(monkeypatch: pytest.MonkeyPatch):
    task = segmenting(1.0)
    policy = task.build_policy(0)
    shake(policy)
    rows = task.evaluate(policy, make_data(), np.arange(10, 15), seed=0, n_samples=3)
    is_known = rows["lesion_coverage"].notna()
    masks = ["dice", "iou", "hausdorff95_px", "clicks_to_80", "clicks_to_90"]
    assert rows.loc[is_known & (rows["rule"] != "none"), masks].notna().all(axis=None)
    assert rows.loc[~is_known, masks].isna().all(axis=None)
    assert rows["hausdorff95_mm"].isna().all()  # no spacing is known
    assert "heatmap" in set(rows["rule"])
    assert set(rows.loc[is_known & (rows["rule"] == "policy"), "clicks_to_80"]) <= {1.0, 2.0, 3.0, 4.0}
    # One of the numbers, again by hand: the first set of the greedy rule is its only one.
    one = rows[(rows["rule"] == "greedy") & (rows["core_id"] == "c11")].iloc[0]
    batch = task.make_batch(make_data(), np.array([11]))
    context = task.encode(policy, batch)
    points = policy.propose(context)[0].cells.masked_fill(~context.cells, -torch.inf).topk(3).indices[:, None]
    drawn = resize_masks(task.decode(policy, context, as_rollouts(points), batch).segmentation_logits, SIZE)[0, 0].numpy()
    outline = make_examples().lesion[11]
    assert one["dice"] == pytest.approx(2 * (drawn & outline).sum() / (drawn.sum() + outline.sum()))
    # Clicks: after how many of these points the mask is as good as after one, two and three. Rows and columns have their own mm.
    examples = make_examples()
    measured = make_data(replace(examples, table=examples.table.assign(row_mm=0.5, column_mm=0.125)))
    by_count = [
        resize_masks(task.decode(policy, context, as_rollouts(points[..., :n]), batch).segmentation_logits, SIZE)[0, 0].numpy()
        for n in (1, 2, 3)
    ]
    dice = [2 * (mask & outline).sum() / (mask.sum() + outline.sum()) for mask in by_count]
    assert len(set(dice)) == 3
    monkeypatch.setattr(evaluate, "QUALITIES", tuple(dice))
    again = task.evaluate(policy, measured, np.array([11]), seed=0, n_samples=1).set_index("rule").loc["greedy"]
    for quality in dice:
        assert again[f"clicks_to_{round(100 * quality)}"] == 1 + next(n for n, d in enumerate(dice) if d >= quality)
    assert again["hausdorff95_mm"] == pytest.approx(hausdorff95(drawn, outline, (0.5, 0.125)))
    assert again["hausdorff95_mm"] != pytest.approx(hausdorff95(drawn, outline, (0.125, 0.5)))
    assert GRID * 8 == SIZE
    shown = task.showcase(policy, make_data(), np.array([11, 12]), seed=0)
    assert shown["prompted_mask"].shape == shown["heatmap"].shape
    assert not np.allclose(shown["prompted_mask"], shown["heatmap"])
    assert "prompted_mask" not in make_task().showcase(make_task().build_policy(0), make_data(), np.array([11]), seed=0)


def test_the_losses_of_outlines_of_micro_batches_add_up_to_those_of_the_batch():
    task = segmenting(0.75)
    policy = task.build_policy(0)
    shake(policy, scale=0.05)

    def parts(rows: np.ndarray) -> tuple[Any, ...]:
        batch = task.replicate(task.make_batch(make_data(), rows), 2)
        context = task.encode(policy, batch)
        points = torch.arange(6).reshape(1, 2, 3).expand(len(rows), 2, 3) + 18  # the same for every core
        return context, batch, task.decode(policy, context, Rollouts(points, torch.zeros(points.shape), points >= 0), batch)

    whole = parts(ROWS)
    counts = task.supervised_counts(whole[1])
    outlined = shown_outlines(make_examples(), ROWS, 0.75) & make_examples().lesion[ROWS].any((1, 2))
    assert counts.tolist() == [8, 8, outlined.sum()]
    assert 0 < outlined[:4].sum() < outlined.sum()
    of_parts = [parts(rows) for rows in (ROWS[:4], ROWS[4:])]
    shares = [task.supervised_counts(part[1]) / counts for part in of_parts]
    added = sum(task.supervised_loss(policy, *part, share) for part, share in zip(of_parts, shares, strict=True))
    torch.testing.assert_close(added, task.supervised_loss(policy, *whole), atol=1e-5, rtol=0)


def drawn_by_outlines(examples: Examples, share: float = 0.5) -> tuple[Any, Any]:
    """Return the stage that learns shown outlines, and its weights after two epochs."""
    stage = segmenting(share, examples).open_stage("pretraining")
    control = algorithm_params("supervised", proposal="none")
    training = with_detail().model_copy(update={"epochs": 2, "batch_size": 2})
    stage.check_algorithm(control)
    return stage, train_weights(control, training, stage, make_data(examples), seed=3)[0]


def test_pretraining_reads_the_shown_outlines_alone_and_arms_begin_with_its_pixels():
    examples = make_examples()
    shown = shown_outlines(examples, np.arange(len(examples.table)), 0.5)
    stage, start = drawn_by_outlines(examples)
    data = make_data(examples)
    assert stage.rows(data, "train").tolist() == np.flatnonzero(shown).tolist()
    assert stage.rows(data, "val").tolist() == stage.rows(data, "test").tolist() == []
    hidden = poisoned(examples, np.flatnonzero(~shown))
    hidden = replace(hidden, table=hidden.table.assign(label=1 - hidden.table["label"], involvement=np.nan))
    other, found = drawn_by_outlines(hidden)
    assert start.tensors.keys() == found.tensors.keys()
    assert all(torch.equal(tensor, found.tensors[name]) for name, tensor in start.tensors.items())
    assert other.fingerprint(make_data(hidden)) == stage.fingerprint(data)
    lesions = poisoned(examples, np.flatnonzero(shown & examples.lesion.any((1, 2))))
    other, found = drawn_by_outlines(lesions)
    assert any(not torch.equal(tensor, found.tensors[name]) for name, tensor in start.tensors.items())
    assert other.fingerprint(make_data(lesions)) != stage.fingerprint(data)
    task = segmenting(0.5, examples)
    begun, fresh = (weights(one.build_policy(7)) for one in (stage.begin_with(start), task))
    moved = differing(fresh, begun)
    assert moved
    assert all(name.startswith("detail.") for name in moved)
    assert all(torch.equal(begun[name], start.tensors[name]) for name in begun if name.startswith("detail."))
    # What the stage draws is what the arms' prompted mask gains, whatever SAM makes of the points.
    batch = stage.make_batch(data, ROWS[:2])
    net = stage.build_policy(0)
    net.load_state_dict(dict(start.tensors))
    gained = []
    for one in (stage.begin_with(start), task):
        policy = one.build_policy(7).eval()
        context = one.encode(policy, batch.cores)
        pixels = policy._prompted(context.detail, batch.points, None)
        gained.append(pixels[:, :, -1])
    torch.testing.assert_close(gained[0], stage.encode(net, batch).predicted)
    assert not bool(gained[1].any())
    assert float(gained[0].abs().max()) > 0.01


def test_a_pretraining_without_outlines_with_samples_or_of_other_sizes_is_refused():
    stage, start = drawn_by_outlines(make_examples())
    with pytest.raises(ValueError, match=r"pretraining must be null without attention.model.detail and"):
        make_task().open_stage("pretraining")
    with pytest.raises(ValueError, match=r"must have no losses.policy and proposal = none, got supervised and uniform"):
        stage.check_algorithm(algorithm_params("supervised", proposal="uniform"))
    with pytest.raises(ValueError, match="must have the sizes of the pretraining that it begins with, got others than .*: 8"):
        replace(segmenting(detail={"channels": 16}), start=start).build_policy(0)
    replace(segmenting(detail=None), start=start).build_policy(0)  # an arm without the network


def test_three_of_four_points_of_the_pretraining_lie_in_the_lesion():
    examples = make_examples()
    stage, _ = drawn_by_outlines(examples, 1.0)
    rows = np.flatnonzero(examples.lesion[ROWS].any((1, 2)))
    inside, area = [], []
    for seed in range(60):
        batch = stage.make_batch(make_data(examples), rows, generator=torch.Generator().manual_seed(seed))
        assert batch.points.shape == (len(rows), 1, stage.task.model.points, 2)
        place = (batch.points * SIZE / 4).floor().long()  # cells of 4 pixels
        cells = (place[..., 1] * (SIZE // 4) + place[..., 0])[:, 0]
        touched = torch.nn.functional.adaptive_avg_pool2d(batch.cores.outline, SIZE // 4).flatten(1) > 0
        inside.append(touched.gather(1, cells).double().mean())
        area.append(((touched & batch.cores.cells).sum(1) / batch.cores.cells.sum(1)).mean())
    share = float(torch.stack(area).mean())  # of those that fall anywhere
    assert float(torch.stack(inside).mean()) == pytest.approx(0.75 + 0.25 * share, abs=0.04)
