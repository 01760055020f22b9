"""Parameters of an arm's objective: the terms of its loss, and the other parts that it has. Values live in YAML."""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from grpo_pipeline.core.objective.advantage import AdvantageParams
from grpo_pipeline.core.objective.correction import Correction
from grpo_pipeline.core.objective.dynamic_sampling import DynamicSamplingParams
from grpo_pipeline.core.objective.entropy import EntropyBonus
from grpo_pipeline.core.objective.kl import KlLoss
from grpo_pipeline.core.objective.kl_in_reward import KlInReward
from grpo_pipeline.core.objective.part import Part
from grpo_pipeline.core.objective.policy import PolicyLoss
from grpo_pipeline.core.objective.replay import ReplayParams
from grpo_pipeline.core.objective.supervised import SupervisedLoss
from grpo_pipeline.core.objective.value import ValueLoss
from grpo_pipeline.core.schedules import Schedule

ProposalName = Literal["policy", "uniform", "none", "oracle"]


class Losses(Part):
    """The terms of an arm's loss, weighed and added up (``<task>.<arm>.algorithm.losses``).

    Attributes:
        supervised: the task's own loss.
        policy: teaches the policy by its advantages; an arm without it is a control.
        kl: KL divergence from a reference.
        value: teaches the value of a prompt.
        entropy: bonus for entropy.
    """

    supervised: SupervisedLoss | None = None
    policy: PolicyLoss | None = None
    kl: KlLoss | None = None
    value: ValueLoss | None = None
    entropy: EntropyBonus | None = None

    @property
    def weights(self) -> dict[str, Schedule]:
        """The weight of each term, by its name."""
        given = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: part.weight for name, part in given.items() if part}

    @model_validator(mode="after")
    def _check_terms(self) -> Self:
        if self.supervised is None and self.policy is None:
            raise ValueError(
                "losses must hold supervised or policy, got neither; nothing would be learned"
            )
        return self


class AlgorithmParams(Part):
    """Parameters of one arm's objective (``<task>.<arm>.algorithm``).

    Attributes:
        losses: the terms of the loss.
        update_epochs: K, updates with the samples of one batch.
        target_kl: the updates of a batch end before one that would begin at a larger ``kl/rollout``, in nats; null for no end.
        advantage: how rewards become advantages.
        kl_in_reward: a KL divergence from the initial policy that lowers the reward of a sample; null for none.
        dynamic_sampling: draws groups whose rewards tie again; null keeps them.
        replay: trains again on stored groups; null for no replay.
        correction: weighs samples that another engine drew (docs/algorithms.md); null for none.
        proposal: where samples come from; null is ``uniform`` for the control and ``policy`` for every other arm.
    """

    losses: Losses
    update_epochs: int = Field(default=1, ge=1)
    # Left out of dumps where there is none, and so of digests.
    target_kl: float | None = Field(default=None, gt=0, exclude_if=lambda target: target is None)
    advantage: AdvantageParams
    kl_in_reward: KlInReward | None = None
    dynamic_sampling: DynamicSamplingParams | None = None
    replay: ReplayParams | None = None
    correction: Correction | None = Field(default=None, exclude_if=lambda part: part is None)
    proposal: ProposalName = "policy"

    @model_validator(mode="before")
    @classmethod
    def _fill_proposal(cls, values: Any) -> Any:
        """Put the arm's usual proposal in the place of null: the control draws as many samples, uniformly."""
        if not isinstance(values, Mapping) or values.get("proposal") is not None:
            return values
        losses = values.get("losses")
        learns = not isinstance(losses, Mapping) or losses.get("policy") is not None
        return {**values, "proposal": "policy" if learns else "uniform"}

    @property
    def name(self) -> str:
        """The kind of its policy-gradient term; ``supervised`` is the control, without one."""
        return "supervised" if self.losses.policy is None else self.losses.policy.kind

    @property
    def credits_decisions(self) -> bool:
        """Whether the policy learns from what each decision has contributed, and not from its sample's reward alone."""
        return self.advantage.credit != "set" and self.losses.policy is not None

    @property
    def paid_kl(self) -> KlLoss | KlInReward | None:
        """The KL to a reference policy, wherever it is paid."""
        return self.losses.kl or self.kl_in_reward

    @property
    def pays_exact_kl(self) -> bool:
        """Whether the loss holds the exact KL to the reference."""
        return self.losses.kl is not None and self.losses.kl.estimator == "exact"

    @property
    def parts(self) -> dict[str, Part]:
        """The parts of the arm by their keys, those of the loss first."""
        sections = {f"losses.{name}": getattr(self.losses, name) for name in Losses.model_fields}
        sections |= {name: getattr(self, name) for name in AlgorithmParams.model_fields}
        return {
            name: part
            for name, part in sections.items()
            if isinstance(part, Part) and part is not self.losses
        }

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if self.target_kl is not None and self.update_epochs == 1:
            raise ValueError(
                f"target_kl must be null with update_epochs = 1, got {self.target_kl}; the policy has not moved before a first "
                "update: use more update epochs"
            )
        if self.losses.policy is None:
            self._check_control()
            return self
        if self.proposal != "policy":
            raise ValueError(
                f"proposal must be policy with losses.policy, got {self.proposal}; a policy learns from its own samples: leave "
                "losses.policy out"
            )
        for part in self.parts.values():
            part.check_arm(self)
        return self

    def _check_control(self) -> None:
        if given := [name for name, part in self.parts.items() if part.of_a_policy]:
            raise ValueError(
                f"{' and '.join(given)} must be null without losses.policy, got a value; the control trains no policy"
            )
        if self.update_epochs > 1:
            raise ValueError(
                f"update_epochs must be 1 without losses.policy, got {self.update_epochs}; the "
                "supervised loss counts once a batch"
            )
