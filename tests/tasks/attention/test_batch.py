from dataclasses import fields

import numpy as np
import pytest
import torch
from tiny_attention import GRID, SIZE, make_examples

from grpo_pipeline.tasks.attention.batch import AttentionData, describe_levels, make_batch, region_cells, standardise

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


def test_images_and_cells_golden():
    # Seen: 10, 20, 30; mean 20, population variance (100 + 0 + 100) / 3; the deviation is widened by 1 grey level.
    image = torch.tensor([[[10, 20], [30, 0]]], dtype=torch.uint8)
    z = 10 / ((200 / 3) ** 0.5 + 1)
    torch.testing.assert_close(standardise(image), torch.tensor([[[[-z, 0.0], [z, 0.0]]]]), atol=1e-6, rtol=0)
    torch.testing.assert_close(describe_levels(image), torch.tensor([[20.0, (200 / 3) ** 0.5]]) / 255)
    assert torch.equal(standardise(torch.zeros(1, 4, 4, dtype=torch.uint8)), torch.zeros(1, 1, 4, 4))
    # 8 pixels on a 2 x 2 grid: the centre pixels are 2 and 6. Only (row 2, column 6) is inside.
    region = torch.zeros(1, 8, 8, dtype=torch.bool)
    region[0, 2, 6] = True
    region[0, 6, 5] = True
    assert region_cells(region, 2).tolist() == [[False, True, False, False]]


def test_a_batch_holds_what_its_rows_hold():
    """The bag inside the region alone; an unknown involvement is the label."""
    examples = make_examples()
    data = AttentionData(examples, np.arange(15 * 2, dtype=np.float32).reshape(15, 2), np.arange(15.0)[:, None])
    batch = make_batch(data, np.array([3, 1, 2]), grid=GRID, device=CPU)
    inside = examples.bag[2] & examples.region[2]
    naive = inside.reshape(4 * GRID, SIZE // (4 * GRID), 4 * GRID, SIZE // (4 * GRID)).mean((1, 3))
    np.testing.assert_allclose(batch.bag[2].numpy(), naive, atol=1e-7)
    assert examples.bag[2].sum() > inside.sum()
    assert batch.involvement.tolist() == pytest.approx([1.0, float(examples.table["involvement"][1]), 0.0])
    assert batch.label.tolist() == [1.0, 1.0, 0.0]
    assert batch.rows.tolist() == [3, 1, 2]
    assert batch.features.tolist() == [[6.0, 7.0], [2.0, 3.0], [4.0, 5.0]]
    assert batch.reference_logits.tolist() == [[3.0], [1.0], [2.0]]
