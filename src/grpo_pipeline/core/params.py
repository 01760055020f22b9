"""Parameters of the algorithm: what an arm optimises, and how training proceeds. Values live in YAML."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from grpo_pipeline.core.schedules import Schedule


class AlgorithmParams(BaseModel):
    """What one arm optimises (``<task>.<arm>.algorithm``).

    The loss is ``supervised_weight * supervised + policy_weight(step) * policy + kl_weight * KL(policy || reference)
    + value_weight * value - entropy_weight(step) * entropy``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["supervised", "reinforce", "grpo"]
    supervised_weight: float = Field(ge=0)
    policy_weight: Schedule
    kl_weight: float = Field(ge=0)
    value_weight: float = Field(ge=0)
    entropy_weight: Schedule
    update_epochs: int = Field(ge=1)

    @property
    def proposal(self) -> Literal["policy", "uniform"]:
        """Where the samples come from: the control draws as many, uniformly."""
        return "uniform" if self.name == "supervised" else "policy"

    @model_validator(mode="after")
    def _check_terms(self) -> Self:
        learns = self.policy_weight.start > 0 or (self.policy_weight.end or 0) > 0
        if self.name == "supervised" and (learns or self.kl_weight or self.value_weight or self.update_epochs > 1):
            raise ValueError(
                "policy_weight, kl_weight and value_weight must be 0 and update_epochs 1 for name = supervised; "
                "use name = grpo or reinforce to train the policy"
            )
        if self.name == "supervised" and (self.supervised_weight == 0 or self.entropy_weight.start or self.entropy_weight.end):
            raise ValueError(
                "supervised_weight must be positive and entropy_weight 0 for name = supervised, got "
                f"{self.supervised_weight} and {self.entropy_weight.start}; it trains the decoders and has no policy"
            )
        if self.name != "supervised" and self.policy_weight.start <= 0:
            raise ValueError(
                f"policy_weight must be positive for name = {self.name}, got start = {self.policy_weight.start}; use "
                "warmup_steps to begin gently, or name = supervised for the control"
            )
        if self.name == "reinforce" and self.update_epochs > 1:
            raise ValueError(
                f"update_epochs must be 1 for name = reinforce, got {self.update_epochs}; it has no ratio to correct for "
                "a policy that has moved: use grpo"
            )
        return self


class AdvantageParams(BaseModel):
    """How rewards become advantages (``<task>.training.advantage``)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Literal["group", "leave_one_out", "mean_only", "batch"]
    std: Literal["sample", "population"]


class PolicyLossParams(BaseModel):
    """The surrogate (``<task>.training.policy_loss``)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    clip_low: float = Field(gt=0, lt=1)
    clip_high: float = Field(gt=0)
    ratio_level: Literal["decision", "joint"]
    reduction: Literal["per_sequence", "per_decision", "constant"]


class OptimizerParams(BaseModel):
    """AdamW and clipping (``<task>.training.optimizer``); learning rates by parameter group of the task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learning_rates: dict[str, float]
    weight_decay: float = Field(ge=0)
    max_grad_norm: float | None = Field(gt=0)
    clip: Literal["joint", "per_group"]
    learning_rate_schedule: Schedule


class TrainingParams(BaseModel):
    """The loop, shared by all arms of a task (``<task>.training``)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    group_size: int = Field(ge=1)
    encoder_refresh: Literal["once", "every_epoch"]
    temperature: Schedule
    advantage: AdvantageParams
    policy_loss: PolicyLossParams
    optimizer: OptimizerParams
    log_every_steps: int = Field(ge=1)
    checkpoint_every_steps: int = Field(ge=1)
    gradient_report_every_steps: int = Field(ge=1)
    validate_every_epochs: int = Field(ge=1)
    validation_samples: int = Field(ge=1)

    @model_validator(mode="after")
    def _check_group(self) -> Self:
        if self.group_size < 2:
            raise ValueError(
                f"group_size must be at least 2, got {self.group_size}; the advantage of a sample is measured against "
                "the other samples of its group"
            )
        return self
