"""Write replies without a model, as baselines for every score.

F1 alone is hackable: a fixed list of frequent words overlaps with many answers, and a copy of the persona with others.
"""

from collections import Counter
from collections.abc import Sequence

import pandas as pd

from grpo_pipeline.tasks.dialogue.scores.normalisation import words

CONSTANT = "i am good how are you"
TOP_WORDS = 8
TRIVIAL_RULES = ("constant", "top_words", "copy_last_turn", "copy_persona", "reference")


def training_texts(table: pd.DataFrame) -> list[str]:
    """List the answers of the training split of an examples' table; without answers its prompts."""
    training = table[table["split"] == "train"]
    answers = [text for texts in training["answers"] for text in texts]
    return answers or list(training["question"])


def constant_replies(count: int, *, text: str = CONSTANT) -> list[str]:
    """Repeat the same reply ``count`` times."""
    return [text] * count


def most_frequent_words(training_replies: Sequence[str], *, count: int = TOP_WORDS) -> str:
    """Find the ``count`` most frequent normalised words of the training replies, most frequent first; ties by alphabet.

    Raises:
        ValueError: if count < 1, or if the replies hold no word at all.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}; 8 is usual")
    found = Counter(word for reply in training_replies for word in words(reply))
    if not found:
        raise ValueError(
            f"training replies must hold some word, got none in {len(training_replies)} replies; give the answers"
        )
    return " ".join(sorted(found, key=lambda word: (-found[word], word))[:count])


def reference_replies(answers: Sequence[Sequence[str]]) -> list[str]:
    """Take the first reference answer of every example: the score that no reply can exceed.

    Raises:
        ValueError: for an example without an answer.
    """
    missing = [row for row, texts in enumerate(answers) if not texts]
    if missing:
        raise ValueError(
            f"every example must have at least one answer, got none in row {missing[0]}; correct the example"
        )
    return [texts[0] for texts in answers]


def trivial_replies(
    training_replies: Sequence[str],
    contexts: Sequence[str],
    *,
    personas: Sequence[Sequence[str] | str],
    answers: Sequence[Sequence[str]] | None,
) -> dict[str, list[str]]:
    """Write the replies of every trivial rule to the same N examples.

    Args:
        training_replies: the answers of the training split alone; without answers its prompts.
        contexts: N contexts, turns separated by line ends, oldest first.
        personas: N personas.
        answers: N lists of reference answers, which only ``reference`` reads; None where there are none.

    Returns:
        ``constant``, ``top_words``, ``copy_last_turn``, ``copy_persona`` and, with answers, ``reference`` -> N replies.

    Raises:
        ValueError: if the lists differ in length; as ``most_frequent_words`` and ``reference_replies``.
    """
    count = len(contexts)
    sizes = [count, len(personas), *([] if answers is None else [len(answers)])]
    if len(set(sizes)) != 1:
        raise ValueError(
            f"contexts, personas and answers must have one row per example, got {sizes}; take them from the same rows"
        )
    ceiling = {} if answers is None else {"reference": reference_replies(answers)}
    return {
        "constant": constant_replies(count),
        "top_words": constant_replies(count, text=most_frequent_words(training_replies)),
        "copy_last_turn": [
            next((turn.strip() for turn in reversed(context.split("\n")) if turn.strip()), "")
            for context in contexts
        ],
        "copy_persona": [
            persona if isinstance(persona, str) else " ".join(persona) for persona in personas
        ],
    } | ceiling
