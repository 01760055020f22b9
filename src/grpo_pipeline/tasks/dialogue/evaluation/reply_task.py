"""Define the attributes and methods of a task that the scoring of its replies needs, beside the protocol of every task."""

from typing import Protocol

from torch import Tensor

from grpo_pipeline.core.training.micro_batches import PerPrompt
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.tasks.base import Task
from grpo_pipeline.tasks.cache import Cache
from grpo_pipeline.tasks.dialogue.batch import DialogueBatch
from grpo_pipeline.tasks.dialogue.language_model.base import Encoded, LanguageModel
from grpo_pipeline.tasks.dialogue.language_model.params import ReplyParams
from grpo_pipeline.tasks.dialogue.rewards.params import DialogueReward

BATCH_PROMPTS = 64


class ReplyTask(Task, Protocol):
    """A task whose samples are replies, with the attributes that scoring them needs."""

    @property
    def replies(self) -> ReplyParams:
        """The parameters of drawing replies."""
        ...

    @property
    def rewards(self) -> DialogueReward:
        """The components of the reward and their weights."""
        ...

    @property
    def pool(self) -> RewardPool:
        """The processes that measure the rewards."""
        ...

    @property
    def cache(self) -> Cache:
        """The start's replies, once they were drawn."""
        ...

    @property
    def ends(self) -> tuple[int, ...]:
        """(*end_ids, pad_id)."""
        ...

    def build_policy(self, seed: int) -> LanguageModel:
        """Build a language model with the initial weights."""
        ...

    def read(self, policy: LanguageModel, batch: DialogueBatch, stories: Tensor) -> Encoded:
        """Read the prompts with the stories of these numbers, int64 [P, n]."""
        ...

    def texts(self, rollouts: Rollouts) -> PerPrompt:
        """Decode the replies: for each prompt a tuple of G texts."""
        ...

    def shown(self, rollouts: Rollouts) -> PerPrompt:
        """Write the replies for people: for each prompt a tuple of G texts."""
        ...
