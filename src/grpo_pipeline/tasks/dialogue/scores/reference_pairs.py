"""Check the input of every score of replies: a reply and its reference answers per row."""

from collections.abc import Sequence

Replies = Sequence[str]
Answers = Sequence[Sequence[str]]


def check_pairs(replies: Replies, answers: Answers) -> None:
    """Raise unless every reply has at least one answer.

    Raises:
        ValueError: if the numbers of rows differ, a row holds a text in place of a list of texts, or a row has no answers.
    """
    if len(replies) != len(answers):
        raise ValueError(
            f"answers must have one row per reply, got {len(answers)} for {len(replies)} replies; repeat a prompt's answers"
        )
    for row, texts in enumerate(answers):
        if isinstance(texts, str) or not texts:
            raise ValueError(
                f"the answers of row {row} must be a list of at least one text, got {texts!r}; correct the example"
            )
