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
        others = ("kl", "value", "entropy")
        if self.policy is None and (given := [name for name in others if getattr(self, name)]):
            raise ValueError(
                f"{' and '.join(given)} must be null without policy, got a value; the control trains no policy"
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

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if self.losses.policy is None:
            self._check_control()
        else:
            self._check_policy()
            self._check_kl()
            self._check_value()
            self._check_correction()
        return self

    @model_validator(mode="after")
    def _check_target_kl(self) -> Self:
        if self.target_kl is not None and self.update_epochs == 1:
            raise ValueError(
                f"target_kl must be null with update_epochs = 1, got {self.target_kl}; the policy has not moved before a first "
                "update: use more update epochs"
            )
        return self

    def _check_control(self) -> None:
        others = ("kl_in_reward", "dynamic_sampling", "replay", "correction")
        if given := [name for name in others if getattr(self, name)]:
            raise ValueError(
                f"{' and '.join(given)} must be null without losses.policy, got a value; the control trains no policy"
            )
        if self.update_epochs > 1:
            raise ValueError(
                f"update_epochs must be 1 without losses.policy, got {self.update_epochs}; the "
                "supervised loss counts once a batch"
            )

    def _check_policy(self) -> None:
        loss = self.losses.policy
        assert loss is not None
        if self.proposal != "policy":
            raise ValueError(
                f"proposal must be policy with losses.policy, got {self.proposal}; a policy learns from its own samples: leave "
                "losses.policy out"
            )
        if loss.kind == "reinforce" and self.update_epochs != 1:
            raise ValueError(
                f"update_epochs must be 1 with losses.policy.kind = reinforce, got {self.update_epochs}; it has no ratio to "
                "correct for a policy that has moved: use grpo"
            )
        if loss.kind == "kl_cov" and self.update_epochs == 1:
            raise ValueError(
                "update_epochs must be above 1 with losses.policy.kind = kl_cov, got 1; its penalty is 0 before the policy has "
                "moved: use more update epochs, or clip_cov"
            )
        if self.credits_decisions and loss.ratio_level != "decision":
            raise ValueError(
                f"advantage.credit must be set with losses.policy.ratio_level = {loss.ratio_level}, got "
                f"{self.advantage.credit}; a whole sample has one ratio there: use ratio_level = decision"
            )
        if self.replay is not None and loss.kind == "reinforce":
            raise ValueError(
                "replay must be null with losses.policy.kind = reinforce, got a value; it has no ratio to correct with: use grpo"
            )

    def _check_kl(self) -> None:
        if self.losses.kl and self.kl_in_reward:
            raise ValueError(
                "one of losses.kl and kl_in_reward must be null, got both; a KL is paid once, to one reference: keep one"
            )
        if self.credits_decisions and self.kl_in_reward:
            raise ValueError(
                f"advantage.credit must be set with kl_in_reward, got {self.advantage.credit}; that KL lowers the reward of "
                "whole samples: use losses.kl"
            )
        if self.losses.kl and self.losses.kl.estimator == "ratio_k3" and self.name == "reinforce":
            raise ValueError(
                "losses.kl.estimator must not be ratio_k3 with losses.policy.kind = reinforce, got ratio_k3; it has no ratio: "
                "use k3"
            )

    def _check_value(self) -> None:
        value = self.losses.value
        if value is None and self.advantage.baseline == "value":
            raise ValueError(
                "losses.value must be given with advantage.baseline = value, got null; an untrained value is noise"
            )
        if self.name == "ppo" and self.advantage.baseline != "value":
            raise ValueError(
                "advantage.baseline must be value with losses.policy.kind = ppo, got group; use grpo for a group baseline"
            )
        if value is not None and value.clip is not None and self.update_epochs == 1:
            raise ValueError(
                f"losses.value.clip must be null with update_epochs = 1, got {value.clip}; the values have not moved when they "
                "are clipped: use more update epochs"
            )

    def _check_correction(self) -> None:
        if self.correction is None:
            return
        if self.replay is not None:
            raise ValueError(
                "replay must be null with correction, got a value; a stored group does not know the engine that drew it: keep one"
            )
        level = "decision" if self.losses.policy is None else self.losses.policy.ratio_level
        if self.correction.level == "decision" and level != "decision":
            raise ValueError(
                f"correction.level must be sequence with losses.policy.ratio_level = {level}, got decision; a whole sample "
                "has one ratio there: use level = sequence"
            )
