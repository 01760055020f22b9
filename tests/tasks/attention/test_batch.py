from dataclasses import fields

import numpy as np
import pytest
import torch
from tiny_attention import GRID, SIZE, make_data, make_examples

from grpo_pipeline.tasks.attention.batch import (
    AttentionData,
    make_batch,
    region_cells,
    standardise,
)

CPU = torch.device("cpu")


def test_no_batch_depends_on_the_lesion():
    examples = make_examples()
    flipped = make_examples()
    flipped.lesion[:] = ~flipped.lesion
    rows = np.arange(4)
    a, b = (make_batch(AttentionData(e, None), rows, grid=GRID, device=CPU) for e in (examples, flipped))
    for field in fields(a):
        if isinstance(getattr(a, field.name), torch.Tensor):
            assert torch.equal(getattr(a, field.name), getattr(b, field.name)), field.name


def test_standardise_golden():
    # Seen: 10, 20, 30; mean 20, population variance (100 + 0 + 100) / 3; the deviation is widened by 1 grey level.
    image = torch.tensor([[[10, 20], [30, 0]]], dtype=torch.uint8)
    z = 10 / ((200 / 3) ** 0.5 + 1)
    torch.testing.assert_close(standardise(image), torch.tensor([[[[-z, 0.0], [z, 0.0]]]]), atol=1e-6, rtol=0)
    assert torch.equal(standardise(torch.zeros(1, 4, 4, dtype=torch.uint8)), torch.zeros(1, 1, 4, 4))


def test_region_cells_golden():
    # 8 pixels on a 2 x 2 grid: the centre pixels are 2 and 6. Only (row 2, column 6) is inside.
    region = torch.zeros(1, 8, 8, dtype=torch.bool)
    region[0, 2, 6] = True
    region[0, 6, 5] = True
    assert region_cells(region, 2).tolist() == [[False, True, False, False]]


def test_bag_is_the_coverage_inside_the_region():
    examples = make_examples()
    batch = make_batch(AttentionData(examples, None), np.array([0]), grid=GRID, device=CPU)
    inside = examples.bag[0] & examples.region[0]
    naive = inside.reshape(4 * GRID, SIZE // (4 * GRID), 4 * GRID, SIZE // (4 * GRID)).mean((1, 3))
    np.testing.assert_allclose(batch.bag[0].numpy(), naive, atol=1e-7)
    assert examples.bag[0].sum() > inside.sum()


def test_unknown_involvement_falls_back_to_the_label():
    data = make_data()
    batch = make_batch(data, np.array([3, 1, 2]), grid=GRID, device=CPU)
    known = float(data.examples.table["involvement"][1])
    assert batch.involvement.tolist() == pytest.approx([1.0, known, 0.0])
    assert batch.label.tolist() == [1.0, 1.0, 0.0]
    assert batch.rows.tolist() == [3, 1, 2]


def test_stored_arrays_follow_their_rows():
    data = AttentionData(make_examples(), np.arange(15 * 2, dtype=np.float32).reshape(15, 2), np.arange(15.0)[:, None])
    batch = make_batch(data, np.array([7, 2]), grid=GRID, device=CPU)
    assert batch.features.tolist() == [[14.0, 15.0], [4.0, 5.0]]
    assert batch.reference_logits.tolist() == [[7.0], [2.0]]
