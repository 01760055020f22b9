"""Texts of training frames as tensors, and all frames of a training as a table."""

import numpy as np
import pytest
import torch

from grpo_pipeline.rewards.group_rewards import RewardFailedError
from grpo_pipeline.tasks import frames
from grpo_pipeline.tasks.frames import WIDTH, frame_table, shown_rewards, text_tensor, texts_of


def test_texts_come_back_and_a_letter_that_was_cut_in_two_is_left_out():
    long = "a" * (WIDTH - 1) + "é!"  # é is 2 bytes, of which one has room
    codes = text_tensor(["", "né\n2", long])
    assert (codes.shape, codes.dtype) == ((3, WIDTH), torch.uint8)
    assert texts_of(codes.numpy()) == ["", "né\n2", "a" * (WIDTH - 1)]
    assert text_tensor([]).shape == (0, WIDTH)


def test_numbers_and_texts_of_all_moments_are_rows_and_pictures_are_no_column():
    said = [["a", "b"], ["", "c"], ["d", "e"]]
    stacked = {
        "step": np.array([0, 4, 9]),
        "image": np.zeros((3, 2, WIDTH, WIDTH), np.uint8),
        "points": np.zeros((3, 2, 5, 2)),
        "map": np.zeros((3, 2, WIDTH)),
        "reply": np.stack([text_tensor(texts).numpy() for texts in said]),
        "reward": np.array([[0.5, np.nan], [1.0, 2.0], [3.0, 4.0]]),
    }
    table = frame_table(stacked)
    assert list(table) == ["step", "example", "reply", "reward"]
    assert table["step"].tolist() == [0, 0, 4, 4, 9, 9]
    assert table["example"].tolist() == [0, 1] * 3
    assert table["reply"].tolist() == ["a", "b", "", "c", "d", "e"]
    assert table["reward"].tolist() == pytest.approx([0.5, np.nan, 1.0, 2.0, 3.0, 4.0], nan_ok=True)
    assert frame_table({"step": np.array([0]), "image": np.zeros((1, 2, 8, 8))}).empty


def test_a_reward_that_fails_for_what_is_only_shown_stops_nothing(monkeypatch):
    def fail(*_):
        raise RewardFailedError("no value for any of 2 replies")

    monkeypatch.setattr(frames, "measure", fail)
    rollouts = type("Drawn", (), {"actions": torch.zeros(2, 1, 7)})
    assert shown_rewards(None, None, None, rollouts).isnan().tolist() == [[True], [True]]
