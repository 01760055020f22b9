"""Local statistics beside loops over cells, fields and pairs of pixels; the decoder and the prior that read the image's cells."""

from dataclasses import replace

import numpy as np
import torch
from tiny_attention import make_data, make_task

from grpo_pipeline.tasks.attention.batch import standardise
from grpo_pipeline.tasks.attention.model.baselines import blob_map, blob_prior
from grpo_pipeline.tasks.attention.model.class_decoder.params import FIELD_CELLS
from grpo_pipeline.tasks.attention.model.class_decoder.statistics_decoder import StatisticsDecoder
from grpo_pipeline.tasks.attention.model.field_statistics import (
    LAGS,
    LEVEL_WIDTH,
    LEVELS,
    OF_A_FIELD,
    SPREAD,
    describe_fields,
    describe_region,
    width,
)
from grpo_pipeline.tasks.attention.task import AttentionTask

GRID, SIDE, WIDTH = 5, 20, width()


def one_field(image: np.ndarray, row: int, column: int, field: int) -> list[float]:
    """Return the statistics of one field, by loops over its pixels."""
    size, half = SIDE // GRID, field // 2
    rows = range(max(0, row - half) * size, min(GRID, row + half + 1) * size)
    columns = range(max(0, column - half) * size, min(GRID, column + half + 1) * size)
    pixels = [(i, j) for i in rows for j in columns if image[i, j] != 0]
    values = np.array([image[place] for place in pixels])
    mean, variance = values.mean(), values.var() + 0.05
    found = [mean, np.log(variance)]
    for down, right in LAGS:
        others = [(i + down, j + right) for i, j in pixels]
        inside = [0 <= i < SIDE and 0 <= j < SIDE and image[i, j] != 0 for i, j in others]
        pairs = np.array([(image[a], image[b]) for a, b, known in zip(pixels, others, inside, strict=True) if known]).reshape(
            -1, 2
        )
        gap = pairs[:, 0] - pairs[:, 1]
        means = [np.mean(part) if len(part) else 0.0 for part in (gap**2, abs(gap), 1 / (1 + 4 * gap**2), pairs.prod(1))]
        correlation = np.clip((means[3] - mean**2) / variance, -1, 1)
        found += [np.log(means[0] + 0.01), np.log(means[1] + 0.01), means[2], correlation]
    levels = [np.mean(np.exp(-(((values - level) / LEVEL_WIDTH) ** 2))) for level in LEVELS]
    return [*found, *levels, float(np.square(levels).sum())]


def test_statistics_are_those_of_a_loop_over_pixels() -> None:
    rng = np.random.default_rng(5)
    images = rng.integers(1, 255, (2, SIDE, SIDE), dtype=np.uint8)
    images[0, :, 16:] = 0  # padding
    standard = standardise(torch.from_numpy(images))
    cells = torch.ones(2, GRID * GRID, dtype=torch.bool)
    cells[0].view(GRID, GRID)[:, 4] = False
    cells[1, :7] = False
    for fields in (FIELD_CELLS, (1, 5)):
        got = describe_fields(standard, cells, GRID, fields=fields)
        assert got.shape == (2, width(fields), GRID, GRID)
        spread = np.array([SPREAD[name] for name in OF_A_FIELD] * len(fields))
        for p in range(2):
            image, inside = standard[p, 0].double().numpy(), cells[p].view(GRID, GRID).numpy()
            found = np.zeros((GRID, GRID, width(fields)))
            for row, column in np.argwhere(inside):
                found[row, column] = [value for field in fields for value in one_field(image, row, column, field)]
            relative = np.where(inside[..., None], (found - found[inside].mean(0)) / spread, 0.0)
            np.testing.assert_allclose(got[p].movedim(0, -1).numpy(), relative, atol=2e-4)


def test_the_decoder_reads_the_cells_of_its_points_and_the_policy_reads_its_evidence() -> None:
    task, data = make_task(class_decoder={"kind": "statistics"}), make_data()
    policy = task.build_policy(0)
    decoder = policy.class_decoder
    assert isinstance(decoder, StatisticsDecoder)
    with torch.no_grad():
        decoder.evidence.weight.normal_(generator=torch.Generator().manual_seed(2))
        policy.policy.attention.weight.normal_(generator=torch.Generator().manual_seed(3))
    context = task.encode(policy, task.make_batch(data, np.arange(3)))
    assert context.statistics is not None
    points = torch.tensor([[[0.99, 0.01], [0.3, 0.6]]]).expand(3, 2, 2)
    weight, flat = decoder.evidence.weight[0, :, 0, 0], context.statistics.flatten(2)
    read = [(flat[:, :, cell] * weight).sum(1) * 2 / WIDTH**0.5 + decoder.evidence.bias for cell in (3, 9)]
    expected = torch.stack(read, dim=1)
    torch.testing.assert_close(decoder.weigh(context.statistics, points), expected)
    before = policy.propose(context)[0].cells
    before.sum().backward()
    assert decoder.evidence.weight.grad is None  # the policy does not teach the decoder
    with torch.no_grad():
        decoder.evidence.weight.neg_()
    assert not torch.allclose(before, policy.propose(context)[0].cells)


def test_an_untrained_policy_is_its_prior_and_uniform_points_know_nothing_of_it() -> None:
    widths = (0.04, 0.2)
    plain, prior = make_task(), make_task(policy={"prior": {"kind": "dark_blobs", "strength": 2.0, "widths": widths}})
    batch = plain.make_batch(make_data(), np.arange(6))
    policy = prior.build_policy(0)
    context = prior.encode(policy, batch)
    logits = policy.propose(context)[0].cells
    blobs = blob_map(batch.images, prior.grid, widths=widths)
    assert not torch.allclose(blobs, blob_map(batch.images, prior.grid))
    for p in range(6):
        inside = blobs[p][batch.cells[p]].double()
        expected = 2.0 * (inside - inside.mean()) / inside.std(correction=0)
        torch.testing.assert_close(logits[p][batch.cells[p]].double(), expected, atol=1e-4, rtol=1e-4)
    brighter = blob_prior(batch.images * 3 - 1, batch.cells, prior.grid, strength=2.0, widths=widths)
    torch.testing.assert_close(brighter, context.prior, atol=1e-3, rtol=1e-3)
    assert plain.encode(policy, batch).prior is None

    def uniform(task: AttentionTask) -> torch.Tensor:
        known = {"temperature": 1.0, "proposal": "uniform", "generator": torch.Generator().manual_seed(1)}
        return task.sample(policy, task.encode(policy, batch), 5, **known).actions

    assert torch.equal(uniform(plain), uniform(prior))


def test_a_policy_that_reads_cells_cannot_see_the_rest_of_the_image() -> None:
    """Change the features everywhere, the looks of one cell: that cell's logit moves and no other; ``image`` moves them all.

    With ``statistics`` it moves by the weights, and the texture moves nothing.
    """
    for reads, moved_by_features in (("cell", 0), ("statistics", 0), ("image", 16)):
        task = make_task(class_decoder={"kind": "statistics"}, policy={"reads": {"kind": reads}})
        policy = task.build_policy(0)
        with torch.no_grad():
            policy.policy.attention.weight.normal_(generator=torch.Generator().manual_seed(3))
            context = task.encode(policy, task.make_batch(make_data(), np.arange(2)))
            before = policy.propose(context)[0].cells
            other = replace(context, features=context.features + torch.linspace(-1, 1, context.features.shape[1])[:, None, None])
            assert int((policy.propose(other)[0].cells != before)[0].sum()) == moved_by_features
            place = torch.zeros(4, 4)
            place[1, 2] = 1.0
            assert context.statistics is not None
            near = policy.propose(replace(context, statistics=context.statistics + place))[0].cells
            changed = (near != before)[0].nonzero().flatten().tolist()
            assert changed == [6] if reads != "image" else len(changed) > 1
            textured = policy.propose(replace(context, texture=context.texture + 1))[0].cells
            assert torch.equal(textured, before) == (reads == "statistics")
            if reads == "statistics":
                by = policy.policy.attention.weight.sum()
                torch.testing.assert_close((near - before)[:, 6], by.expand(2), rtol=0, atol=1e-5)
                assert not any(p.requires_grad for p in policy.texture.parameters())


def test_policy_and_decoder_read_fields_of_their_own() -> None:
    data = make_data()
    found, regions = {}, {}
    for name, change in {"plain": {}, "fields": {"fields": (1, 7)}}.items():
        decoder = {"kind": "statistics", "region": True, "mask": "seeded", **change}
        task = make_task(data.examples, class_decoder=decoder, policy={"reads": {"kind": "statistics"}})
        policy = task.build_policy(0)
        context = task.encode(policy, task.make_batch(data, np.arange(3)))
        assert policy.propose(context)[0].cells.shape == (3, 16)
        found[name], regions[name] = context.statistics, context.region
    # Fields of the model's own: the cell alone, and the second of the usual ones; the region is described by the smallest.
    of_one = len(OF_A_FIELD)
    torch.testing.assert_close(found["fields"][:, of_one:], found["plain"][:, of_one : 2 * of_one])
    batch = task.make_batch(data, np.arange(3))
    torch.testing.assert_close(found["fields"], describe_fields(batch.images, batch.cells, task.grid, fields=(1, 7)))
    given = (batch.images, batch.cells, batch.levels, task.grid)
    torch.testing.assert_close(regions["fields"], describe_region(*given, fields=(1,)))
    assert not torch.allclose(regions["fields"], regions["plain"])
