"""The workload that all contenders are given: a policy, the sizes of the graphs, and trajectories that are scored."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from grpo_pipeline.tasks.molecules.denoiser.graph_policy import GraphPolicy, build_policy
from grpo_pipeline.tasks.molecules.diffusion.params import (
    DenoiserParams,
    NoiseParams,
    TrajectoryParams,
)
from grpo_pipeline.tasks.molecules.diffusion.trajectories import Trajectories
from grpo_pipeline.tasks.molecules.diffusion.transition import marginal_limit
from grpo_pipeline.tasks.molecules.graphs.components import Components
from grpo_pipeline.tasks.molecules.graphs.graph_prompts import GraphPrompts, make_prompts

# C, N, O, F; charges 0, -1, +1; no bond, single, double, triple: how often, roughly, in small molecules.
COUNTS = Components((70, 14, 14, 2), (96, 2, 2), (75, 20, 4, 1))
EXPONENTS = {"atoms": 1.0, "charges": 1.0, "bonds": 1.5}
# A network for seconds, of no use.
TINY = {
    "layers": 1,
    "width": 8,
    "pair_width": 4,
    "global_width": 4,
    "heads": 2,
}
PARAMETERS = (
    Path(__file__).resolve().parents[2] / "conf" / "base" / "molecules" / "parameters_training.yml"
)


def configured_network() -> dict[str, Any]:
    """Return the network of ``conf/base``, the values of ``DenoiserParams``."""
    network: dict[str, Any] = yaml.safe_load(PARAMETERS.read_text(encoding="utf-8"))["molecules"][
        "denoiser"
    ]
    return network


def read_size(text: str) -> tuple[str, int]:
    """Read an option such as layers=4."""
    name, _, size = text.partition("=")
    return name, int(size)


@dataclass(frozen=True)
class Workload:
    """The sizes of one measurement.

    Attributes:
        nodes: n, of every graph: nothing is padded.
        steps: T.
        graphs: drawn and scored at a time by ours.
        plain_graphs: the same for the loop, fewer: it takes one graph after the other, so that its time per graph is no other.
        steps_per_chunk: decisions of an update whose graph of computation exists at a time.
        network: the values of ``DenoiserParams``; None: those of ``conf/base``.
        seed: of weights and draws.
    """

    nodes: int
    steps: int
    graphs: int
    plain_graphs: int = 1
    steps_per_chunk: int = 5
    network: dict[str, Any] | None = None
    seed: int = 0

    @cached_property
    def policy(self) -> GraphPolicy:
        """The policy of all contenders."""
        noise = NoiseParams.model_validate(
            {"steps": self.steps, "limit": "marginal", "exponents": EXPONENTS}
        )
        limits = COUNTS.each(lambda counts: marginal_limit(torch.tensor(counts)))
        network = DenoiserParams.model_validate(self.network or configured_network())
        return build_policy(limits, noise, network, seed=self.seed)

    @cached_property
    def params(self) -> TrajectoryParams:
        """How trajectories are drawn and scored."""
        return TrajectoryParams(
            start="independent",
            entry_reduction="sum",
            estimator="step",
            steps_per_update=None,
            steps_per_chunk=self.steps_per_chunk,
        )

    @property
    def prompts(self) -> GraphPrompts:
        """As many prompts as graphs, all of n nodes."""
        return make_prompts(torch.full((self.graphs,), self.nodes), self.nodes)

    @cached_property
    def rollouts(self) -> Trajectories:
        """Trajectories to score, [graphs, 1, T]: random graphs, not those of the policy, so that they are there at once."""
        source = self.generator()
        counts = (self.nodes, self.nodes, self.nodes * (self.nodes - 1) // 2)
        entries = self.policy.noise.classes.each(
            lambda k, count: torch.randint(
                k, (self.graphs, 1, self.steps + 1, count), generator=source, dtype=torch.uint8
            ),
            Components(*counts),
        )
        times = torch.arange(self.steps, 0, -1).expand(self.graphs, 1, self.steps).contiguous()
        prompts = self.prompts
        return Trajectories(
            actions=times,
            logprobs=torch.zeros(times.shape),
            is_valid=torch.ones_like(times, dtype=torch.bool),
            atoms=entries.atoms,
            charges=entries.charges,
            bonds=entries.bonds,
            sizes=prompts.sizes,
            conditions=prompts.conditions,
        )

    @cached_property
    def advantages(self) -> Tensor:
        """One number for each graph."""
        return torch.randn(self.graphs, generator=self.generator())

    def generator(self) -> torch.Generator:
        """Return a fresh source of randomness."""
        return torch.Generator().manual_seed(self.seed)
