"""The interface of a task: with it one loop, one evaluation and one report serve all tasks.

A task inherits ``BaseTask``, has a ``name`` and a ``device``, and writes eight methods: ``build_policy``, ``rows``,
``make_batch``, ``sample``, ``score``, ``reward``, ``supervised_loss``, ``evaluate``. Everything else has a default.

Axes: P prompts, G samples per prompt, L decisions, V choices. ``Batch``, ``Context`` and ``Outcomes`` are the task's own
frozen dataclasses; the loop passes them on and never looks inside.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, Self, runtime_checkable

import numpy as np
import pandas as pd
import torch
from torch import Generator, Tensor, nn

from grpo_pipeline.core.groups import map_tensors, replicate_tree
from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.storage.weights import ModelWeights
from grpo_pipeline.core.training.micro_batches import count_prompts
from grpo_pipeline.core.types import ReferenceScores, Rollouts, Scores
from grpo_pipeline.tasks import (
    sample_rewards,
    sample_table,
    start_audit,
    task_fields,
    task_fingerprint,
)
from grpo_pipeline.tasks.audit_plan import AuditPlan
from grpo_pipeline.tasks.familiarity import Familiarity

Proposal = Literal["policy", "uniform", "none", "oracle"]


class Task(Protocol):
    """One task: its model, its samples, its rewards. Methods without "no grad" keep the graph."""

    @property
    def name(self) -> str:
        """Prefix of the task's catalogue names and parameters."""
        ...

    @property
    def device(self) -> torch.device:
        """Where batches lie and the policy computes."""
        ...

    @property
    def repeats_prompts(self) -> bool:
        """Whether a row is the same prompt in every batch, so that stored actions keep their meaning."""
        ...

    @property
    def validated_by(self) -> str:
        """The value of ``validate`` by which the best weights of a training, and the best of several models, are chosen.

        Higher is better. It may not depend on what arms can differ in, so that their values can be compared.
        """
        ...

    @property
    def components(self) -> tuple[str, ...]:
        """All names that ``parameter_groups`` can have, whatever model is built: those that a learning rate may be for."""
        ...

    def check_algorithm(self, algorithm: AlgorithmParams) -> None:
        """Raise ValueError where an arm asks for what the task does not have; called before anything is built."""
        ...

    def check_data(self, data: Any) -> None:
        """Raise where the task cannot work on these data; called before the first stage is trained."""
        ...

    def with_sections(self, sections: Mapping[str, Any], *, path: str) -> Self:
        """Return the task of an arm with sections of parameters of its own; ``path`` is where they stand, for errors.

        Raises:
            ValueError: if a section cannot be an arm's own, or its values are not right.
        """
        ...

    def begin_with(self, start: ModelWeights) -> Any:
        """Return the task whose policies begin with these weights; everything else is the same.

        Of a task that ``open_stage`` returned, it is the task whose stage that is.
        """
        ...

    def open_stage(self, stage: str) -> Any:
        """Return the task that the first stage before the arms trains; by default this one."""
        ...

    def build_policy(self, seed: int) -> nn.Module:
        """Return a freshly initialised policy; the same seed gives the same weights."""
        ...

    def parameter_groups(self, policy: Any) -> dict[str, list[nn.Parameter]]:
        """Return every trainable parameter exactly once, by component; the keys name learning rates and gradient norms."""
        ...

    def rows(self, data: Any, split: str) -> np.ndarray:
        """Return the row numbers of a split, int64 [n]."""
        ...

    def make_batch(self, data: Any, rows: np.ndarray, *, generator: Generator | None = None) -> Any:
        """Return the batch of these rows on the task's device; holds nothing that only evaluation may see.

        With a generator (on the CPU) it is a batch to train on: augmented, with prompt dropout, where the task has them.
        It may be called from several threads at a time, and depends on its arguments alone.
        """
        ...

    def replicate(self, batch: Any, group_size: int) -> Any:
        """Return the batch with its targets as [P, G, ...] views; what the encoder reads stays per prompt."""
        ...

    def encode(self, policy: Any, batch: Any) -> Any:
        """Run the costly part, once per prompt, never per sample. A context may not be None: it is cut, detached and joined."""
        ...

    def detach(self, context: Any) -> Any:
        """Return the context cut off from the graph: what later update epochs reuse."""
        ...

    def sample(
        self,
        policy: Any,
        context: Any,
        group_size: int,
        *,
        temperature: float,
        proposal: Proposal,
        generator: Generator,
    ) -> Rollouts:
        """Draw G samples per prompt and keep their log-probabilities (no grad).

        ``policy`` samples from the policy, ``uniform`` from all that is allowed, ``none`` are G empty samples (L = 0), and
        ``oracle`` knows the truth, which the batch holds only after ``with_oracle``.
        """
        ...

    def decode(self, policy: Any, context: Any, rollouts: Rollouts, batch: Any) -> Any:
        """Return what the samples lead to: the supervised loss and the rewards both read it, so it is computed once."""
        ...

    def reward(
        self, batch: Any, rollouts: Rollouts, outcomes: Any
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return the named reward components, each [P, G] and detached, and their weights; NaN where a sample was not scored.

        The names and weights are the same at every call. Samples of an arm that draws none (L = 0) are given, too.
        """
        ...

    def subset_rewards(
        self, policy: Any, context: Any, rollouts: Rollouts, batch: Any, *, kept: Tensor
    ) -> Tensor:
        """Return the total rewards that parts of each sample would have earned, float64 [P, G, M] (no grad).

        Part m has the decisions l with ``kept`` [M, L], bool, and no others; it may be empty. The batch is replicated to G. Only
        a task that can say this has credit per decision (``advantage.credit``); all parts are measured in one call.
        """
        ...

    def score(self, policy: Any, context: Any, rollouts: Rollouts, *, temperature: float) -> Scores:
        """Return log-probabilities of exactly these actions, the analytic entropy, the distribution and the values."""
        ...

    def prompt_weights(self, batch: Any) -> Tensor | None:
        """Return how much each prompt counts in the policy loss, [P], or None for equal weights.

        Applied to the advantages after their normalisation: a factor on the rewards of a group would cancel there.
        """
        ...

    def with_reference(self, data: Any, reference: Any) -> Any:
        """Return the data with what can be computed once about a frozen reference, or unchanged."""
        ...

    def with_oracle(self, data: Any) -> Any:
        """Return the data with the truth that ``proposal: oracle`` draws from: its batches hold it, those of ``data`` do not.

        Raises:
            ValueError: if the task has no oracle, or the data do not know the truth.
        """
        ...

    def score_reference(
        self, reference: Any, batch: Any, rollouts: Rollouts, *, temperature: float
    ) -> ReferenceScores:
        """Return what the reference policy says about exactly these actions and, where V is small, all choices (no grad).

        The batch is as ``make_batch`` returned it, without the group's axis.
        """
        ...

    def supervised_counts(self, batch: Any) -> Tensor:
        """Return what each part of the supervised loss is a mean over in this batch (prompts, say), float64 [T]."""
        ...

    def supervised_loss(
        self, policy: Any, context: Any, batch: Any, outcomes: Any, shares: Tensor | None = None
    ) -> Tensor:
        """Return the supervised loss, a scalar.

        Of a micro-batch each part is multiplied by its share [T] of the step's counts, so that the losses of all micro-batches
        add up to that of the batch. Batches, contexts and outcomes are cut into micro-batches along the first axis of every
        tensor they hold, which must be the prompts (``core.training.micro_batches``).
        """
        ...

    def tabulate(self, data: Any, batch: Any, rollouts: Rollouts) -> pd.DataFrame:
        """Return one row per sample (row n = p*G + g) that tells a person what was sampled."""
        ...

    def evaluate(
        self, policy: Any, data: Any, rows: np.ndarray, *, seed: int, n_samples: int
    ) -> pd.DataFrame:
        """Return one row per example and rule; metrics and intervals are computed from rows.

        The rule ``policy`` is the trained policy. ``start`` is ``build_policy(seed)``, which training began with, drawn with the
        same noise, under whatever else the arm has learned: where there are such rows, reports say what was learned.
        """
        ...

    def validate(
        self, policy: Any, data: Any, rows: np.ndarray, *, seed: int, n_samples: int
    ) -> dict[str, float]:
        """Return a few cheap numbers on held-out rows to watch while training."""
        ...

    def showcase(
        self, policy: Any, data: Any, rows: np.ndarray, *, seed: int
    ) -> Mapping[str, np.ndarray]:
        """Return arrays of a few examples for the report."""
        ...

    def training_frame(
        self, policy: Any, data: Any, rows: np.ndarray, *, seed: int
    ) -> Mapping[str, Tensor]:
        """Return how a few examples look to the policy now, on the CPU: one frame of a film of the training (no grad).

        Called a few times in a training, with the same rows and seed; the names and shapes are the same each time. Whatever is
        drawn has generators of its own. Numbers [m] and texts (``tasks.frames.text_tensor``) of all frames are a table in
        MLflow, and ``TaskSpec.pictures`` draws a picture of each. Nothing: the task shows none.
        """
        ...

    @property
    def audit_plan(self) -> AuditPlan:
        """Which policies a reward audit compares, with their roles, the weights of the reward's components, and the metrics.

        It is asked before any reward exists: the weights are those of the parameters, of every part that ``reward`` may return.
        """
        ...

    def audit(
        self, policy: Any, data: Any, rows: np.ndarray, *, seed: int, n_samples: int
    ) -> pd.DataFrame:
        """Score the policies of the plan, the start being ``policy``: one row per example, policy and sample (no grad).

        Policies that sample have ``n_samples`` samples of each example, the others one. Columns: ``AuditPlan``.
        """
        ...

    def calibrate(self, policy: Any, data: Any, rows: np.ndarray, *, seed: int) -> dict[str, Any]:
        """Return how scores become frequencies, fitted on these rows, as JSON-able values; why, where nothing can be fitted."""
        ...

    def describe(self, policy: Any) -> dict[str, Any]:
        """Return what is needed to build this policy again, as JSON-able values."""
        ...

    def fingerprint(self, data: Any, *, draws: bool = True) -> dict[str, Any]:
        """Return what a checkpoint must agree on to go on with: model, objective and data, by section, as JSON-able values.

        Of an algorithm that draws no samples (``draws`` is False) it is what the supervised loss depends on: no rewards.
        """
        ...


class BaseTask(ABC):
    """A task with a default for everything that is not its very own; see ``Task`` for what each method promises."""

    name: str
    device: torch.device

    @abstractmethod
    def build_policy(self, seed: int) -> Any:
        """Return a freshly initialised policy."""

    @abstractmethod
    def rows(self, data: Any, split: str) -> np.ndarray:
        """Return the row numbers of a split."""

    @abstractmethod
    def make_batch(self, data: Any, rows: np.ndarray, *, generator: Generator | None = None) -> Any:
        """Return the batch of these rows."""

    @abstractmethod
    def sample(
        self,
        policy: Any,
        context: Any,
        group_size: int,
        *,
        temperature: float,
        proposal: Proposal,
        generator: Generator,
    ) -> Rollouts:
        """Draw G samples per prompt."""

    @abstractmethod
    def score(self, policy: Any, context: Any, rollouts: Rollouts, *, temperature: float) -> Scores:
        """Score exactly these samples."""

    @abstractmethod
    def reward(
        self, batch: Any, rollouts: Rollouts, outcomes: Any
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return the reward's components and their weights."""

    @abstractmethod
    def supervised_loss(
        self, policy: Any, context: Any, batch: Any, outcomes: Any, shares: Tensor | None = None
    ) -> Tensor:
        """Return the supervised loss."""

    @abstractmethod
    def evaluate(
        self, policy: Any, data: Any, rows: np.ndarray, *, seed: int, n_samples: int
    ) -> pd.DataFrame:
        """Return one row per example and rule."""

    @property
    def repeats_prompts(self) -> bool:
        """A row is the same prompt in every batch."""
        return True

    @property
    def validated_by(self) -> str:
        """The mean reward."""
        return "reward/mean"

    @property
    def components(self) -> tuple[str, ...]:
        """No component beside those that ``parameter_groups`` returns."""
        return ()

    @property
    def reward_weights(self) -> Mapping[str, float]:
        """Weights of the reward's components, as the default audit must know them before any reward exists; none by default."""
        return {}

    def check_algorithm(self, algorithm: AlgorithmParams) -> None:
        """Accept every algorithm but credit per decision without ``subset_rewards``; ``sample`` refuses unknown proposals."""
        if algorithm.credits_decisions and type(self).subset_rewards is BaseTask.subset_rewards:
            raise ValueError(
                f"advantage.credit must be set for the task {self.name}, got {algorithm.advantage.credit}; it rewards whole "
                f"samples: write {type(self).__name__}.subset_rewards, the rewards of parts of a sample (docs/adding_a_task.md)"
            )

    def parameter_groups(self, policy: Any) -> dict[str, list[nn.Parameter]]:
        """Return all trainable parameters as one group, ``policy``."""
        return {
            "policy": [parameter for parameter in policy.parameters() if parameter.requires_grad]
        }

    def replicate(self, batch: Any, group_size: int) -> Any:
        """Return the batch with every tensor as a view [P, G, ...]."""
        return replicate_tree(batch, group_size)

    def encode(self, policy: Any, batch: Any) -> Any:
        """Return the batch: nothing is computed per prompt alone."""
        return batch

    def detach(self, context: Any) -> Any:
        """Return the context with every tensor cut off from the graph."""
        return map_tensors(context, Tensor.detach)

    def decode(self, policy: Any, context: Any, rollouts: Rollouts, batch: Any) -> Any:
        """Return nothing, which is not None: samples are rewarded as they are."""
        return ()

    def subset_rewards(
        self, policy: Any, context: Any, rollouts: Rollouts, batch: Any, *, kept: Tensor
    ) -> Tensor:
        """Refuse, as ``check_algorithm`` has done before: the task rewards whole samples alone."""
        raise NotImplementedError(f"{type(self).__name__} has no subset_rewards")

    def prompt_weights(self, batch: Any) -> Tensor | None:
        """Return None: every prompt counts the same."""
        return None

    def with_reference(self, data: Any, reference: Any) -> Any:
        """Return the data as they are: a reference is asked when it is needed."""
        return data

    def with_oracle(self, data: Any) -> Any:
        """Refuse: no sample can be drawn from the truth."""
        raise ValueError(
            f"proposal must be policy or none for the task {self.name}, got oracle; use name = supervised with none"
        )

    @torch.no_grad()
    def score_reference(
        self, reference: Any, batch: Any, rollouts: Rollouts, *, temperature: float
    ) -> ReferenceScores:
        """Return what ``score`` says of the reference policy."""
        scores = self.score(
            reference, self.encode(reference, batch), rollouts, temperature=temperature
        )
        return ReferenceScores(logprobs=scores.logprobs, log_probs_full=scores.log_probs_full)

    def supervised_counts(self, batch: Any) -> Tensor:
        """Return the number of prompts: the supervised loss is a mean over them, float64 [1]."""
        return torch.as_tensor([count_prompts(batch)], dtype=torch.float64, device=self.device)

    def tabulate(self, data: Any, batch: Any, rollouts: Rollouts) -> pd.DataFrame:
        """Return row number, actions and log-probability of every sample."""
        return sample_table.tabulate_samples(batch, rollouts)

    def validate(
        self, policy: Any, data: Any, rows: np.ndarray, *, seed: int, n_samples: int
    ) -> dict[str, float]:
        """Return the mean reward of sampled groups, and that of each part."""
        return sample_rewards.mean_reward(self, policy, data, rows, seed=seed, n_samples=n_samples)

    def showcase(
        self, policy: Any, data: Any, rows: np.ndarray, *, seed: int
    ) -> Mapping[str, np.ndarray]:
        """Return nothing to look at."""
        return {}

    def training_frame(
        self, policy: Any, data: Any, rows: np.ndarray, *, seed: int
    ) -> Mapping[str, Tensor]:
        """Return nothing: no frames of a training are shown."""
        return {}

    @property
    def audit_plan(self) -> AuditPlan:
        """Compare the start with samples that know nothing of their example."""
        return start_audit.plan_audit(self.reward_weights)

    def audit(
        self, policy: Any, data: Any, rows: np.ndarray, *, seed: int, n_samples: int
    ) -> pd.DataFrame:
        """Score the start's samples, one sample for all examples, and samples of the example beside."""
        return start_audit.audit_start(self, policy, data, rows, seed=seed, n_samples=n_samples)

    def calibrate(self, policy: Any, data: Any, rows: np.ndarray, *, seed: int) -> dict[str, Any]:
        """Return why there is nothing to fit."""
        return {"method": "none", "reason": "the task scores no probability of an event"}

    def describe(self, policy: Any) -> dict[str, Any]:
        """Return the sections of the parameters that the task holds."""
        sections = {
            name: section.model_dump(mode="json")
            for name, section in task_fields.sections_of(self).items()
        }
        return {"task": self.name} | sections

    def fingerprint(self, data: Any, *, draws: bool = True) -> dict[str, Any]:
        """Return the sections of the parameters, the start and the content of the data."""
        return task_fingerprint.fingerprint_of(self, data, draws=draws)

    def check_data(self, data: Any) -> None:
        """Accept all data."""
        return None

    def with_sections(self, sections: Mapping[str, Any], *, path: str) -> Self:
        """Return the task with other sections of parameters in the fields of the same names."""
        changed: Self = task_fields.changed_sections(self, sections, path=path)
        return changed

    def open_stage(self, stage: str) -> Any:
        """Return this task."""
        return self

    def begin_with(self, start: ModelWeights) -> Any:
        """Return the task with these weights as ``start``, which ``build_policy`` loads."""
        return task_fields.begun_with(self, start)


@runtime_checkable
class HasFolders(Task, Protocol):
    """A task whose exported models are written for another library, too."""

    def model_folders(self, policy: Any) -> Mapping[str, Callable[[Path], None]]:
        """Return folder name -> function that writes it, for a trained policy; they lie beside the weights."""
        ...


@runtime_checkable
class ShowsRewards(Task, Protocol):
    """A task whose held-out samples are stored, for a few examples, with the rewards and advantages that they would have."""

    @property
    def shown_temperature(self) -> float:
        """Temperature at which they are drawn: that of the evaluation."""
        ...


@runtime_checkable
class KnowsInputs(Task, Protocol):
    """A task whose exported models say what their training inputs looked like, so that a prediction can doubt.

    A task without it says nothing, and its models are exported as they are.
    """

    def describe_inputs(self, policy: Any, data: Any) -> Familiarity:
        """Return how far inputs are from the training split, with a limit fitted to the validation split (no grad)."""
        ...


class ScoresKl(Task, Protocol):
    """A task that computes the exact KL of every decision while it scores: the distributions are too many to be kept."""

    def score_with_kl(
        self, policy: Any, context: Any, rollouts: Rollouts, *, reference: Any, temperature: float
    ) -> Scores:
        """Return what ``score`` returns, and in ``kl`` the exact KL(policy || reference) of each decision, [P, G, L].

        The reference gets no gradient; it has no part in the ratio, which is taken to the policy that drew.
        """
        ...
