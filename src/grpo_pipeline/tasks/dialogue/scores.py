"""Compute all scores of single replies as columns of one table, from which metrics and their intervals are computed."""

import re
import string
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_pipeline.rewards.functions import prepared_by
from grpo_pipeline.tasks.dialogue.params import Smoothing
from grpo_pipeline.tasks.shared import library

# The one normalisation that replies and answers pass before anything is counted, in reward and metric alike.

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


# Scripts without blanks between words: a Han character, a kana or a letter of Thai, Lao, Khmer, Burmese or Tibetan counts as a
# word, with the marks that stand on it. Korean has blanks.
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
    """Return whether a text holds letters of a script that writes words without blanks between them."""
    return _CHARACTER.search(text) is not None


def parted(text: str) -> str:
    """Return the text with every character of a script without blanks as a word of its own, without that script's punctuation.

    A text without such characters stays as it is.
    """
    if not is_without_blanks(text):
        return text
    return _CHARACTER.sub(r" \1 ", text.translate(_THEIR_PUNCTUATION))


def normalise(text: str) -> str:
    """Return the text in lower case, without ASCII punctuation and articles, its words parted by single blanks.

    Of Chinese, Japanese, Thai and other scripts without blanks every character is a word (``parted``).

    Source: ``normalize_answer`` of the SQuAD 1.1 evaluation (Rajpurkar et al., arXiv 1606.05250), step by step in its order:
    "A's" becomes "as" and is kept, since punctuation goes before articles. Signs outside ASCII (a curly apostrophe) stay.
    """
    return " ".join(_ARTICLES.sub(" ", parted(text.lower().translate(_PUNCTUATION))).split())


def words(text: str) -> list[str]:
    """Return the words of the normalised text; a text of punctuation and articles alone has none."""
    return normalise(text).split()


# The input of every score of replies: one reply and its reference answers per row.

Replies = Sequence[str]
Answers = Sequence[Sequence[str]]


def check_pairs(replies: Replies, answers: Answers) -> None:
    """Raise unless every reply has at least one answer.

    Raises:
        ValueError: for another number of rows, a text in place of a list of texts, or a row without answers.
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


# BLEU of replies, by sacrebleu on normalised words: of each reply for the reward, of all of them for the report.
#
# Both come from the same counts per reply. Counts add up, so that the corpus BLEU of any resample of rows is a sum.

ORDERS = 4
BLEU_COLUMNS = (
    "reply_words",
    "answer_words",
    *(f"{kind}_{n}" for kind in ("matched", "all") for n in range(1, ORDERS + 1)),
)


def bleu_counts(replies: Replies, answers: Answers) -> NDArray[np.int64]:
    """Count what BLEU is made of, per reply.

    Source: Papineni et al., BLEU, ACL 2002, section 2, as sacrebleu counts: n-grams clipped by the answer that has most of
    them, and the length of the answer closest to the reply's.

    Returns:
        int64 [N, 10], columns ``BLEU_COLUMNS``.

    Raises:
        ValueError: as ``check_pairs``.
    """
    check_pairs(replies, answers)
    counter = _sacrebleu().BLEU(tokenize="none", smooth_method="none", effective_order=True)
    rows = np.zeros((len(replies), len(BLEU_COLUMNS)), dtype=np.int64)
    for row, (reply, texts) in enumerate(zip(replies, answers, strict=True)):
        found = counter.sentence_score(normalise(reply), [normalise(text) for text in texts])
        rows[row] = [found.sys_len, found.ref_len, *found.counts, *found.totals]
    return rows


def sentence_bleu(
    counts: NDArray[np.int64], *, smoothing: Smoothing = "exp"
) -> NDArray[np.float64]:
    """Return the BLEU of each reply, over the orders that it is long enough for.

        BLEU = min(1, exp(1 - r / c)) * (prod over n <= min(4, c) of p_n) ** (1 / min(4, c))

    c words in the reply, r in the closest answer, p_n the share of its n-grams that match. An order without a match would
    make the product 0; ``exp`` halves once more at each such order (Chen and Cherry, WMT 2014, method 3), ``floor`` and
    ``add-k`` take sacrebleu's default values. A reply without one matching word scores 0 under each.

    Args:
        counts: [N, 10] of ``bleu_counts``.
        smoothing: how an order without a match counts.

    Returns:
        [N], in [0, 1].
    """
    return np.asarray(
        [_bleu(row, smoothing=smoothing, effective=True) for row in counts], dtype=np.float64
    )


def corpus_bleu(counts: NDArray[np.int64]) -> float:
    """Return the BLEU of all replies together, from their summed counts.

    All four orders count, smoothed by ``exp`` as sacrebleu does by default. Its signature is
    ``case:mixed|eff:no|tok:none|smooth:exp`` on text that was normalised before.

    Args:
        counts: [N, 10] of ``bleu_counts``, any selection of rows, with repeats.

    Returns:
        In [0, 1]; NaN for no rows.
    """
    return (
        _bleu(counts.sum(axis=0), smoothing="exp", effective=False) if len(counts) else float("nan")
    )


@cache
def _sacrebleu() -> Any:
    return library("sacrebleu.metrics.bleu", extra="dialogue")


@prepared_by(_sacrebleu)
def bleu(
    replies: Replies, answers: Answers, *, smoothing: Smoothing = "exp"
) -> NDArray[np.float64]:
    """Return the BLEU of each reply, [N] in [0, 1]: the reward component of that name (``sentence_bleu``)."""
    return sentence_bleu(bleu_counts(replies, answers), smoothing=smoothing)


def _bleu(counts: NDArray[np.int64], *, smoothing: Smoothing, effective: bool) -> float:
    reply_words, answer_words, *rest = counts.tolist()
    score = _sacrebleu().BLEU.compute_bleu(
        rest[:ORDERS],
        rest[ORDERS:],
        reply_words,
        answer_words,
        smooth_method=smoothing,
        effective_order=effective,
    )
    # exp(log(...)) may pass 1 by one rounding.
    return min(1.0, float(score.score) / 100)


# How different replies are from each other, and how long: what a policy that collapses loses first.


def distinct(replies: Sequence[str], *, n: int) -> float:
    """Return the share of different n-grams among all n-grams of all replies.

    N-grams of normalised words, never across two replies. Falls with the number of replies: compare equal numbers only.
    Source: Li et al., arXiv 1510.03055, section 5.

    Returns:
        In (0, 1]; NaN where no reply has n words.

    Raises:
        ValueError: if n < 1.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}; distinct-1 and distinct-2 are usual")
    texts = [words(reply) for reply in replies]
    grams = [tuple(text[start : start + n]) for text in texts for start in range(len(text) - n + 1)]
    return len(set(grams)) / len(grams) if grams else float("nan")


def self_bleu(
    groups: Sequence[Sequence[str]], *, smoothing: Smoothing = "exp"
) -> NDArray[np.float64]:
    """Return how alike the replies of each group are: the mean BLEU of a reply with the others as its answers.

        self_bleu[p] = mean_g BLEU(reply[p, g]; {reply[p, h], h != g})

    1: every reply is repeated in its group. Source: Zhu et al., Texygen, arXiv 1802.01886, section 3.1, per group.

    Args:
        groups: P groups of replies.
        smoothing: as in ``sentence_bleu``.

    Returns:
        [P], in [0, 1]; NaN for a group of fewer than two.
    """
    rows = [
        (reply, [*group[:place], *group[place + 1 :]])
        for group in map(list, groups)
        if len(group) > 1
        for place, reply in enumerate(group)
    ]
    scores = iter(
        bleu(
            [reply for reply, _ in rows], [others for _, others in rows], smoothing=smoothing
        ).tolist()
    )
    means = [
        sum(next(scores) for _ in group) / len(group) if len(group) > 1 else float("nan")
        for group in groups
    ]
    return np.asarray(means, dtype=np.float64)


def length(replies: Sequence[str]) -> NDArray[np.int64]:
    """Return the number of words between blanks of each reply as it stands, [N]; of scripts without blanks, of characters.

    Not of the normalised text: a policy that repeats "the" writes long replies without one normalised word.
    """
    return np.asarray([len(parted(reply).split()) for reply in replies], dtype=np.int64)


# Word overlap of a reply with its best reference answer: the F1 of the reward and of every report.


def f1(replies: Replies, answers: Answers) -> NDArray[np.float64]:
    """Score every reply against the answer that it overlaps most.

        F1 = max over answers a of 2 c / (words in the reply + words in a),   c = number of words in common, with repeats

    Words are those of ``normalise``. Where nothing is in common the score is 0, also between two texts without any word:
    an empty reply earns nothing.
    Source: ``f1_score`` of the SQuAD 1.1 evaluation, arXiv 1606.05250, section 4 (2 c / (m + n) is its 2 P R / (P + R)).

    Returns:
        [N], in [0, 1].

    Raises:
        ValueError: as ``check_pairs``.
    """
    check_pairs(replies, answers)
    counts = [Counter(words(reply)) for reply in replies]
    scores = [
        max(_overlap(reply, Counter(words(answer))) for answer in texts)
        for reply, texts in zip(counts, answers, strict=True)
    ]
    return np.asarray(scores, dtype=np.float64)


def _overlap(reply: Counter[str], answer: Counter[str]) -> float:
    common = (reply & answer).total()
    return 2 * common / (reply.total() + answer.total()) if common else 0.0


# ROUGE-1, ROUGE-2 and ROUGE-L of replies, by the package rouge-score on normalised words.

ROUGE_NAMES = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}


class NormalisedWords:
    """The tokenizer given to rouge-score: its own one drops every letter outside a-z and keeps articles."""

    def tokenize(self, text: str) -> list[str]:
        """Return the words of the normalised text."""
        return words(text)


def rouge(
    replies: Replies, answers: Answers, *, names: Sequence[str] = tuple(ROUGE_NAMES)
) -> dict[str, NDArray[np.float64]]:
    """Score every reply by the F-measure of the named kinds of ROUGE, each against its best answer.

        rouge_n: 2 c / (n-grams of the reply + n-grams of the answer),  c n-grams in common with repeats
        rouge_l: the same with c the longest common subsequence of words

    Source: Lin, ROUGE, ACL 2004 workshop, sections 2 and 3, with beta = 1; no stemming. A text without words scores 0.

    Args:
        replies: N texts.
        answers: N lists of at least one text.
        names: any of ``ROUGE_NAMES``.

    Returns:
        name -> [N], in [0, 1].

    Raises:
        ValueError: as ``check_pairs``, or for an unknown name.
    """
    check_pairs(replies, answers)
    unknown = sorted(set(names) - set(ROUGE_NAMES))
    if unknown:
        raise ValueError(
            f"kinds of ROUGE must be among {sorted(ROUGE_NAMES)}, got {unknown}; correct the names"
        )
    scorer = _rouge_score().RougeScorer(
        [ROUGE_NAMES[name] for name in names], tokenizer=NormalisedWords()
    )
    rows = [
        scorer.score_multi(list(texts), reply)
        for reply, texts in zip(replies, answers, strict=True)
    ]
    return {
        name: np.asarray([row[ROUGE_NAMES[name]].fmeasure for row in rows], dtype=np.float64)
        for name in names
    }


@cache
def _rouge_score() -> Any:
    return library("rouge_score.rouge_scorer", extra="dialogue")


@prepared_by(_rouge_score)
def rouge_l(replies: Replies, answers: Answers) -> NDArray[np.float64]:
    """Return ROUGE-L alone, [N] in [0, 1]: the reward component of that name."""
    return rouge(replies, answers, names=("rouge_l",))["rouge_l"]


def score_replies(
    replies: Replies, answers: Answers, *, smoothing: Smoothing = "exp"
) -> dict[str, NDArray[Any]]:
    """Return one column per score, by the same functions as the rewards of those names.

    Columns: ``f1``, ``rouge_1``, ``rouge_2``, ``rouge_l``, ``bleu`` (sentence) in [0, 1], ``length`` in words, and
    ``bleu_<count>`` for each of ``BLEU_COLUMNS``: stacked in that order they are what ``corpus_bleu`` reads.

    Raises:
        ValueError: as ``check_pairs``.
    """
    counts = bleu_counts(replies, answers)
    columns: dict[str, NDArray[Any]] = {"f1": f1(replies, answers), **rouge(replies, answers)}
    columns |= {"bleu": sentence_bleu(counts, smoothing=smoothing), "length": length(replies)}
    return columns | {f"bleu_{name}": counts[:, place] for place, name in enumerate(BLEU_COLUMNS)}
