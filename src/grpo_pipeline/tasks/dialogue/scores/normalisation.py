"""Normalise replies and answers before words are counted, in reward and metric alike."""

import re
import string

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")

# In scripts without blanks between words, a Han character, a kana or a letter of Thai, Lao, Khmer, Burmese or Tibetan is a
# word, together with its marks. Korean has blanks.
_WITHOUT_BLANKS = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_MARKS = "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u0f71-\u0f84\u102b-\u103e\u17b4-\u17d3\u3099\u309a"
_CHARACTER = re.compile(f"([{_WITHOUT_BLANKS}][{_MARKS}]*)")
_THEIR_PUNCTUATION = str.maketrans(
    dict.fromkeys("。、，．！？；：「」『』（）《》〈〉【】〔〕…—～・“”‘’「」、。", " ")
)


def is_without_blanks(text: str) -> bool:
    """Check whether a text holds letters of a script without blanks between words."""
    return _CHARACTER.search(text) is not None


def parted(text: str) -> str:
    """Separate every character of a script without blanks as a word, and remove that script's punctuation.

    A text without such characters stays unchanged.
    """
    if not is_without_blanks(text):
        return text
    return _CHARACTER.sub(r" \1 ", text.translate(_THEIR_PUNCTUATION))


def normalise(text: str) -> str:
    """Normalise a text: lower case, no ASCII punctuation or articles, single blanks between words.

    Of Chinese, Japanese, Thai and other scripts without blanks every character is a word (``parted``).

    Source: ``normalize_answer`` of the SQuAD 1.1 evaluation (Rajpurkar et al., arXiv 1606.05250), step by step in its order:
    "A's" becomes "as" and is kept, since punctuation goes before articles. Signs outside ASCII (a curly apostrophe) stay.
    """
    return " ".join(_ARTICLES.sub(" ", parted(text.lower().translate(_PUNCTUATION))).split())


def words(text: str) -> list[str]:
    """Split the normalised text into words; a text of punctuation and articles alone has none."""
    return normalise(text).split()
