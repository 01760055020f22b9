"""Define the interface of a task, which the training loop, the evaluation and the report rely on.

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

Proposal = Literal["policy", "uniform", "none", "oracle", "engine"]


class Task(Protocol):
    """A task: its model, its samples, its rewards. Methods without "no grad" keep the graph."""

    @property
    def name(self) -> str:
        """Prefix of the task's catalogue names and parameters."""
        ...

    @property
    def device(self) -> torch.device:
        """The device of batches and policy."""
        ...

    @property
    def repeats_prompts(self) -> bool:
        """State whether a row is the same prompt in every batch, so that stored actions keep their meaning."""
        ...

    @property
    def validated_by(self) -> str:
        """The value of ``validate`` that chooses the best weights of a training, and the best of several models.

        Higher is better. It may not depend on settings in which arms differ, so that their values can be compared.
        """
        ...

    @property
    def components(self) -> tuple[str, ...]:
        """List all components that ``parameter_groups`` can have, for any model: the valid names of learning rates."""
        ...

    def check_algorithm(self, algorithm: AlgorithmParams) -> None:
        """Raise ValueError if an arm asks for an option that the task lacks; called before anything is built."""
        ...

    def check_data(self, data: Any) -> None:
        """Raise if the task cannot use these data; called before the first stage is trained."""
        ...

    def with_sections(self, sections: Mapping[str, Any], *, path: str) -> Self:
        """Give the task an arm's own sections of parameters; ``path`` is their place, for errors.

        Raises:
            ValueError: if a section cannot be an arm's own, or its values are invalid.
        """
        ...

    def begin_with(self, start: ModelWeights) -> Any:
        """Give the task these weights as its initial policy; everything else is the same.

        For a task that ``open_stage`` returned, this leads back to the task that has the stage.
        """
        ...

    def open_stage(self, stage: str) -> Any:
        """Open the task that the first stage before the arms trains; by default this task."""
        ...

    def build_policy(self, seed: int) -> nn.Module:
        """Build a freshly initialised policy; the same seed gives the same weights."""
        ...

    def parameter_groups(self, policy: Any) -> dict[str, list[nn.Parameter]]:
        """Return every trainable parameter exactly once, by component; the keys name learning rates and gradient norms."""
        ...

    def rows(self, data: Any, split: str) -> np.ndarray:
        """Return the row numbers of a split, int64 [n]."""
        ...

    def make_batch(self, data: Any, rows: np.ndarray, *, generator: Generator | None = None) -> Any:
        """Build the batch of these rows on the task's device, without anything that only evaluation may see.

        A generator (on the CPU) makes it a training batch: augmented, with prompt dropout, if the task has them. Several threads
        may call it at a time; the result depends on the arguments alone.
        """
        ...

    def replicate(self, batch: Any, group_size: int) -> Any:
        """Expand the batch's targets to views [P, G, ...]; inputs of the encoder stay per prompt."""
        ...

    def encode(self, policy: Any, batch: Any) -> Any:
        """Run the costly part once per prompt, never per sample. The context may not be None: it is cut, detached and joined."""
        ...

    def detach(self, context: Any) -> Any:
        """Detach the context from the graph, for reuse in later update epochs."""
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

        ``policy`` samples from the policy, ``uniform`` from all allowed choices. ``none`` gives G empty samples (L = 0).
        ``oracle`` draws from the true answer, which the batch holds only after ``with_oracle``.

        A task whose attribute ``engine`` is a name also takes ``engine``: what a policy learns from is then drawn elsewhere, with
        log-probabilities of the engine. The task's ``check_algorithm`` refuses an arm without ``algorithm.correction``.
        """
        ...

    def decode(self, policy: Any, context: Any, rollouts: Rollouts, batch: Any) -> Any:
        """Compute the outcomes of the samples once, for the supervised loss and for the rewards."""
        ...

    def reward(
        self, batch: Any, rollouts: Rollouts, outcomes: Any
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Compute the reward components, each [P, G] and detached, and their weights; NaN where a sample was not scored.

        The names and weights are the same at every call. Samples of an arm that draws none (L = 0) are given, too.
        """
        ...

    def subset_rewards(
        self, policy: Any, context: Any, rollouts: Rollouts, batch: Any, *, kept: Tensor
    ) -> Tensor:
        """Compute the total rewards of parts of each sample, float64 [P, G, M] (no grad).

        Part m has the decisions l with ``kept`` [M, L], bool, and no others; it may be empty. The batch is replicated to G. Only
        a task that can say this has credit per decision (``advantage.credit``); all parts are measured in one call.
        """
        ...

    def turn_rewards(self, rollouts: Rollouts, batch: Any) -> tuple[Tensor, Tensor]:
        """Compute what samples had been paid when each of their turns began, float64 [P, G, T], and the turns, int64 [P, G, L].

        The first is weighed as it counts in the total. The second is the turn of each decision, -1 where none was taken. Only a
        task whose samples are paid turn by turn can say this; it has credit per turn (``advantage.credit: to_go``).
        """
        ...

    def score(self, policy: Any, context: Any, rollouts: Rollouts, *, temperature: float) -> Scores:
        """Compute the log-probabilities of these actions, the analytic entropy, the distribution and the values."""
        ...

    def prompt_weights(self, batch: Any) -> Tensor | None:
        """Compute the weight of each prompt in the policy loss, [P], or None for equal weights.

        The weights multiply the normalised advantages: a factor on the rewards of a group would cancel in the normalisation.
        """
        ...

    def with_reference(self, data: Any, reference: Any) -> Any:
        """Add to the data the values of a frozen reference that can be computed once; may return them unchanged."""
        ...

    def with_oracle(self, data: Any) -> Any:
        """Add the true answers to the data, from which ``proposal: oracle`` draws; batches of the returned data hold them.

        Raises:
            ValueError: if the task has no oracle, or the data lack the true answers.
        """
        ...

    def score_reference(
        self, reference: Any, batch: Any, rollouts: Rollouts, *, temperature: float
    ) -> ReferenceScores:
        """Score these actions under the reference policy, and all choices where V is small (no grad).

        The batch is as ``make_batch`` returned it, without the group's axis.
        """
        ...

    def supervised_counts(self, batch: Any) -> Tensor:
        """Count the units that each part of the supervised loss averages in this batch (such as prompts), float64 [T]."""
        ...

    def supervised_loss(
        self, policy: Any, context: Any, batch: Any, outcomes: Any, shares: Tensor | None = None
    ) -> Tensor:
        """Compute the supervised loss, a scalar.

        In a micro-batch, each part is multiplied by its share [T] of the step's counts. So the losses of all micro-batches add up
        to the batch's loss. Batches, contexts and outcomes are cut along the first axis of their tensors, which must be the
        prompts (``core.training.micro_batches``).
        """
        ...

    def tabulate(self, data: Any, batch: Any, rollouts: Rollouts) -> pd.DataFrame:
        """Tabulate the samples for people, a row per sample (row n = p*G + g)."""
        ...

    def evaluate(
        self, policy: Any, data: Any, rows: np.ndarray, *, seed: int, n_samples: int
    ) -> pd.DataFrame:
        """Predict held-out examples: a row per example and rule, from which metrics and intervals are computed.

        The rule ``policy`` is the trained policy. ``start`` is the initial policy ``build_policy(seed)``, drawn with the same
        noise, beside the other models that the arm has learned. If there are such rows, reports show the gain over the start.
        """
        ...

    def validate(
        self, policy: Any, data: Any, rows: np.ndarray, *, seed: int, n_samples: int
    ) -> dict[str, float]:
        """Compute a few cheap numbers on held-out rows, to watch training."""
        ...

    def showcase(
        self, policy: Any, data: Any, rows: np.ndarray, *, seed: int
    ) -> Mapping[str, np.ndarray]:
        """Collect arrays of a few examples for the report."""
        ...

    def training_frame(
        self, policy: Any, data: Any, rows: np.ndarray, *, seed: int
    ) -> Mapping[str, Tensor]:
        """Record the policy's present outputs for a few examples, on the CPU: a frame of a film of the training (no grad).

        It is called a few times in a training, with the same rows and seed; names and shapes are the same each time. Random
        numbers come from generators of its own. Numbers [m] and texts (``tasks.frames.text_tensor``) of all frames are a table in
        MLflow. ``TaskSpec.pictures`` draws a picture of each frame. An empty mapping shows nothing.
        """
        ...

    @property
    def audit_plan(self) -> AuditPlan:
        """Plan the reward audit: its policies with their roles, the weights of the reward's components, and the metrics.

        It is asked before any reward exists: the weights are those of the parameters, of every part that ``reward`` may return.
        """
        ...

    def audit(
        self, policy: Any, data: Any, rows: np.ndarray, *, seed: int, n_samples: int
    ) -> pd.DataFrame:
        """Score the policies of the plan, with ``policy`` as the start: a row per example, policy and sample (no grad).

        Random policies have ``n_samples`` samples of each example, deterministic ones a single sample. Columns: ``AuditPlan``.
        """
        ...

    def calibrate(self, policy: Any, data: Any, rows: np.ndarray, *, seed: int) -> dict[str, Any]:
        """Fit on these rows how scores become frequencies, as JSON-able values; or the reason why nothing can be fitted."""
        ...

    def describe(self, policy: Any) -> dict[str, Any]:
        """Describe the policy, as JSON-able values from which it can be built again."""
        ...

    def fingerprint(self, data: Any, *, draws: bool = True) -> dict[str, Any]:
        """Describe model, objective and data by section, as JSON-able values; a resumed checkpoint must have the same values.

        Without samples (``draws`` is False) only the inputs of the supervised loss count: no rewards.
        """
        ...


class BaseTask(ABC):
    """A task with a default for every method that it need not write; ``Task`` defines the methods."""

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
        """Build the batch of these rows."""

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
        """Score these samples."""

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
        """Predict held-out examples: a row per example and rule."""

    @property
    def repeats_prompts(self) -> bool:
        """State that a row is the same prompt in every batch."""
        return True

    @property
    def validated_by(self) -> str:
        """The mean reward."""
        return "reward/mean"

    @property
    def components(self) -> tuple[str, ...]:
        """List no components beside those that ``parameter_groups`` returns."""
        return ()

    @property
    def reward_weights(self) -> Mapping[str, float]:
        """Weights of the reward's components, which the default audit needs before any reward is computed; none by default."""
        return {}

    def check_algorithm(self, algorithm: AlgorithmParams) -> None:
        """Accept every algorithm but credit of what the task does not pay; ``sample`` refuses unknown proposals."""
        credit = algorithm.advantage.credit
        paid = "turn_rewards" if credit == "to_go" else "subset_rewards"
        if algorithm.credits_decisions and getattr(type(self), paid) is getattr(BaseTask, paid):
            what = "turns" if credit == "to_go" else "parts"
            raise ValueError(
                f"advantage.credit must be set for the task {self.name}, got {credit}; it does not reward {what} of a sample: "
                f"write {type(self).__name__}.{paid} (docs/adding_a_task.md)"
            )

    def parameter_groups(self, policy: Any) -> dict[str, list[nn.Parameter]]:
        """Put all trainable parameters into a single group, ``policy``."""
        return {
            "policy": [parameter for parameter in policy.parameters() if parameter.requires_grad]
        }

    def replicate(self, batch: Any, group_size: int) -> Any:
        """Return the batch with every tensor as a view [P, G, ...]."""
        return replicate_tree(batch, group_size)

    def encode(self, policy: Any, batch: Any) -> Any:
        """Return the batch unchanged: nothing is computed per prompt alone."""
        return batch

    def detach(self, context: Any) -> Any:
        """Return the context with every tensor cut off from the graph."""
        return map_tensors(context, Tensor.detach)

    def decode(self, policy: Any, context: Any, rollouts: Rollouts, batch: Any) -> Any:
        """Return an empty outcome, which is not None: samples are rewarded directly."""
        return ()

    def subset_rewards(
        self, policy: Any, context: Any, rollouts: Rollouts, batch: Any, *, kept: Tensor
    ) -> Tensor:
        """Refuse to reward parts of samples, as ``check_algorithm`` did before."""
        raise NotImplementedError(f"{type(self).__name__} has no subset_rewards")

    def turn_rewards(self, rollouts: Rollouts, batch: Any) -> tuple[Tensor, Tensor]:
        """Refuse to reward turns of samples, as ``check_algorithm`` did before."""
        raise NotImplementedError(f"{type(self).__name__} has no turn_rewards")

    @property
    def supervised_reads_rewards(self) -> bool:
        """Return False: the supervised loss reads known targets alone."""
        return False

    def prompt_weights(self, batch: Any) -> Tensor | None:
        """Return None: every prompt counts the same."""
        return None

    def with_reference(self, data: Any, reference: Any) -> Any:
        """Return the data unchanged: a reference is scored when it is needed."""
        return data

    def with_oracle(self, data: Any) -> Any:
        """Refuse an oracle: no sample can be drawn from the true answer."""
        raise ValueError(
            f"proposal must be policy or none for the task {self.name}, got oracle; use name = supervised with none"
        )

    @torch.no_grad()
    def score_reference(
        self, reference: Any, batch: Any, rollouts: Rollouts, *, temperature: float
    ) -> ReferenceScores:
        """Score the reference policy by ``score``."""
        scores = self.score(
            reference, self.encode(reference, batch), rollouts, temperature=temperature
        )
        return ReferenceScores(logprobs=scores.logprobs, log_probs_full=scores.log_probs_full)

    def supervised_counts(self, batch: Any) -> Tensor:
        """Count the prompts, float64 [1]: the supervised loss is a mean over them."""
        return torch.as_tensor([count_prompts(batch)], dtype=torch.float64, device=self.device)

    def tabulate(self, data: Any, batch: Any, rollouts: Rollouts) -> pd.DataFrame:
        """Return row number, actions and log-probability of every sample."""
        return sample_table.tabulate_samples(batch, rollouts)

    def validate(
        self, policy: Any, data: Any, rows: np.ndarray, *, seed: int, n_samples: int
    ) -> dict[str, float]:
        """Compute the mean reward of sampled groups, and of each component."""
        return sample_rewards.mean_reward(self, policy, data, rows, seed=seed, n_samples=n_samples)

    def showcase(
        self, policy: Any, data: Any, rows: np.ndarray, *, seed: int
    ) -> Mapping[str, np.ndarray]:
        """Return no arrays: the report shows no examples."""
        return {}

    def training_frame(
        self, policy: Any, data: Any, rows: np.ndarray, *, seed: int
    ) -> Mapping[str, Tensor]:
        """Return no arrays: no frames of a training are shown."""
        return {}

    @property
    def audit_plan(self) -> AuditPlan:
        """Plan to compare the start with samples that do not depend on their example."""
        return start_audit.plan_audit(self.reward_weights)

    def audit(
        self, policy: Any, data: Any, rows: np.ndarray, *, seed: int, n_samples: int
    ) -> pd.DataFrame:
        """Score the start's samples, the same sample for all examples, and samples drawn for the neighbouring example."""
        return start_audit.audit_start(self, policy, data, rows, seed=seed, n_samples=n_samples)

    def calibrate(self, policy: Any, data: Any, rows: np.ndarray, *, seed: int) -> dict[str, Any]:
        """Return the reason why there is nothing to fit."""
        return {"method": "none", "reason": "the task scores no probability of an event"}

    def describe(self, policy: Any) -> dict[str, Any]:
        """Describe the policy by the sections of the parameters that the task holds."""
        sections = {
            name: section.model_dump(mode="json")
            for name, section in task_fields.sections_of(self).items()
        }
        return {"task": self.name} | sections

    def fingerprint(self, data: Any, *, draws: bool = True) -> dict[str, Any]:
        """Describe the sections of the parameters, the initial weights and the content of the data."""
        return task_fingerprint.fingerprint_of(self, data, draws=draws)

    def check_data(self, data: Any) -> None:
        """Accept all data."""
        return None

    def with_sections(self, sections: Mapping[str, Any], *, path: str) -> Self:
        """Replace sections of parameters in the fields of the same names."""
        changed: Self = task_fields.changed_sections(self, sections, path=path)
        return changed

    def open_stage(self, stage: str) -> Any:
        """Return this task."""
        return self

    def begin_with(self, start: ModelWeights) -> Any:
        """Store these weights in the field ``start``, which ``build_policy`` loads."""
        return task_fields.begun_with(self, start)


@runtime_checkable
class HasFolders(Task, Protocol):
    """A task whose exported models are written for another library, too."""

    def model_folders(self, policy: Any) -> Mapping[str, Callable[[Path], None]]:
        """Map folder name -> function that writes it, for a trained policy; the folders lie beside the weights."""
        ...


@runtime_checkable
class ShowsRewards(Task, Protocol):
    """A task that stores held-out samples of a few examples, with their rewards and advantages."""

    @property
    def shown_temperature(self) -> float:
        """The temperature at which shown samples are drawn: that of the evaluation."""
        ...


@runtime_checkable
class KnowsInputs(Task, Protocol):
    """A task whose exported models describe their training inputs, so that a prediction can warn of unlike inputs.

    Models of other tasks are exported without such a description.
    """

    def describe_inputs(self, policy: Any, data: Any) -> Familiarity:
        """Measure how far inputs lie from the training split, with a limit fitted to the validation split (no grad)."""
        ...


class ScoresKl(Task, Protocol):
    """A task that computes the exact KL of every decision while it scores, because the distributions do not fit in memory."""

    def score_with_kl(
        self, policy: Any, context: Any, rollouts: Rollouts, *, reference: Any, temperature: float
    ) -> Scores:
        """Score the actions, with the exact KL(policy || reference) of each decision in ``kl``, [P, G, L].

        The reference gets no gradient. It has no part in the ratio, whose denominator is the policy that drew the samples.
        """
        ...
