import pytest
import torch
from tiny_attention import make_batch, make_task

from grpo_pipeline.tasks.attention.model.encoder.encoder_input import GreyBatch, check_channels, encoder_input
from grpo_pipeline.tasks.attention.model.encoder.params import SamEncoder


def test_each_normalisation_golden():
    grey = torch.tensor([[0, 255, 100, 3], [7, 7, 7, 7]], dtype=torch.uint8).reshape(2, 2, 2)
    batch = GreyBatch(**vars(make_batch(make_task(), (5, 2))), grey=grey)
    made = encoder_input("sam", batch, channels=3)
    # (255 - 123.675) / 58.395 = 131.325 / 58.395; (255 - 116.28) / 57.12 = 138.72 / 57.12; (255 - 103.53) / 57.375
    torch.testing.assert_close(made[0, :, 0, 1], torch.tensor([131.325 / 58.395, 138.72 / 57.12, 151.47 / 57.375]))
    torch.testing.assert_close(made[1, :, 1, 1], torch.tensor([-116.675 / 58.395, -109.28 / 57.12, -96.53 / 57.375]))
    for channels in (1, 3):
        # Each image by itself; one of one level is 0.
        medsam = torch.tensor([[0, 1, 100 / 255, 3 / 255], [0.0] * 4])[:, None].expand(-1, channels, -1)
        torch.testing.assert_close(encoder_input("medsam", batch, channels=channels).flatten(2), medsam)
        assert torch.equal(encoder_input("none", batch, channels=channels), batch.images.expand(-1, channels, -1, -1))


def test_what_the_encoder_cannot_read_is_refused():
    with pytest.raises(ValueError, match="must hold grey levels for the normalisation 'medsam', got AttentionBatch; make it"):
        encoder_input("medsam", make_batch(make_task()), channels=3)
    none, sam, medsam = (
        SamEncoder(kind="sam", path="sam.pth", format="segment_anything", normalisation=name)
        for name in ("none", "sam", "medsam")
    )
    with pytest.raises(ValueError, match=r"sam\.pth must read images of 1 or 3 channels, got 4; choose"):
        check_channels(none, 4)
    with pytest.raises(ValueError, match="must be 'medsam' or 'none' for sam.pth, which reads 1 channel, got 'sam'"):
        check_channels(sam, 1)
    check_channels(medsam, 1)
