import torch

from grpo_pipeline.tasks.attention.rewards.dice import mask_dice


def test_dice_of_a_mask_golden():
    outline = torch.tensor([[[1.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]])
    mask = torch.tensor([[[[1, 0], [1, 0]], [[1, 1], [0, 0]], [[0, 0], [0, 0]]]] * 2).bool()
    # One of two and one beside it: 2 / 4; all: 1; nothing: 0. Without an outline: 0 for every sample.
    assert mask_dice(mask, outline).tolist() == [[0.5, 1.0, 0.0], [0.0, 0.0, 0.0]]
