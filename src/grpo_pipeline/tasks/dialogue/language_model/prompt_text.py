"""Compose the text that a language model reads: the question, and its retrieved stories.

Source of the wording: the input of Fusion-in-Decoder (Izacard and Grave, arXiv 2007.01282, section 3).
"""

from collections.abc import Sequence
from typing import Literal

ModelKind = Literal["seq2seq", "causal"]
REPLY_CUE = " reply:"


def story_text(title: str, text: str) -> str:
    """Write a story in the form that the model reads."""
    return f"title: {title} story: {text}"


def prompt_texts(question: str, stories: Sequence[str], *, kind: ModelKind) -> list[str]:
    """Compose the texts of a prompt.

    A seq2seq language model reads each story in a text of its own, with the question after it, and fuses them in its decoder. A
    causal language model reads a single text: all stories, the question once, and a cue after which the reply begins. The
    question stands last, so that ``too_long: keep_end`` cuts stories first.

    Args:
        question: "persona: … context: …".
        stories: results of ``story_text``; without stories, the question stands alone.
        kind: kind of the language model.
    """
    if kind == "causal":
        return [" ".join([*stories, question]) + REPLY_CUE]
    return [f"{story} {question}" for story in stories] or [question]
