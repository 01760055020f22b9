"""Define the attributes and methods of a task that the scoring of its graphs needs, beside the protocol of every task."""

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
from grpo_pipeline.tasks.molecules.rewards.params import MoleculeReward


class GraphTask(Task, Protocol):
    """A task whose samples are graphs, with the attributes that scoring them needs."""

    @property
    def prompt(self) -> GraphPromptParams:
        """The properties that a prompt names."""
        ...

    @property
    def rewards(self) -> MoleculeReward:
        """The components of the reward and their weights."""
        ...

    @property
    def sampling(self) -> SamplingParams:
        """The number of graphs that are drawn, and how."""
        ...

    @property
    def vocabulary(self) -> Vocabulary:
        """The meaning of the classes of atoms and bonds."""
        ...

    @property
    def nodes(self) -> int:
        """The width to which every graph is padded."""
        ...

    @property
    def known(self) -> frozenset[str]:
        """The canonical SMILES of the training split."""
        ...

    @property
    def diffusion(self) -> GraphNoise:
        """The noise, on the CPU."""
        ...

    @property
    def pool(self) -> RewardPool:
        """The processes that measure the rewards."""
        ...

    @property
    def cache(self) -> Cache:
        """The start's graphs, once they were drawn."""
        ...

    def build_policy(self, seed: int) -> GraphPolicy:
        """Build a policy with the initial weights."""
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
        """Draw G whole trajectories for each prompt."""
        ...

    def molecules(self, rollouts: Rollouts) -> PerPrompt:
        """Decode the molecules: for each prompt a tuple of G."""
        ...
