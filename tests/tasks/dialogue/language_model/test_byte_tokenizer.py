from hypothesis import given
from hypothesis import strategies as st
from transformers import ByT5Tokenizer

from grpo_pipeline.tasks.dialogue.language_model.tokens import ByteTokenizer

TOKENIZER = ByteTokenizer()


@given(st.text())
def test_every_text_comes_back(text: str) -> None:
    kept = text.encode("utf-8", errors="replace").decode("utf-8")
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == kept


def test_the_ids_are_those_of_byt5() -> None:
    text = "i'm fine — ça va? 😀"
    assert TOKENIZER.encode(text) == ByT5Tokenizer()(text, add_special_tokens=False).input_ids


def test_broken_bytes_and_ids_without_a_byte() -> None:
    # 0xC3 begins a character of two bytes; 0, 1, 2 and 259 stand for no byte
    assert TOKENIZER.decode([0, 100, 1, 0xC3 + 3, 2, 101, 259]) == "a\ufffdb"
    assert TOKENIZER.size == 259
    assert TOKENIZER.decode([258]) == "\ufffd"
