"""State what scoring graphs asks of a task beside the protocol of every task."""

from typing import Protocol

import torch

from grpo_pipeline.core.training.micro_batches import PerPrompt
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.tasks.base import Task
from grpo_pipeline.tasks.cache import Cache
from grpo_pipeline.tasks.molecules.denoiser.graph_policy import GraphPolicy
from grpo_pipeline.tasks.molecules.diffusion.noise import GraphNoise
from grpo_pipeline.tasks.molecules.diffusion.trajectories import Trajectories
from grpo_pipeline.tasks.molecules.graphs.graph_prompts import GraphPrompts
from grpo_pipeline.tasks.molecules.graphs.vocabulary import Vocabulary
from grpo_pipeline.tasks.molecules.params import GraphPromptParams, SamplingParams
from grpo_pipeline.tasks.molecules.reward_params import MoleculeRewardParams


class GraphTask(Task, Protocol):
    """A task whose samples are graphs: what scoring them asks for beside the protocol of every task."""

    @property
    def prompt(self) -> GraphPromptParams:
        """Properties that a prompt names."""
        ...

    @property
    def rewards(self) -> MoleculeRewardParams:
        """Parts of the reward and their weights."""
        ...

    @property
    def sampling(self) -> SamplingParams:
        """How many graphs are drawn, and how."""
        ...

    @property
    def vocabulary(self) -> Vocabulary:
        """Meaning of the classes of atoms and bonds."""
        ...

    @property
    def nodes(self) -> int:
        """Width to which every graph is padded."""
        ...

    @property
    def known(self) -> frozenset[str]:
        """Canonical SMILES of the training split."""
        ...

    @property
    def diffusion(self) -> GraphNoise:
        """The noise, on the CPU."""
        ...

    @property
    def pool(self) -> RewardPool:
        """Measures the rewards."""
        ...

    @property
    def cache(self) -> Cache:
        """The start's graphs, once they were drawn."""
        ...

    def build_policy(self, seed: int) -> GraphPolicy:
        """Return a policy with the weights that training begins with."""
        ...

    def draw(
        self,
        policy: GraphPolicy,
        prompts: GraphPrompts,
        group_size: int,
        *,
        temperature: float,
        generator: torch.Generator,
    ) -> Trajectories:
        """Return G whole trajectories for each prompt."""
        ...

    def molecules(self, rollouts: Rollouts) -> PerPrompt:
        """Return the decoded molecules: of each prompt a tuple of G."""
        ...
