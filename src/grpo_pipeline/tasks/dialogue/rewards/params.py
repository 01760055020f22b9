"""Declare the parameters of the reward: its terms by name, each with its weight (``dialogue.reward``)."""

from typing import ClassVar

from grpo_pipeline.core.objective.part import Weighed
from grpo_pipeline.rewards.params import MeasuredReward

SCORES = "grpo_pipeline.tasks.dialogue.scores"


class DialogueReward(MeasuredReward):
    """The named terms of the reward, weighed and added up (``dialogue.reward``; docs/dialogue/rewards.md).

    Attributes:
        f1: overlap of words.
        rouge_l: longest common sequence of words.
        bleu: overlap of sequences of words.
    """

    functions: ClassVar = {
        "f1": f"{SCORES}.f1:f1",
        "rouge_l": f"{SCORES}.rouge:rouge_l",
        "bleu": f"{SCORES}.bleu:bleu",
    }

    f1: Weighed | None = None
    rouge_l: Weighed | None = None
    bleu: Weighed | None = None
