"""The decoder that reads statistics: ridge regressions that judge what they have not learned from; outlines for the policy."""

import copy
import re
from dataclasses import replace
from zlib import crc32

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from sklearn.linear_model import LogisticRegression
from tiny_attention import make_class_examples, make_data, make_examples, make_task, model_params, shake
from torch.nn import functional as F

from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.attention.batch import AttentionData, describe_levels, patient_folds, standardise
from grpo_pipeline.tasks.attention.data.classes import Classes
from grpo_pipeline.tasks.attention.losses.location import location_loss
from grpo_pipeline.tasks.attention.losses.ridge import penalty
from grpo_pipeline.tasks.attention.model.class_decoder.params import StatisticsParams
from grpo_pipeline.tasks.attention.model.class_decoder.statistics_decoder import StatisticsDecoder
from grpo_pipeline.tasks.attention.model.field_statistics import (
    BLOCKS,
    OF_A_FIELD,
    ORIENTATIONS,
    REGION_WIDTH,
    describe_fields,
    describe_region,
    width,
)
from grpo_pipeline.tasks.attention.model.mask_reading import describe_shape, mask_parts, read_at_points, seeded_masks
from grpo_pipeline.tasks.attention.model.sam import cell_centres

WIDTH = width()
STATISTICS = {"kind": "statistics", "region": True, "folds": 3}
FOLDED = {"class_decoder": STATISTICS}
ROWS = np.array([0, 2, 4, 6, 8, 12])


def test_patients_share_a_fold_and_no_other_split_has_one() -> None:
    """A held-out image gets the mean of the heads, whatever its patient is called."""
    examples, task = make_examples(), make_task(**FOLDED)
    folds = patient_folds(examples, np.arange(15), 3)
    expected = [crc32(f"p{row // 2}".encode()) % 3 if row < 8 else -1 for row in range(15)]
    assert folds.tolist() == expected
    assert patient_folds(examples, np.array([7, 1]), 3).tolist() == [expected[7], expected[1]]
    assert len(set(expected)) > 2
    policy = task.build_policy(0)
    shake(policy.class_decoder, seed=6)
    renamed = replace(examples, table=examples.table.assign(patient_id=[f"other{i}" for i in range(15)]))
    tables = [task.evaluate(policy, AttentionData(e, None), np.arange(10, 15), seed=0, n_samples=2) for e in (examples, renamed)]
    np.testing.assert_array_equal(tables[0]["prob"], tables[1]["prob"])
    for changes, said in (
        (
            {"policy": {"reads": {"kind": "statistics"}}},
            "policy.reads.kind must be image or cell with class_decoder.kind = glimpse, got statistics",
        ),
        ({"class_decoder": {"region": True}}, "class_decoder.glimpse.region\n  Extra inputs are not permitted"),
        ({"class_decoder": {"folds": 2, "kind": "global"}}, "class_decoder.global.folds\n  Extra inputs are not permitted"),
    ):
        with pytest.raises(ValidationError, match=re.escape(said)):
            model_params(**changes)


def test_a_head_judges_its_fold_and_learns_from_the_others() -> None:
    """Its gradient is that of a plain regression on the images of the other folds."""
    task, data = make_task(**FOLDED, supervised={"glimpse": None, "heatmap": None, "class": {"weight": 2.0}}), make_data()
    policy = task.build_policy(0)
    shake(policy.class_decoder, seed=3)
    batch = task.replicate(task.make_batch(data, ROWS), 2)
    folds = batch.folds.tolist()
    assert folds[4:] == [-1, -1]
    context = task.encode(policy, batch)
    drawn = task.sample(policy, context, 2, temperature=1.0, proposal="uniform", generator=torch.Generator().manual_seed(0))
    outcomes = task.decode(policy, context, drawn, batch)
    decoder = policy.class_decoder
    losses: list[list[torch.Tensor]] = [[] for _ in range(3)]
    for p, fold in enumerate(folds):
        for g in range(2):
            cells = context.statistics[p].flatten(1)[:, drawn.actions[p, g]].mean(1)  # [WIDTH]
            logits = (
                decoder.evidence.weight.flatten(1) @ cells * 2 / WIDTH**0.5
                + decoder.evidence.bias
                + decoder.region.weight @ context.region[p]
                + decoder.prior
            )
            said = logits.mean() if fold < 0 else logits[fold]
            torch.testing.assert_close(outcomes.class_logits[p, g], said, atol=1e-5, rtol=1e-5)
            for head in range(3):
                share = 1 / 3 if fold < 0 else (head != fold) / 2
                losses[head].append(share * F.binary_cross_entropy_with_logits(logits[head], batch.label[p, g]))
    expected = 2.0 * torch.stack([torch.stack(of_head).sum() for of_head in losses]).sum() / (len(ROWS) * 2)
    loss = task.supervised_loss(policy, context, batch, outcomes)
    torch.testing.assert_close(loss, expected)
    found, wanted = (torch.autograd.grad(x, [decoder.evidence.weight, decoder.region.weight]) for x in (loss, expected))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)
    evidence = decoder.map_evidence(context.statistics, context.folds)[:, 0].flatten(1)
    alone = torch.stack(
        [decoder.evidence(context.statistics[p : p + 1] * 2 / WIDTH**0.5)[0, f].flatten() for p, f in enumerate(folds[:4])]
    )
    torch.testing.assert_close(evidence[:4], alone)


def test_a_penalised_decoder_is_ridge_logistic_regression() -> None:
    """Trained to its optimum it has scikit-learn's coefficients for C = 1 / (penalty * n)."""
    rng = np.random.default_rng(4)
    n, weight = 60, 0.03
    statistics = torch.from_numpy(rng.normal(size=(n, WIDTH, 2, 2)))
    region = torch.from_numpy(rng.normal(size=(n, REGION_WIDTH)) / 10)
    points = torch.tensor([[[0.1, 0.2], [0.9, 0.7]]], dtype=torch.double).expand(n, 1, 2, 2)
    label = (statistics[:, 0, 0, 0] + 30 * region[:, 5] > 0).double()
    decoder = StatisticsDecoder(StatisticsParams(kind="statistics", region=True)).double()
    decoder.evidence.bias.requires_grad_(False)
    optimizer = torch.optim.LBFGS(
        decoder.parameters(), max_iter=500, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        logits = decoder.heads(statistics, region, points)[:, 0, 0]
        value = F.binary_cross_entropy_with_logits(logits, label) + weight * penalty(decoder)
        value.backward()
        return value

    optimizer.step(loss)
    read = statistics[:, :, [0, 1], [0, 1]].mean(2) * 2 / WIDTH**0.5
    inputs = torch.cat([read, region], dim=1).numpy()
    fitted = LogisticRegression(C=1 / (weight * n), tol=1e-10, max_iter=5000).fit(inputs, label.numpy())
    found = torch.cat([decoder.evidence.weight.flatten(), decoder.region.weight.flatten()]).detach().numpy()
    np.testing.assert_allclose(found, fitted.coef_[0], atol=2e-5)
    assert float(decoder.prior.detach()) == pytest.approx(fitted.intercept_[0], abs=2e-5)
    assert np.abs(found).max() > 0.05


def test_the_penalty_counts_once_a_step_and_once_a_head() -> None:
    data = make_data()
    losses = {}
    for strength in (0.0, 0.7):
        task = make_task(**FOLDED, supervised={"ridge": {"weight": strength} if strength else None})
        policy = task.build_policy(0)
        shake(policy.class_decoder, seed=5)
        batch = task.replicate(task.make_batch(data, ROWS), 1)
        context = task.encode(policy, batch)
        drawn = Rollouts(torch.full((6, 1, 3), 5), torch.zeros(6, 1, 3), torch.ones(6, 1, 3, dtype=torch.bool))
        outcomes = task.decode(policy, context, drawn, batch)
        for shares in (None, torch.tensor([0.25, 0.5])):
            losses[strength, shares is None] = float(task.supervised_loss(policy, context, batch, outcomes, shares).detach())
        squares = sum(float(p.square().sum()) for p in (policy.class_decoder.evidence.weight, policy.class_decoder.region.weight))
    assert losses[0.7, True] - losses[0.0, True] == pytest.approx(0.7 * squares / 6, rel=1e-4)
    assert losses[0.7, False] - losses[0.0, False] == pytest.approx(0.25 * 0.7 * squares / 6, rel=1e-4)


def test_what_the_whole_region_looks_like_beside_loops() -> None:
    rng = np.random.default_rng(2)
    side, grid, k = 32, 4, len(OF_A_FIELD)
    grey = rng.integers(0, 255, (2, side, side), dtype=np.uint8)
    grey[1] //= 3
    images, levels = standardise(torch.from_numpy(grey)), describe_levels(torch.from_numpy(grey))
    cells = torch.from_numpy(rng.random((2, grid * grid)) < 0.6)
    got = describe_region(images, cells, levels, grid)
    assert got.shape == (2, REGION_WIDTH)
    everywhere = torch.ones_like(cells)
    relative = describe_fields(images, everywhere, grid)[:, :k].flatten(2)  # to the whole image's mean
    means = describe_region(images, everywhere, levels, grid)[:, :k] * k**0.5 * 0.7
    for p in range(2):
        inside = relative[p][:, cells[p]]
        np.testing.assert_allclose(got[p, :k] * k**0.5, (means[p] + inside.mean(1)) / 0.7, atol=1e-4)
        np.testing.assert_allclose(got[p, k : 2 * k] * k**0.5, (inside.std(1, correction=0) - 1) / 0.4, atol=1e-4)
        picture = images[p, 0].numpy()
        histogram = np.zeros((ORIENTATIONS, BLOCKS, BLOCKS))
        for row in range(side):
            for column in range(side):
                across = picture[row, column + 1] - picture[row, column - 1] if 0 < column < side - 1 else 0.0
                down = picture[row + 1, column] - picture[row - 1, column] if 0 < row < side - 1 else 0.0
                place = np.arctan2(down, across) % np.pi / np.pi * ORIENTATIONS - 0.5
                low = int(np.floor(place))
                for bin_, share in ((low, 1 - (place - low)), (low + 1, place - low)):
                    block = row * BLOCKS // side, column * BLOCKS // side
                    histogram[bin_ % ORIENTATIONS, *block] += share * np.hypot(across, down)
        histogram /= (side // BLOCKS) ** 2
        shares = histogram / (np.sqrt((histogram**2).sum(0)) + 0.02)
        expected = 0.5 * (shares.ravel() - 0.3) / 0.15 / shares.size**0.5
        np.testing.assert_allclose(got[p, 2 * k : -2].numpy(), expected, atol=1e-4)
        seen = grey[p][grey[p] > 0] / 255
        brightness = np.array([(seen.mean() - 0.33) / 0.08, (seen.std() - 0.2) / 0.04]) / 2**0.5
        np.testing.assert_allclose(got[p, -2:].numpy(), brightness, atol=1e-4)


def test_the_policy_learns_from_outlines_where_they_are_shown() -> None:
    """-log of the softmax over the cells that a bag covers by half; nothing of a bag that is the whole region."""
    examples = make_examples()
    examples.bag[:] = False
    examples.bag[0, 9:16, 8:24] = True  # cells 5 and 6
    examples.bag[1, 17:19, 25:27] = True  # a corner of cell 11 alone
    examples.bag[2] = True
    alone = {"location": {"weight": 1.5}, "class": None, "heatmap": None, "glimpse": None}
    task, data = make_task(examples, supervised=alone), AttentionData(examples, None)
    batch = task.make_batch(data, np.arange(4))
    logits = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    found = location_loss(logits, batch, 4)
    assert batch.cells.all()
    for row, cells in ((0, [5, 6]), (1, [11]), (2, list(range(16))), (3, list(range(16)))):
        assert float(found[row]) == pytest.approx(-float(logits[row].softmax(0)[cells].sum().log()), abs=1e-5)
    policy = task.build_policy(0)
    shake(policy.policy, seed=2)
    batch = task.replicate(batch, 1)
    context = task.encode(policy, batch)
    drawn = Rollouts(torch.full((4, 1, 3), 5), torch.zeros(4, 1, 3), torch.ones(4, 1, 3, dtype=torch.bool))
    loss = task.supervised_loss(policy, context, batch, task.decode(policy, context, drawn, batch))
    of_cores = location_loss(policy.propose(context)[0].cells, batch, 4)
    torch.testing.assert_close(loss, 1.5 * of_cores[:3].mean())  # row 3 has no bag
    [slope] = torch.autograd.grad(loss, [policy.policy.attention.weight])
    assert float(slope.abs().max()) > 1e-4


@pytest.mark.parametrize("kind", ["prompted", "seeded"])
def test_a_mask_is_read_inside_around_below_and_by_its_shape(kind: str) -> None:
    """Against a mean of the statistics for every set and part; no loss of the class reaches the mask."""
    shown = {"mask_share": 1.0, "outline": {"weight": 1.0}, "glimpse": None, "heatmap": None}
    task = make_task(
        class_decoder=STATISTICS | {"mask": kind},
        detail={"channels": 8},
        policy={"stop": {"min_points": 1}},
        supervised=shown if kind == "prompted" else SILENT,
    )
    policy = task.build_policy(0)
    shake(policy, seed=5)
    batch = task.replicate(task.make_batch(make_data(), ROWS), 2)
    context = task.encode(policy, batch)
    is_valid = torch.tensor([[[True, True, False], [False, False, False]]]).expand(6, 2, 3)
    actions = torch.randint(task.grid**2, (6, 2, 3), generator=torch.Generator().manual_seed(0))
    sets = Rollouts(actions, torch.zeros(6, 2, 3), is_valid)
    outcomes = task.decode(policy, context, sets, batch)
    decoder = policy.class_decoder
    of_parts, of_shape = [map_.weight for map_ in decoder.mask[:-1]], decoder.mask[-1].weight
    points = cell_centres(actions, task.grid)
    if kind == "seeded":
        masks = seeded_masks(batch.images, points, is_valid, 4 * task.grid)
        assert outcomes.segmentation_logits is None
    else:
        masks = read_at_points(outcomes.segmentation_logits.sigmoid(), points, is_valid)
    parts, shapes = mask_parts(masks, task.grid), describe_shape(masks)
    for p in range(6):
        statistics = context.statistics[p].flatten(1)  # [WIDTH, V]
        of_image = decoder.region.weight @ context.region[p] + decoder.prior
        cells = statistics[:, actions[p, 0, :2]].mean(1)
        evidence = decoder.evidence.weight.flatten(1) @ cells * 2 / WIDTH**0.5 + decoder.evidence.bias
        read = of_shape @ shapes[p, 0]
        for weight, part in zip(of_parts, parts, strict=True):
            read = read + weight @ (statistics @ part[p, 0]) * 2 / WIDTH**0.5
        torch.testing.assert_close(outcomes.heads[p, 0], of_image + evidence + read, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(outcomes.heads[p, 1], of_image, atol=1e-5, rtol=1e-5)  # no point: no mask
        assert float(read.abs().max()) > 0.01
    # What the image sheet shows as read is what was read, of sets of which some have stopped.
    shown = task.showcase(policy, make_data(), ROWS, seed=0)
    placed = torch.as_tensor(shown["points_trained"])[:, None]  # [6, 1, 3, 2]
    is_there = ~placed[..., 0].isnan()
    assert 0 < is_there.sum() < is_there.numel()
    placed = placed.nan_to_num(0.5)
    again = (
        seeded_masks(batch.images, placed, is_there, 4 * task.grid)
        if kind == "seeded"
        else read_at_points(torch.as_tensor(shown["prompted_mask"])[:, None], placed, is_there)
    )
    torch.testing.assert_close(torch.as_tensor(shown["read_mask"]), again[:, 0], atol=1e-6, rtol=1e-5)
    loss = F.binary_cross_entropy_with_logits(outcomes.class_logits, batch.label)
    policy.zero_grad()
    loss.backward()
    slopes = {name: parameter.grad for name, parameter in policy.named_parameters()}
    taught = {name.split(".")[0] for name, slope in slopes.items() if slope is not None and bool((slope != 0).any())}
    assert taught == {"class_decoder"}
    assert all(bool((slopes[f"class_decoder.mask.{part}.weight"] != 0).any()) for part in range(4))


def test_each_regression_reads_masks_for_each_class() -> None:
    """Output f * C + c of every map is what regression f says of class c."""
    classes = Classes(names=("normal", "benign", "malignant"), positive=("malignant",))
    decoder = StatisticsDecoder(StatisticsParams(**STATISTICS, mask="seeded"), classes)
    shake(decoder, seed=8)
    generator = torch.Generator().manual_seed(9)
    statistics, region = torch.randn(2, WIDTH, 4, 4, generator=generator), torch.randn(2, REGION_WIDTH, generator=generator)
    masks, points = torch.rand(2, 3, 16, 16, generator=generator), torch.rand(2, 3, 2, 2, generator=generator)
    added = decoder.heads(statistics, region, points, None, masks) - decoder.heads(statistics, region, points)
    assert added.shape == (2, 3, 3, 3)
    parts, shapes = mask_parts(masks, 4), describe_shape(masks)
    for p, g, f, c in np.ndindex(2, 3, 3, 3):
        weights = [of.weight[3 * f + c] for of in decoder.mask]
        expected = weights[-1] @ shapes[p, g]
        for weight, part in zip(weights, parts, strict=False):
            expected = expected + weight @ statistics[p].flatten(1) @ part[p, g] * 2 / WIDTH**0.5
        torch.testing.assert_close(added[p, g, f, c], expected, atol=2e-5, rtol=1e-4)


def test_a_mask_that_nobody_teaches_or_reads_is_refused() -> None:
    with pytest.raises(ValueError, match=r"class_decoder.mask must be null or seeded with .*outline = null, got prompted; no"):
        make_task(class_decoder=STATISTICS | {"mask": "prompted"})
    with pytest.raises(ValidationError, match=r"class_decoder\.glimpse\.mask\n  Extra inputs are not permitted"):
        make_task(class_decoder={"mask": "seeded"})


EVIDENCE = FOLDED | {"heatmap": "evidence"}
SILENT = {"heatmap": None, "glimpse": None}


@pytest.mark.parametrize(
    ("reads_mask", "findings"),
    [
        (None, None),
        ("seeded", None),
        ("prompted", None),
        (None, Classes(names=("a", "b"), positive=("a", "b"), several=True)),
    ],
    ids=["none", "seeded", "prompted", "findings"],
)
def test_a_heatmap_of_evidence_is_what_a_point_would_say_where_the_policy_looks(
    reads_mask: str | None, findings: Classes | None
) -> None:
    """Against one decoding and one chance for every cell, with the mask of the likeliest points; it is the same for all sets."""
    shown = {"mask_share": 1.0, "outline": {"weight": 1.0}} if reads_mask == "prompted" else {}
    examples = make_examples() if findings is None else make_class_examples(findings)
    task = make_task(examples, class_decoder=STATISTICS | {"mask": reads_mask}, heatmap="evidence", supervised=SILENT | shown)
    policy = task.build_policy(0)
    shake(policy, seed=4)
    batch = task.replicate(task.make_batch(make_data(examples), ROWS), 2)
    context = task.encode(policy, batch)
    sampled = task.sample(policy, context, 2, temperature=1.0, proposal="uniform", generator=torch.Generator().manual_seed(1))
    outcomes = task.decode(policy, context, sampled, batch)
    assert outcomes.mask_logits.shape == (6, 2, 4 * task.grid, 4 * task.grid)
    assert not outcomes.mask_logits.requires_grad
    chances = policy.propose(context)[0].cells.masked_fill(~batch.cells, -torch.inf).softmax(1)
    heat = outcomes.mask_logits.sigmoid()
    # What the mask of the three likeliest cells adds to each logit.
    added = torch.zeros(6)
    likeliest = chances.topk(3).indices[:, None]
    silent = copy.deepcopy(policy)
    if reads_mask is not None:
        best = Rollouts(likeliest, torch.zeros(6, 1, 3), torch.ones(6, 1, 3, dtype=torch.bool))
        for parameter in silent.class_decoder.mask.parameters():
            torch.nn.init.zeros_(parameter)
        with_mask, without = (task.decode(one, context, best, batch).class_logits[:, 0] for one in (policy, silent))
        added = with_mask - without
        assert float(added.abs().max()) > 0.01
    for v in range(task.grid**2):
        there = torch.full((6, 1, 1), v)
        alone = Rollouts(there, torch.zeros(6, 1, 1), torch.ones(6, 1, 1, dtype=torch.bool))
        said = (task.decode(silent, context, alone, batch).class_logits[:, 0] + added).sigmoid()
        expected = said * chances[:, v] / chances.amax(1)
        row, column = divmod(v, task.grid)
        pixels = heat[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4].flatten(2)
        torch.testing.assert_close(pixels, expected[:, None, None].expand_as(pixels), atol=2e-6, rtol=1e-4)
    assert float(heat.flatten(2).amax()) > 0.1
    weight = batch.bag / batch.bag.sum((1, 2), keepdim=True)
    torch.testing.assert_close(outcomes.bag_probs, (heat * weight[:, None]).sum((2, 3)))


def test_a_heatmap_that_is_computed_has_neither_losses_nor_rewards() -> None:
    for changes, said in (
        (
            {"supervised": {"glimpse": None}},
            "supervised_loss.heatmap must be null with attention.model.heatmap = evidence",
        ),
        ({"supervised": SILENT | {"mil": {"weight": 0.4, "share": 0.2}}}, "supervised_loss.mil must be null with .*evidence"),
        ({"supervised": SILENT, "reward": {"activation": {"weight": 0.1}}}, "reward.activation must be null with"),
        (
            {"class_decoder": {"kind": "glimpse"}},
            "heatmap must be null with class_decoder.kind = glimpse, got evidence",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            make_task(**EVIDENCE | changes)
