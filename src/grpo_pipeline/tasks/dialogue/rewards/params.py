"""Declare the parameters of the reward: its terms by name, each with its weight (``dialogue.reward``)."""

from collections.abc import Mapping
from typing import ClassVar

from grpo_pipeline.core.objective.part import Weighed
from grpo_pipeline.rewards.params import MeasuredReward
from grpo_pipeline.tasks.dialogue.episodes.params import EnvironmentReward
from grpo_pipeline.tasks.dialogue.scores.json_form import JsonReward
from grpo_pipeline.tasks.dialogue.scores.number import NumberReward
from grpo_pipeline.tasks.dialogue.scores.overlong import LengthReward
from grpo_pipeline.tasks.dialogue.scores.pattern import PatternReward
from grpo_pipeline.tasks.dialogue.scores.repetition import RepetitionReward

SCORES = "grpo_pipeline.tasks.dialogue.scores"


class DialogueReward(MeasuredReward):
    """The named terms of the reward, weighed and added up (``dialogue.reward``; docs/dialogue/rewards.md).

    Attributes:
        f1: overlap of words.
        rouge_l: longest common sequence of words.
        bleu: overlap of sequences of words.
        exact_match: 1 if the words are those of an answer.
        number: 1 if the last number is that of an answer.
        pattern: 1 if a regular expression matches.
        json_form: 1 if it is JSON of a form.
        length: 0, and down to -1 for too many words.
        repetition: minus the share of repeated sequences of words.
        environment: what an environment pays, which also answers: a sample is then a conversation.
    """

    functions: ClassVar = {
        "f1": f"{SCORES}.f1:f1",
        "rouge_l": f"{SCORES}.rouge:rouge_l",
        "bleu": f"{SCORES}.bleu:bleu",
        "exact_match": f"{SCORES}.exact_match:exact_match",
        "number": f"{SCORES}.number:number",
        "pattern": f"{SCORES}.pattern:pattern",
        "json_form": f"{SCORES}.json_form:json_form",
        "length": f"{SCORES}.overlong:overlong",
        "repetition": f"{SCORES}.repetition:repetition",
        "environment": "grpo_pipeline.tasks.dialogue.episodes.episode_reward:episode_reward",
    }
    may_hang: ClassVar = ("pattern", "json_form", "environment")
    best: ClassVar[Mapping[str, float]] = {
        **dict.fromkeys(("f1", "exact_match", "number", "pattern", "json_form"), 1.0),
        **dict.fromkeys(("length", "repetition"), 0.0),
    }
    """Term -> value of a right answer, of those that have one."""
    reads_answers: ClassVar = ("f1", "rouge_l", "bleu", "exact_match", "number")

    @property
    def verifiable(self) -> tuple[str, ...]:
        """List the terms that say whether a reply is right: matches and numbers, else a pattern that stands for the answers."""
        right = tuple(name for name in ("number", "exact_match") if name in self.terms)
        if right or self.pattern is None or any(name in self.terms for name in self.reads_answers):
            return right
        return ("pattern",)

    f1: Weighed | None = None
    rouge_l: Weighed | None = None
    bleu: Weighed | None = None
    exact_match: Weighed | None = None
    number: NumberReward | None = None
    pattern: PatternReward | None = None
    json_form: JsonReward | None = None
    length: LengthReward | None = None
    repetition: RepetitionReward | None = None
    environment: EnvironmentReward | None = None
