"""Implement the molecule task: a denoiser draws G graphs of a wanted size step by step; rewards judge the molecules."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Generator, Tensor, nn

from grpo_pipeline.core.agreement import decisive
from grpo_pipeline.core.groups import replicate
from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.storage.weights import ModelWeights, digest_of_tensors
from grpo_pipeline.core.training.micro_batches import PerPrompt
from grpo_pipeline.core.types import Rollouts, Scores
from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.rewards.shares import RewardShare
from grpo_pipeline.tasks.audit_plan import AuditPlan
from grpo_pipeline.tasks.base import BaseTask, Proposal
from grpo_pipeline.tasks.cache import Cache
from grpo_pipeline.tasks.molecules.algorithm_checks import check_algorithm
from grpo_pipeline.tasks.molecules.batch import MoleculeBatch, Outcomes, make_batch, nothing_sampled
from grpo_pipeline.tasks.molecules.denoiser.graph_policy import GraphPolicy, build_policy
from grpo_pipeline.tasks.molecules.diffusion.noise import GraphNoise
from grpo_pipeline.tasks.molecules.diffusion.params import (
    DenoiserParams,
    NoiseParams,
    TrajectoryParams,
    X0LossParams,
    check_steps,
)
from grpo_pipeline.tasks.molecules.diffusion.size_groups import (
    cut_entries,
    cut_prompts,
    size_groups,
)
from grpo_pipeline.tasks.molecules.diffusion.step_scores import rescored, score_steps
from grpo_pipeline.tasks.molecules.diffusion.trajectories import (
    Trajectories,
    choose_decisions,
    graphs_at,
)
from grpo_pipeline.tasks.molecules.diffusion.trajectory_sampling import sample_trajectories
from grpo_pipeline.tasks.molecules.diffusion.x0_loss import x0_counts, x0_loss
from grpo_pipeline.tasks.molecules.evaluation import audit
from grpo_pipeline.tasks.molecules.evaluation.evaluate import evaluate
from grpo_pipeline.tasks.molecules.evaluation.graph_table import tabulate
from grpo_pipeline.tasks.molecules.evaluation.showcase import showcase, training_frame
from grpo_pipeline.tasks.molecules.evaluation.validation import validate
from grpo_pipeline.tasks.molecules.graphs.components import Components
from grpo_pipeline.tasks.molecules.graphs.decoding import decode
from grpo_pipeline.tasks.molecules.graphs.graph_prompts import GraphPrompts
from grpo_pipeline.tasks.molecules.graphs.property_scales import PropertyScales
from grpo_pipeline.tasks.molecules.graphs.vocabulary import Vocabulary
from grpo_pipeline.tasks.molecules.molecule_data import MoleculeData
from grpo_pipeline.tasks.molecules.parameter_groups import parameter_groups
from grpo_pipeline.tasks.molecules.params import GraphPromptParams, SamplingParams
from grpo_pipeline.tasks.molecules.rewards.params import MoleculeReward
from grpo_pipeline.tasks.molecules.rewards.reward import gather_rewards, submit_rewards


@dataclass(frozen=True)
class MoleculeTask(BaseTask):
    """The molecule task, in which a sample is a trajectory (L = steps that an update scores).

    Attributes:
        limits: distributions of the classes after T steps of noise.
        nodes: n, the width to which every graph is padded.
        known: canonical SMILES of the training split.
        diffusion: the noise as a module, on the CPU.
        pool: measures the rewards; its processes end with the last holder of the task.
        start: weights that every policy begins with; None for fresh ones.
        cache: the start's graphs for held-out prompts.
    """

    prompt: GraphPromptParams
    noise: NoiseParams
    denoiser: DenoiserParams
    trajectory: TrajectoryParams
    rewards: MoleculeReward
    supervised: X0LossParams
    sampling: SamplingParams
    device: torch.device
    vocabulary: Vocabulary
    nodes: int
    limits: Components[Tensor] = field(repr=False)
    known: frozenset[str] = field(repr=False)
    diffusion: GraphNoise = field(repr=False)
    scales: PropertyScales = field(repr=False)
    pool: RewardPool = field(repr=False)
    start: ModelWeights | None = field(default=None, repr=False)
    # Each copy has its own: see Cache.
    cache: Cache = field(init=False, default_factory=Cache, repr=False, compare=False)
    name: str = "molecules"
    components: ClassVar[tuple[str, ...]] = ("embeddings", "layers", "heads")
    section_fields: ClassVar[Mapping[str, str]] = {"reward": "rewards"}

    @property
    def repeats_prompts(self) -> bool:
        """State that a row is no fixed prompt: the same size occurs again and again, with other graphs."""
        return False

    @property
    def validated_by(self) -> str:
        """The share of valid, unique and novel molecules, the metric of the test split; rewards may differ between arms."""
        return "molecule/vun"

    @property
    def shown_temperature(self) -> float:
        """Temperature of validation and evaluation."""
        return 1.0

    def check_algorithm(self, algorithm: AlgorithmParams) -> None:
        """Refuse a value baseline, random graphs, replay, and options that the estimator does not allow."""
        super().check_algorithm(algorithm)
        check_steps(self.noise, self.trajectory)
        check_algorithm(algorithm, self.trajectory)

    def build_policy(self, seed: int) -> GraphPolicy:
        """Build a policy with the weights of ``start``, else fresh ones; the global random state stays unchanged."""
        policy = build_policy(
            self.limits,
            self.noise,
            self.denoiser,
            conditions=len(self.prompt.conditions),
            seed=seed,
        )
        if self.start is not None:
            policy.load_state_dict(dict(self.start.tensors))
        return policy.to(self.device)

    def parameter_groups(self, policy: GraphPolicy) -> dict[str, list[nn.Parameter]]:
        """Return the trainable parameters of embeddings, layers and heads."""
        return parameter_groups(policy)

    def rows(self, data: MoleculeData, split: str) -> np.ndarray:
        """Return the row numbers of a split."""
        return data.examples.rows(split)

    def make_batch(
        self, data: MoleculeData, rows: np.ndarray, *, generator: Generator | None = None
    ) -> MoleculeBatch:
        """Build the batch of these rows; a generator draws the times and the noise of training."""
        return make_batch(
            data,
            rows,
            noise=self.diffusion,
            nodes=self.nodes,
            device=self.device,
            generator=generator,
        )

    def replicate(self, batch: MoleculeBatch, group_size: int) -> MoleculeBatch:
        """Return the batch with row numbers as [P, G]; molecules stay per prompt."""
        return replace(batch, rows=replicate(batch.rows, group_size))

    def encode(self, policy: GraphPolicy, batch: MoleculeBatch) -> GraphPrompts:
        """Return the prompts: there is nothing to compute once, because the network reads another graph at every step."""
        return batch.prompts

    def draw(
        self,
        policy: GraphPolicy,
        prompts: GraphPrompts,
        group_size: int,
        *,
        temperature: float,
        generator: Generator,
    ) -> Trajectories:
        """Draw G whole trajectories for each prompt, T decisions each (no grad)."""
        return sample_trajectories(
            policy,
            prompts,
            group_size,
            params=self.trajectory,
            temperature=temperature,
            generator=generator,
        )

    @torch.no_grad()
    def sample(
        self,
        policy: GraphPolicy,
        context: GraphPrompts,
        group_size: int,
        *,
        temperature: float,
        proposal: Proposal,
        generator: Generator,
    ) -> Trajectories:
        """Draw G trajectories for each prompt, and the steps that updates score; ``none`` gives trajectories without a step.

        With the eager estimator the log-probabilities are those of the last graph given each of these steps.

        Raises:
            ValueError: for another proposal.
        """
        if proposal == "none":
            return nothing_sampled(context, group_size)
        if proposal != "policy":
            raise ValueError(
                f"proposal must be policy or none for the molecule task, got {proposal}; a denoiser draws its own graphs"
            )
        drawn = self.draw(policy, context, group_size, temperature=temperature, generator=generator)
        if self.trajectory.steps_per_update is not None:
            drawn = choose_decisions(drawn, self.trajectory.steps_per_update, generator=generator)
        if self.trajectory.estimator == "step":
            return drawn
        return rescored(policy, drawn, params=self.trajectory, temperature=temperature)

    def molecules(self, rollouts: Rollouts) -> PerPrompt:
        """Decode the molecules: for each prompt a tuple of G; empty without samples."""
        prompts, group_size, decisions = rollouts.actions.shape
        if not decisions:
            return PerPrompt()
        decoded = decode(graphs_at(_as_trajectories(rollouts), 0).to("cpu"), self.vocabulary)
        return PerPrompt(
            tuple(decoded[p * group_size : (p + 1) * group_size]) for p in range(prompts)
        )

    def decode(
        self, policy: GraphPolicy, context: GraphPrompts, rollouts: Rollouts, batch: MoleculeBatch
    ) -> Outcomes:
        """Decode the molecules, and begin to measure their rewards, which ``reward`` waits for."""
        molecules = self.molecules(rollouts)
        if not molecules:
            return Outcomes(molecules, PerPrompt())
        pending = submit_rewards(
            self.rewards, self.pool, molecules=molecules, known=self.known, references=batch.targets
        )
        return Outcomes(
            molecules, PerPrompt(RewardShare(pending, place) for place in range(len(molecules)))
        )

    def reward(
        self, batch: MoleculeBatch, rollouts: Rollouts, outcomes: Outcomes
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Wait for the rewards of the molecules; NaN without samples, or if a component failed under the rule ``exclude``.

        Raises:
            RewardFailedError: if a component failed under the rule ``stop``, or a weighted component for every valid molecule of
                the batch.
            RewardPoolError: if a process cannot be started.
        """
        parts = gather_rewards(self.rewards, outcomes, shape=rollouts.actions.shape[:2])
        return {name: part.to(self.device) for name, part in parts.items()}, self.rewards.weights

    def score(
        self, policy: GraphPolicy, context: GraphPrompts, rollouts: Rollouts, *, temperature: float
    ) -> Scores:
        """Compute log-probabilities of these steps, and the mean entropy of a step."""
        return self._score(policy, rollouts, temperature=temperature, reference=None)

    def score_with_kl(
        self,
        policy: GraphPolicy,
        context: GraphPrompts,
        rollouts: Rollouts,
        *,
        reference: GraphPolicy,
        temperature: float,
    ) -> Scores:
        """Score the steps, with the exact KL to the reference of every decision, given the graphs of the draw."""
        return self._score(policy, rollouts, temperature=temperature, reference=reference)

    def _score(
        self,
        policy: GraphPolicy,
        rollouts: Rollouts,
        *,
        temperature: float,
        reference: GraphPolicy | None,
    ) -> Scores:
        steps = score_steps(
            policy,
            _as_trajectories(rollouts),
            params=self.trajectory,
            temperature=temperature,
            reference=reference,
        )
        return Scores(
            logprobs=steps.logprobs,
            entropy=steps.entropy.mean(dim=(1, 2)),
            kl=steps.kl,
            entropies=steps.entropy,
        )

    def supervised_counts(self, batch: MoleculeBatch) -> Tensor:
        """Count the atoms, charges and pairs of the molecules, float64 [3]."""
        return x0_counts(batch.prompts)

    def supervised_loss(
        self,
        policy: GraphPolicy,
        context: GraphPrompts,
        batch: MoleculeBatch,
        outcomes: Outcomes | None,
        shares: Tensor | None = None,
    ) -> Tensor:
        """Compute the cross-entropy of x0, at temperature 1, from the noise of the batch."""
        own = x0_counts(batch.prompts)
        # Denominators of the whole step: the counts of this micro-batch, divided by its share of the step.
        counts = (
            own
            if shares is None
            else torch.where(
                shares > 0, own / shares.clamp(min=torch.finfo(shares.dtype).tiny), 1.0
            )
        )
        parts = []
        # Prompts of similar size, each a share of the cross-entropy.
        for group in size_groups(batch.prompts):
            prompts, clean = cut_prompts(batch.prompts, group), cut_entries(batch.clean, group)
            noisy, times = cut_entries(batch.noisy, group), batch.times[group.rows]
            logits = policy.x0_logits(noisy, prompts, times)
            parts.append(x0_loss(logits, clean, prompts.masks, self.supervised, counts=counts))
        return torch.stack(parts).sum()

    # How it is judged and shown: functions of ``evaluation``, whose first argument is the task.
    evaluate, validate, audit = evaluate, validate, audit.audit
    tabulate, showcase, training_frame = tabulate, showcase, training_frame

    @property
    def audit_plan(self) -> AuditPlan:
        """Plan the policies of a reward audit, and the metrics beside the reward."""
        return audit.audit_plan(self.rewards)

    def describe(self, policy: GraphPolicy) -> dict[str, Any]:
        """Describe prompts, noise, network, draw and vocabulary, from which the policy can be built again."""
        sections = {
            name: getattr(self, name)
            for name in ("prompt", "noise", "denoiser", "trajectory", "sampling")
        }
        dumped = {name: section.model_dump(mode="json") for name, section in sections.items()}
        return {
            "task": self.name,
            **dumped,
            "nodes": self.nodes,
            "vocabulary": self.vocabulary.to_json(),
            "scales": self.scales.to_json(),
        }

    def fingerprint(self, data: MoleculeData, *, draws: bool = True) -> dict[str, Any]:
        """Describe model, objective, initial weights and data as JSON-able values: what a checkpoint and its run must agree on.

        Left out: what only says how it is executed. Where no graphs are drawn, neither their rewards nor how they are drawn
        decide anything.
        """
        shared = {
            "prompt": decisive(self.prompt),
            "noise": decisive(self.noise),
            "denoiser": decisive(self.denoiser),
            "supervised_loss": decisive(self.supervised),
            "examples": data.examples.digest,
            "start": None if self.start is None else digest_of_tensors(self.start.tensors),
        }
        if not draws:
            return shared
        return shared | {
            "trajectory": decisive(self.trajectory),
            "reward": decisive(self.rewards),
            "reward_pool": {"failure": self.pool.failure},
            "reward_functions": {
                name: measure.digest for name, measure in self.rewards.measures.items()
            },
            "sampling": decisive(self.sampling),
        }


def _as_trajectories(rollouts: Rollouts) -> Trajectories:
    return cast(Trajectories, rollouts)
