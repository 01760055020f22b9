import pytest
import torch

from grpo_pipeline.tasks.dialogue.language_model.sampling import pack, unpack


@pytest.mark.parametrize("choices", [1, 8, 9, 259])
def test_what_was_packed_comes_back(choices: int) -> None:
    is_kept = torch.rand(3, 2, choices, generator=torch.Generator().manual_seed(choices)) < 0.5
    packed = pack(is_kept)
    assert packed.shape == (3, 2, -(-choices // 8))
    assert torch.equal(unpack(packed, choices), is_kept)


def test_choice_v_is_bit_v_of_its_byte() -> None:
    # choices 0, 3 and 7 -> 1 + 8 + 128 = 137; choice 9 -> bit 1 of the next byte = 2
    is_kept = torch.zeros(10, dtype=torch.bool)
    is_kept[[0, 3, 7, 9]] = True
    assert pack(is_kept).tolist() == [137, 2]
