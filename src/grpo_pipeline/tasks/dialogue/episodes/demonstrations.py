"""Turn an answer of several lines into a conversation that is imitated: its replies are learned, what is told between is read."""

from collections.abc import Sequence
from itertools import pairwise

from grpo_pipeline.tasks.dialogue.episodes.conversations import Stage
from grpo_pipeline.tasks.dialogue.language_model.tokens import Tokenizer


def demonstration(
    first: Sequence[int], answer: str, stage: Stage, tokenizer: Tokenizer
) -> tuple[list[int], list[bool]]:
    """Play the lines of an answer, and write the tokens of the conversation, its last end included.

    Args:
        first: tokens of the first line, as it follows the prompt, without its end.
        answer: a line for each reply; the lines after the conversation is over are left out.
        stage: where the conversation begins.
        tokenizer: of the language model.

    Returns:
        The tokens, and which of them are the language model's own.
    """
    lines = answer.split("\n")
    ids, is_own = [*first, tokenizer.eos_id], [True] * (len(first) + 1)
    episode = stage.begin()
    for line, following in pairwise(lines):
        text = episode.answer(line).text
        if text is None:
            break
        told, said = stage.encode(text), [*tokenizer.encode(following), tokenizer.eos_id]
        ids += told + said
        is_own += [False] * len(told) + [True] * len(said)
    return ids, is_own
