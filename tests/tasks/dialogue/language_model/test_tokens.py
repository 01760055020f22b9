import pytest
import torch

from grpo_pipeline.tasks.dialogue.language_model.tokens import ByteTokenizer, decode_rows, encode_texts, pad_rows

TOKENIZER = ByteTokenizer()


def test_a_batch_is_padded_ended_and_read_back() -> None:
    tokens = encode_texts(TOKENIZER, ["ab", "", "é"], max_tokens=9, too_long="refuse")
    # a = 97 -> 100, b = 98 -> 101; é = C3 A9 = 195, 169 -> 198, 172; 1 is the end
    assert tokens.ids.tolist() == [[100, 101, 1], [1, 0, 0], [198, 172, 1]]
    assert tokens.is_token.tolist() == [[True] * 3, [True, False, False], [True] * 3]
    assert decode_rows(TOKENIZER, tokens.ids, tokens.is_token) == ["ab", "", "é"]


def test_padding_on_the_left_without_an_end() -> None:
    tokens = encode_texts(TOKENIZER, ["a", "bcd"], max_tokens=3, too_long="refuse", with_end=False, padding="left")
    assert tokens.ids.tolist() == [[0, 0, 100], [101, 102, 103]]
    assert tokens.is_token.tolist() == [[False, False, True], [True, True, True]]


@pytest.mark.parametrize(("too_long", "kept"), [("keep_start", "abc"), ("keep_end", "cde")])
def test_what_is_too_long_is_cut_as_said_and_keeps_its_end(too_long: str, kept: str) -> None:
    tokens = encode_texts(TOKENIZER, ["abcde"], max_tokens=4, too_long=too_long)  # type: ignore[arg-type]
    assert tokens.ids[0, -1] == TOKENIZER.eos_id
    assert decode_rows(TOKENIZER, tokens.ids, tokens.is_token) == [kept]


def test_what_is_too_long_is_refused_with_its_row() -> None:
    with pytest.raises(ValueError, match=r"^text 1 must have at most 2 tokens, got 3; raise the limit"):
        encode_texts(TOKENIZER, ["ab", "abc"], max_tokens=3, too_long="refuse")
    with pytest.raises(ValueError, match=r"^max_tokens must be at least 2, got 1"):
        encode_texts(TOKENIZER, ["ab"], max_tokens=1, too_long="refuse")


def test_rows_are_read_where_the_mask_says() -> None:
    ids = torch.tensor([[100, 101, 102]])
    assert decode_rows(TOKENIZER, ids, torch.tensor([[True, False, True]])) == ["ac"]
    assert pad_rows([[5], []], pad_id=7).ids.tolist() == [[5], [7]]
