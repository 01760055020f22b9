import pytest
import torch
from tiny_attention import make_batch, make_examples, make_task
from torch import Tensor

from grpo_pipeline.tasks.attention.model.encoder_input import (
    add_grey,
    check_channels,
    encoder_input,
    normalise_medsam,
    normalise_sam,
)
from grpo_pipeline.tasks.attention.params import CheckpointParams


def grey(*rows: list[int]) -> Tensor:
    """One image per row of four levels."""
    return torch.tensor(rows, dtype=torch.uint8).reshape(-1, 2, 2)


def checkpoint(normalisation: str) -> CheckpointParams:
    return CheckpointParams(path="sam.pth", kind="segment_anything", normalisation=normalisation)


def test_sam_golden():
    made = normalise_sam(grey([0, 255, 100, 3]))
    assert made.shape == (1, 3, 2, 2)
    # (255 - 123.675) / 58.395 = 131.325 / 58.395; (255 - 116.28) / 57.12 = 138.72 / 57.12; (255 - 103.53) / 57.375
    expected = torch.tensor([131.325 / 58.395, 138.72 / 57.12, 151.47 / 57.375])
    torch.testing.assert_close(made[0, :, 0, 1], expected)
    torch.testing.assert_close(made[0, :, 0, 0], torch.tensor([-123.675 / 58.395, -116.28 / 57.12, -103.53 / 57.375]))


def test_medsam_stretches_each_image_by_itself():
    made = normalise_medsam(grey([10, 60, 35, 10], [0, 200, 50, 100], [7, 7, 7, 7]))
    assert made.shape == (3, 1, 2, 2)
    # (35 - 10) / (60 - 10) = 0.5; an image with one level is 0.
    expected = torch.tensor([[0, 1, 0.5, 0], [0, 1, 0.25, 0.5], [0, 0, 0, 0]])
    torch.testing.assert_close(made.flatten(1), expected)


@pytest.mark.parametrize(("normalisation", "channels"), [("sam", 3), ("medsam", 3), ("medsam", 1), ("none", 3), ("none", 1)])
def test_the_encoder_reads_the_grey_levels_of_its_rows(normalisation: str, channels: int):
    examples = make_examples()
    batch = add_grey(make_batch(make_task(), (5, 2)), torch.as_tensor(examples.images[[5, 2]]))
    levels = torch.as_tensor(examples.images[[5, 2]])
    assert torch.equal(batch.grey, levels)
    expected = {"sam": normalise_sam(levels), "medsam": normalise_medsam(levels), "none": batch.images}[normalisation]
    made = encoder_input(normalisation, batch, channels=channels)
    assert made.shape == (2, channels, 32, 32)
    assert torch.equal(made, expected.expand(-1, channels, -1, -1))


def test_what_the_encoder_cannot_read_is_refused():
    with pytest.raises(ValueError, match="must hold grey levels for the normalisation 'medsam', got AttentionBatch; make it"):
        encoder_input("medsam", make_batch(make_task()), channels=3)
    with pytest.raises(ValueError, match=r"sam\.pth must read images of 1 or 3 channels, got 4; choose"):
        check_channels(checkpoint("none"), 4)
    with pytest.raises(ValueError, match="must be 'medsam' or 'none' for sam.pth, which reads 1 channel, got 'sam'"):
        check_channels(checkpoint("sam"), 1)
    check_channels(checkpoint("medsam"), 1)
