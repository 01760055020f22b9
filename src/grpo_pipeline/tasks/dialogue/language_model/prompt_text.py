"""Compose the text that a language model reads: the question, and the stories that were retrieved for it.

Source of the wording: the input of Fusion-in-Decoder (Izacard and Grave, arXiv 2007.01282, section 3).
"""

from collections.abc import Sequence
from typing import Literal

ModelKind = Literal["seq2seq", "causal"]
REPLY_CUE = " reply:"


def story_text(title: str, text: str) -> str:
    """Return one story as it is read."""
    return f"title: {title} story: {text}"


def prompt_texts(question: str, stories: Sequence[str], *, kind: ModelKind) -> list[str]:
    """Return the texts of one prompt.

    A seq2seq language model reads each story in a text of its own, with the question after it, and fuses them in its decoder. A
    causal language model reads one text: all stories, the question once, and a cue after which the reply begins. The question
    stands last, so that ``too_long: keep_end`` cuts stories before it cuts the question.

    Args:
        question: "persona: … context: …".
        stories: of ``story_text``; none leaves the question alone.
        kind: of the language model.
    """
    if kind == "causal":
        return [" ".join([*stories, question]) + REPLY_CUE]
    return [f"{story} {question}" for story in stories] or [question]
