import torch

from grpo_pipeline.tasks.dialogue.language_model.sampling import compacted


def test_finished_prompts_leave_and_the_open_replies_come_first() -> None:
    is_open = torch.tensor([[False, True, False, True], [False] * 4, [False, False, True, False]])
    stay = compacted(is_open)
    assert stay is not None
    assert stay.prompts.tolist() == [0, 2]
    assert stay.places.tolist() == [[1, 3], [2, 0]]  # the prompt with one open reply carries a finished one along
    rows = torch.arange(12).view(3, 4)
    assert stay.take(rows).tolist() == [[1, 3], [10, 8]]


def test_no_open_reply_is_lost() -> None:
    generator = torch.Generator().manual_seed(0)
    moved = 0
    for _ in range(200):
        is_open = torch.rand(4, 5, generator=generator) < 0.3
        if is_open.any() and (stay := compacted(is_open)) is not None:
            moved += 1
            rows = torch.arange(20).view(4, 5)
            assert set(rows[is_open].tolist()) <= set(stay.take(rows).flatten().tolist())
            assert stay.places.numel() <= 15
    assert moved > 50


def test_what_saves_little_is_not_moved() -> None:
    is_open = torch.ones(2, 4, dtype=torch.bool)
    is_open[0, 0] = False
    assert compacted(is_open) is None
