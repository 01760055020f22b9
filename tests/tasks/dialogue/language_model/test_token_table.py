import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_pipeline.tasks.dialogue.language_model.tokens import pad_rows, stack_rows

TEXTS = st.lists(st.integers(1, 300), max_size=6)
ROWS = st.lists(st.lists(TEXTS, min_size=2, max_size=2), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None)
@given(ROWS, st.sampled_from(["left", "right"]))
def test_padded_texts_are_those_of_a_loop(rows: list[list[list[int]]], padding: str) -> None:
    table = stack_rows(rows)
    chosen = np.arange(len(rows))[::-1]
    found = table.padded(table.texts_of(chosen), pad_id=7, padding=padding)
    expected = pad_rows([text for row in rows[::-1] for text in row], pad_id=7, padding=padding)
    assert torch.equal(found.ids.flatten(0, 1), expected.ids)
    assert torch.equal(found.is_token.flatten(0, 1), expected.is_token)


def test_lengths_of_texts() -> None:
    assert stack_rows([[[1, 2], []], [[3]]]).lengths().tolist() == [2, 0, 1]


@pytest.mark.parametrize(("draw", "expected"), [(0.0, [0, 3]), (0.34, [1, 3]), (0.67, [2, 3]), (0.999, [2, 3])])
def test_a_text_of_each_row_is_drawn(draw: float, expected: list[int]) -> None:
    table = stack_rows([[[1], [2], [3]], [[4]]])
    assert table.draw_texts(np.array([0, 1]), np.array([draw, draw])).tolist() == expected
