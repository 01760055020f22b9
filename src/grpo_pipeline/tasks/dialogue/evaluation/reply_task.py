"""State what scoring replies asks of a task beside the protocol of every task."""

from typing import Protocol

from grpo_pipeline.core.training.micro_batches import PerPrompt
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.tasks.base import Task
from grpo_pipeline.tasks.cache import Cache
from grpo_pipeline.tasks.dialogue.language_model.base import LanguageModel
from grpo_pipeline.tasks.dialogue.language_model.params import ReplyParams
from grpo_pipeline.tasks.dialogue.params import RewardParams

BATCH_PROMPTS = 64


class ReplyTask(Task, Protocol):
    """A task whose samples are replies: what scoring them asks for beside the protocol of every task."""

    @property
    def replies(self) -> ReplyParams:
        """How replies are drawn."""
        ...

    @property
    def rewards(self) -> RewardParams:
        """Parts of the reward and their weights."""
        ...

    @property
    def pool(self) -> RewardPool:
        """Measures the rewards."""
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
        """Return a language model with the weights that training begins with."""
        ...

    def texts(self, rollouts: Rollouts) -> PerPrompt:
        """Return the replies as texts: of each prompt a tuple of G."""
        ...
