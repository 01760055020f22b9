import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_pipeline.tasks.dialogue.data.hidden_characters import printable
from grpo_pipeline.tasks.dialogue.scores.normalisation import words


def test_control_characters_part_words_or_are_marked_and_a_table_gives_them_back(tmp_path):
    assert printable("a\x00b\tc\r\nd\x7f é") == "a\ufffdb c  d\ufffd é"
    assert printable("a\u202eb\u2066") == "a\ufffdb\ufffd"
    replies = [printable(text) for text in ("a\x00b", 'say "hi", now', "NA", "1", "line\rline", "\u2028x")]
    pd.DataFrame({"reply": replies}).to_csv(tmp_path / "rows.csv", index=False)
    read = pd.read_csv(tmp_path / "rows.csv", dtype={"reply": str}, keep_default_na=False, na_values=[""])
    assert read["reply"].tolist() == replies


@settings(max_examples=50)
@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_words_keep_their_number_and_the_text_has_one_line(text):
    shown = printable(text)
    assert (len(words(shown)), len(shown)) == (len(words(text)), len(text))
    assert not {"\n", "\x00"} & set(shown)
