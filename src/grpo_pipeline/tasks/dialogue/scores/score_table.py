"""Compute all scores of single replies as columns of a table, for the metrics and their intervals."""

from typing import Any

from numpy.typing import NDArray

from grpo_pipeline.tasks.dialogue.scores.bleu import BLEU_COLUMNS, bleu_counts, sentence_bleu
from grpo_pipeline.tasks.dialogue.scores.diversity import length
from grpo_pipeline.tasks.dialogue.scores.f1 import f1
from grpo_pipeline.tasks.dialogue.scores.reference_pairs import Answers, Replies
from grpo_pipeline.tasks.dialogue.scores.rouge import rouge
from grpo_pipeline.tasks.dialogue.scores.rouge101 import rouge_l_rouge101


def score_replies(replies: Replies, answers: Answers) -> dict[str, NDArray[Any]]:
    """Compute a column per score, by the same functions as the rewards of those names; of replies without answers the length.

    Columns: ``f1``, ``rouge_1``, ``rouge_2``, ``rouge_l``, ``bleu`` (sentence) in [0, 1], ``length`` in words, and
    ``bleu_<count>`` for each of ``BLEU_COLUMNS``, the input of ``corpus_bleu``. Definitions of others have columns of their own:
    ``rouge_l_rouge101`` and ``bleu_13a_<count>``.

    Raises:
        ValueError: as ``check_pairs``.
    """
    if not any(answers):
        return {"length": length(replies)}
    counts, theirs = bleu_counts(replies, answers), bleu_counts(replies, answers, words="13a")
    columns: dict[str, NDArray[Any]] = {"f1": f1(replies, answers), **rouge(replies, answers)}
    columns |= {"rouge_l_rouge101": rouge_l_rouge101(replies, answers)}
    columns |= {"bleu": sentence_bleu(counts), "length": length(replies)}
    for begin, found in (("bleu", counts), ("bleu_13a", theirs)):
        columns |= {f"{begin}_{name}": found[:, place] for place, name in enumerate(BLEU_COLUMNS)}
    return columns
