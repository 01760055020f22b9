"""The one normalisation that replies and answers pass before anything is counted, in reward and metric alike."""

import re
import string

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise(text: str) -> str:
    """Return the text in lower case, without ASCII punctuation and articles, its words parted by single blanks.

    Source: ``normalize_answer`` of the SQuAD 1.1 evaluation (Rajpurkar et al., arXiv 1606.05250), step by step in its order:
    "A's" becomes "as" and is kept, since punctuation goes before articles. Signs outside ASCII (a curly apostrophe) stay.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def words(text: str) -> list[str]:
    """Return the words of the normalised text; a text of punctuation and articles alone has none."""
    return normalise(text).split()
