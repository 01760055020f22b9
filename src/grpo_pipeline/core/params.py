"""Parameters of an arm's algorithm and of the training loop, as pydantic models. Values live in YAML.

What every run needs has no default here; what a run may leave out (replay, dynamic sampling, another reference) is None or
off. Every combination of options either works or is refused when the parameters are read.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from grpo_pipeline.core.agreement import EXECUTION
from grpo_pipeline.core.policy_gradient.algorithms import LossOptions, check_combination
from grpo_pipeline.core.schedules import Schedule

AlgorithmName = Literal[
    "supervised", "reinforce", "ppo", "grpo", "gspo", "cispo", "sapo", "dr_grpo", "dapo", "bnpo"
]
ProposalName = Literal["policy", "uniform", "none", "oracle"]


OPTIONS = (
    "clip_low",
    "clip_high",
    "delta",
    "dual_clip",
    "ratio_cap",
    "tau_positive",
    "tau_negative",
    "max_decisions",
)
READERS = {"ratio_cap": "cispo", "tau_positive": "sapo", "tau_negative": "sapo"}


def _constant(value: Any) -> Any:
    return (
        {"kind": "constant", "start": value}
        if isinstance(value, int | float) and not isinstance(value, bool)
        else value
    )


# How long a run is: may change when it goes on, see ``pipelines.training.resuming``.
Expectation = Literal["gradient", "none", "any"]
LENGTH = ("epochs", "max_steps")

# A schedule, or a number that stands for a constant one.
Coefficient = Annotated[Schedule, BeforeValidator(_constant)]


class AdvantageParams(BaseModel):
    """How rewards become advantages (``<task>.<arm>.algorithm.advantage``).

    Attributes:
        method: the baseline and the scale, see ``core.policy_gradient.advantages``.
        credit: what a decision is credited with: the reward of its whole sample (``set``), or its own part of it, for a task that
            can reward parts of a sample, see ``core.rewards.credit_decisions``.
        std: ``sample`` divides by n - 1, ``population`` by n; read where the method divides by a deviation.
        baseline: the mean of the group, or the predicted value of the prompt.
        top_k_ratio: share of the best samples of a group that teach.
        eps: added to every deviation, in units of the reward; read where ``std`` is.
        tie_tolerance: absolute and relative spread of the rewards below which a group ties, for advantages and dynamic sampling.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    method: Literal["group", "leave_one_out", "mean_only", "batch", "per_reward"]
    std: Literal["sample", "population"]
    # Left out of dumps where it is off, and so of digests.
    credit: Literal["set", "leave_one_out", "marginal", "marginal_to_go"] = Field(
        default="set", exclude_if=lambda credit: credit == "set"
    )
    baseline: Literal["group", "value"] = "group"
    top_k_ratio: float = Field(default=1.0, gt=0, le=1)
    eps: float = Field(default=1e-4, ge=0, allow_inf_nan=False)
    tie_tolerance: float = Field(default=1e-8, ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check_baseline(self) -> Self:
        if self.baseline == "value" and self.method in ("leave_one_out", "per_reward"):
            raise ValueError(
                f"method must be group, mean_only or batch with baseline = value, got {self.method}; it has a baseline of its own"
            )
        if self.credit != "set" and (self.baseline == "value" or self.method == "per_reward"):
            raise ValueError(
                f"credit must be set with baseline = {self.baseline} and method = {self.method}, got {self.credit}; values and "
                "reward parts are of whole samples: use baseline = group with method group, leave_one_out, mean_only or batch"
            )
        return self


class PolicyLossParams(BaseModel):
    """The surrogate (``<task>.<arm>.algorithm.policy_loss``); what goes together: ``algorithms.check_combination``.

    Attributes:
        clip_low: the ratio is clipped below at 1 - clip_low.
        clip_high: the ratio is clipped above at 1 + clip_high.
        ratio_level: what a ratio belongs to: one decision, the joint sample, or the average decision of a sample.
        reduction: how the terms of a batch become one number (docs/algorithms.md).
        delta: upper bound on the ratio where the advantage is negative, above 1 + clip_high; null for none.
        dual_clip: c above 1; where the advantage A is negative the loss is at most c |A|; null for none.
        ratio_cap: largest ratio of cispo; null is 5.
        tau_positive: temperature of sapo where the advantage is positive; null is 1.
        tau_negative: temperature of sapo elsewhere; null is 1.05.
        max_decisions: what the reduction ``constant`` divides by; null is the padded length of the batch.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    clip_low: float = Field(gt=0, lt=1)
    clip_high: float = Field(gt=0)
    ratio_level: Literal["decision", "joint", "sequence"]
    reduction: Literal["per_sequence", "per_decision", "constant", "per_decision_local"]
    delta: float | None = None
    dual_clip: float | None = None
    ratio_cap: float | None = None
    tau_positive: float | None = None
    tau_negative: float | None = None
    max_decisions: int | None = None

    @property
    def options(self) -> LossOptions:
        """The options that were given; the others keep their defaults."""
        return LossOptions(
            **{name: value for name in OPTIONS if (value := getattr(self, name)) is not None}
        )

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        if self.max_decisions is not None and self.reduction != "constant":
            raise ValueError(
                f"max_decisions must be absent with reduction = {self.reduction}, got {self.max_decisions}; constant reads it"
            )
        if self.max_decisions is not None and self.ratio_level == "joint":
            raise ValueError(
                f"max_decisions must be absent with ratio_level = joint, got {self.max_decisions}; a joint sample is one unit, "
                "whatever its length"
            )
        _ = self.options  # raises where a value is outside its range
        return self


class ReferenceParams(BaseModel):
    """The policy that the KL is measured to (``<task>.<arm>.algorithm.reference``).

    Attributes:
        update: ``frozen`` stays the initial policy, ``copy`` becomes the present one, ``ema`` follows it slowly.
        every_steps: steps between two updates.
        decay: share of the reference that ``ema`` keeps in an update.
        path: file of weights to begin with; null is the initial policy.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    update: Literal["frozen", "copy", "ema"] = "frozen"
    every_steps: int = Field(default=1, ge=1)
    decay: float = Field(default=0.99, gt=0, lt=1)
    path: str | None = None


class EntropyTargetParams(BaseModel):
    """Steer the entropy coefficient towards a target in nats (``<task>.<arm>.algorithm.entropy_target``).

    Attributes:
        target: entropy in nats.
        learning_rate: change of the coefficient per update and nat of distance.
        minimum: smallest coefficient.
        maximum: largest coefficient.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    target: float = Field(gt=0)
    learning_rate: float = Field(gt=0)
    minimum: float = Field(ge=0)
    maximum: float = Field(gt=0)

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.minimum >= self.maximum:
            raise ValueError(
                f"minimum must be below maximum, got {self.minimum} and {self.maximum}; exchange them"
            )
        return self


class DynamicSamplingParams(BaseModel):
    """Draw groups whose samples all tie again (``<task>.<arm>.algorithm.dynamic_sampling``).

    Attributes:
        max_retries: further draws of a group that ties.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    max_retries: int = Field(ge=1)


class ReplayParams(BaseModel):
    """Train again on stored groups that taught something (``<task>.<arm>.algorithm.replay``).

    Attributes:
        capacity: stored groups at most.
        max_age_steps: an older group is dropped.
        share: of a batch that is replayed.
        importance_cap: largest importance weight of a replayed sample.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    capacity: int = Field(ge=1)
    max_age_steps: int = Field(ge=1)
    share: float = Field(gt=0, lt=1)
    importance_cap: float = Field(ge=1)


class AlgorithmParams(BaseModel):
    """Parameters of one arm's objective (``<task>.<arm>.algorithm``).

    The loss is ``supervised_weight * supervised + policy_weight * policy + kl_weight * KL(policy || reference)
    + rollout_kl_weight * KL(rollout policy || policy) + value_weight * value - entropy_weight * entropy``; every weight is a
    schedule, or a number for a constant. With ``kl_placement: reward`` the KL lowers the reward of a sample instead; under
    ``advantage.method: per_reward`` it lowers the advantage, after normalisation.

    ``proposal`` says where the samples come from; null is ``uniform`` for the control and ``policy`` for every other arm.

    Attributes:
        name: the policy-gradient algorithm; ``supervised`` is the control, without one.
        supervised_weight: of the supervised loss.
        policy_weight: of the policy loss.
        kl_weight: of the KL divergence from the reference.
        value_weight: of the value head's squared error.
        entropy_weight: of the entropy bonus.
        update_epochs: K, updates with the samples of one batch.
        advantage: how rewards become advantages.
        policy_loss: the surrogate; null for the control.
        kl_placement: the KL is a term of the loss, or lowers the reward.
        kl_estimator: how the KL is computed (docs/algorithms.md).
        rollout_kl_weight: of the KL between the policy that sampled and the present one; needs more than one update epoch.
        value_clip: largest change of a value in one step; null for no limit.
        reference: the policy that the KL is measured to.
        entropy_target: adapts ``entropy_weight`` towards a target; null keeps it as given.
        dynamic_sampling: draws groups whose rewards tie again; null keeps them.
        replay: trains again on stored groups; null for no replay.
        proposal: where samples come from; null is ``uniform`` for the control and ``policy`` for every other arm.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: AlgorithmName
    supervised_weight: Coefficient
    policy_weight: Coefficient
    kl_weight: Coefficient
    value_weight: Coefficient
    entropy_weight: Coefficient
    update_epochs: int = Field(ge=1)
    advantage: AdvantageParams
    policy_loss: PolicyLossParams | None
    kl_placement: Literal["loss", "reward"] = "loss"
    kl_estimator: Literal["exact", "k1", "k2", "k3", "ratio_k3"] = "exact"
    rollout_kl_weight: Coefficient = Schedule(start=0.0)
    value_clip: float | None = Field(default=None, gt=0)
    reference: ReferenceParams = ReferenceParams()
    entropy_target: EntropyTargetParams | None = None
    dynamic_sampling: DynamicSamplingParams | None = None
    replay: ReplayParams | None = None
    proposal: ProposalName = "policy"

    @model_validator(mode="before")
    @classmethod
    def _fill_proposal(cls, values: Any) -> Any:
        """Put the arm's usual proposal in the place of null: the control draws as many samples, uniformly."""
        if not isinstance(values, Mapping) or values.get("proposal") is not None:
            return values
        return {**values, "proposal": "uniform" if values.get("name") == "supervised" else "policy"}

    @property
    def credits_decisions(self) -> bool:
        """Whether the policy learns from what each decision has contributed, and not from its sample's reward alone."""
        return self.advantage.credit != "set" and self.policy_loss is not None

    @property
    def pays_kl(self) -> bool:
        """Whether a reference policy is needed."""
        return is_on(self.kl_weight)

    @property
    def pays_exact_kl(self) -> bool:
        """Whether the loss holds the exact KL to the reference."""
        return self.pays_kl and self.kl_placement == "loss" and self.kl_estimator == "exact"

    @model_validator(mode="after")
    def _check_terms(self) -> Self:
        for name in (
            "supervised_weight",
            "policy_weight",
            "kl_weight",
            "value_weight",
            "entropy_weight",
            "rollout_kl_weight",
        ):
            coefficient = getattr(self, name)
            lowest = min(coefficient.start, coefficient.end)
            if lowest < 0:
                raise ValueError(
                    f"{name} must be greater than or equal to 0, got {lowest}; the signs are in the loss already"
                )
        if self.name == "supervised":
            self._check_control()
        else:
            self._check_policy()
            self._check_kl()
            self._check_value()
        return self

    def _check_control(self) -> None:
        weights = (
            self.policy_weight,
            self.kl_weight,
            self.rollout_kl_weight,
            self.value_weight,
            self.entropy_weight,
        )
        if any(map(is_on, weights)) or self.update_epochs > 1:
            raise ValueError(
                "policy_weight, kl_weight, rollout_kl_weight, value_weight and entropy_weight must be 0 and update_epochs 1 for "
                "name = supervised; use name = grpo or reinforce to train the policy"
            )
        if not is_on(self.supervised_weight):
            raise ValueError(
                "supervised_weight must be positive for name = supervised, got 0; nothing would be learned"
            )
        sections = ("policy_loss", "value_clip", "entropy_target", "dynamic_sampling", "replay")
        given = [name for name in sections if getattr(self, name)]
        if given:
            raise ValueError(
                f"{' and '.join(given)} must be null for name = supervised, got a value; the control has no policy"
            )

    def _check_policy(self) -> None:
        if self.proposal != "policy":
            raise ValueError(
                f"proposal must be policy for name = {self.name}, got {self.proposal}; a policy learns from its own samples: use "
                "name = supervised"
            )
        if self.policy_weight.start <= 0:
            raise ValueError(
                f"policy_weight must be positive for name = {self.name}, got start = {self.policy_weight.start}; use "
                "warmup_steps to begin gently, or name = supervised for the control"
            )
        if self.policy_loss is None:
            raise ValueError(
                f"policy_loss must be given for name = {self.name}, got null; copy it from conf/base"
            )
        loss = self.policy_loss
        check_combination(
            algorithm=self.name,
            ratio_level=loss.ratio_level,
            reduction=loss.reduction,
            delta=loss.delta,
            dual_clip=loss.dual_clip,
            update_epochs=self.update_epochs,
            clip_high=loss.clip_high,
        )
        _check_readers(self.name, loss)
        if self.credits_decisions and loss.ratio_level != "decision":
            raise ValueError(
                f"advantage.credit must be set with policy_loss.ratio_level = {loss.ratio_level}, got {self.advantage.credit}; a "
                "whole sample has one ratio there: use ratio_level = decision"
            )
        if self.replay is not None and self.name == "reinforce":
            raise ValueError(
                "replay must be null for name = reinforce, got a value; it has no ratio to correct with: use grpo"
            )

    def _check_kl(self) -> None:
        allowed = (
            ("exact", "k2", "k3", "ratio_k3") if self.kl_placement == "loss" else ("k1", "k2", "k3")
        )
        if self.pays_kl and self.kl_estimator not in allowed:
            why = (
                "its gradient has mean 0"
                if self.kl_estimator == "k1"
                else "a reward needs a number per sample"
            )
            raise ValueError(
                f"kl_estimator must be one of {', '.join(allowed)} with kl_placement = {self.kl_placement}, got "
                f"{self.kl_estimator}; {why}"
            )
        if self.credits_decisions and self.pays_kl and self.kl_placement == "reward":
            raise ValueError(
                f"advantage.credit must be set with kl_placement = reward, got {self.advantage.credit}; that KL lowers the "
                "reward of whole samples: use kl_placement = loss"
            )
        if is_on(self.rollout_kl_weight) and self.update_epochs == 1:
            raise ValueError(
                f"rollout_kl_weight must be 0 with update_epochs = 1, got {self.rollout_kl_weight.start}; the policy is "
                "still the one that sampled, and the term has no gradient: use more update epochs"
            )
        if self.kl_estimator == "ratio_k3" and self.name == "reinforce":
            raise ValueError(
                "kl_estimator must not be ratio_k3 for name = reinforce, got ratio_k3; it has no ratio: use k3"
            )

    def _check_value(self) -> None:
        needs_value = self.name == "ppo" or self.advantage.baseline == "value"
        if needs_value and not is_on(self.value_weight):
            raise ValueError(
                f"value_weight must be positive with a value baseline, got 0 for name = {self.name}; an untrained value is noise"
            )
        if self.name == "ppo" and self.advantage.baseline != "value":
            raise ValueError(
                "advantage.baseline must be value for name = ppo, got group; use name = grpo for a group baseline"
            )
        if self.value_clip is not None and not is_on(self.value_weight):
            raise ValueError(
                f"value_clip must be null without value_weight, got {self.value_clip}; it would have no effect"
            )
        if self.value_clip is not None and self.update_epochs == 1:
            raise ValueError(
                f"value_clip must be null with update_epochs = 1, got {self.value_clip}; the values have not moved when they are "
                "clipped: use more update epochs"
            )


class OptimizerParams(BaseModel):
    """AdamW and clipping (``<task>.training.optimizer``); learning rates by parameter group of the task.

    Attributes:
        learning_rates: by parameter group of the task.
        weight_decay: of AdamW, decoupled.
        max_grad_norm: largest norm of a gradient; null does not clip.
        clip: ``joint`` clips the gradient of all groups together, ``per_group`` each by itself.
        learning_rate_schedule: factor on every learning rate.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    learning_rates: dict[str, Annotated[float, Field(ge=0)]]
    weight_decay: float = Field(ge=0)
    max_grad_norm: float | None = Field(gt=0)
    clip: Literal["joint", "per_group"]
    learning_rate_schedule: Schedule


class LoaderParams(BaseModel):
    """How training batches are prepared (``<task>.training.loader``); no result depends on it.

    Attributes:
        prefetch: batches that are made, or being made, while a step computes; 0 makes each when its step begins.
        workers: threads that make them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    prefetch: int = Field(default=2, ge=0)
    workers: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _check_workers(self) -> Self:
        if self.workers > max(1, self.prefetch):
            raise ValueError(
                f"workers must be at most prefetch = {self.prefetch}, got {self.workers}; the others would be idle"
            )
        return self


Precision = Literal["float32", "bf16"]
Float32Products = Literal["default", "ieee", "tf32"]


class ExecutionParams(BaseModel):
    """Device, precision and memory of the training step, shared by all arms of a task.

    What is marked as EXECUTION may differ when a run goes on from a checkpoint: sums are rounded in another order at most. The
    two precisions may not: they are other numbers.

    Attributes:
        device: ``auto`` is CUDA where there is one, else the CPU; ``cuda:1`` is the second one.
        precision: of the networks in a step, see ``core.training.precision``; the weights are float32 either way.
        float32_products: on CUDA, how exactly float32 matrix products and convolutions multiply: ``ieee`` (24 bits), ``tf32`` (11
            bits, several times faster), or as torch does it of itself. For the whole process.
        compile: ``encoder`` lets torch.compile translate the encoder when it first runs.
        memory_format: how images and convolution weights lie in memory.
        activation_checkpointing: ``encoder`` keeps the inputs of the encoder's layers alone and computes each layer again in the
            backward pass.
        micro_batch_size: prompts that are worked on at once, or None for the whole batch.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    device: Annotated[str, EXECUTION] = Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    precision: Precision
    float32_products: Float32Products
    compile: Annotated[Literal["none", "encoder"], EXECUTION]
    memory_format: Annotated[Literal["contiguous", "channels_last"], EXECUTION]
    activation_checkpointing: Annotated[Literal["none", "encoder"], EXECUTION]
    micro_batch_size: Annotated[int | None, EXECUTION] = Field(ge=1)


class TrainingParams(ExecutionParams):
    """The loop, shared by all arms of a task (``<task>.training``); ``LENGTH`` names what says how long it is.

    Attributes:
        epochs: passes through the training data.
        max_steps: steps of the whole run at most, for batches that cost much more than reading the data; null goes through all
            epochs, and is left out of dumps.
        batch_size: prompts of a step.
        group_size: G, samples per prompt and step, in the control too; at least 2.
        encoder_refresh: ``once``: later update epochs reuse the batch's encoding; ``every_epoch``: exact and slower.
        temperature: of sampling; divides the logits.
        optimizer: AdamW and clipping.
        log_every_steps: steps between two writes of metric rows.
        checkpoint_every_steps: steps between two checkpoints.
        gradient_report_every_steps: steps between two reports of the gradient of each loss term.
        validate_every_epochs: epochs between two validations.
        validation_samples: samples per prompt in a validation.
        keep: which weights become the arm's model, by ``Task.validated_by`` on the validation split: the last ones; those of the
            best validation; or the last ones, with the best ones beside them as ``<arm>.best``. ``both`` is left out of dumps.
        animation_frames: pictures of the policy on a few validation examples, from the start to the end of training, of a task
            that has such; 0 makes none. Left out of dumps, and so of digests.
        loader: how batches are prepared; left out of dumps, and so of digests.
    """

    epochs: int = Field(ge=1)
    max_steps: int | None = Field(default=None, ge=1, exclude_if=lambda steps: steps is None)
    batch_size: int = Field(ge=1)
    group_size: int = Field(ge=1)
    encoder_refresh: Literal["once", "every_epoch"]
    temperature: Schedule
    optimizer: OptimizerParams
    log_every_steps: Annotated[int, EXECUTION] = Field(ge=1)
    checkpoint_every_steps: Annotated[int, EXECUTION] = Field(ge=1)
    gradient_report_every_steps: Annotated[int, EXECUTION] = Field(ge=1)
    validate_every_epochs: int = Field(ge=1)
    validation_samples: int = Field(ge=1)
    keep: Literal["last", "best", "both"] = Field(
        default="both", exclude_if=lambda keep: keep == "both"
    )
    animation_frames: Annotated[int, EXECUTION] = Field(default=12, ge=0, exclude=True)
    loader: Annotated[LoaderParams, EXECUTION] = Field(default=LoaderParams(), exclude=True)

    @model_validator(mode="after")
    def _check_group(self) -> Self:
        if self.group_size < 2:
            raise ValueError(
                f"group_size must be at least 2, got {self.group_size}; the advantage of a sample is measured against "
                "the other samples of its group"
            )
        return self


def is_on(coefficient: Schedule) -> bool:
    """Say whether a coefficient differs from 0 at any step."""
    return coefficient.start != 0 or coefficient.end != 0


def _check_readers(name: str, loss: PolicyLossParams) -> None:
    """Refuse an option that the surrogate would not read."""
    for option, reader in READERS.items():
        value = getattr(loss, option)
        if value is not None and name != reader:
            raise ValueError(
                f"policy_loss.{option} must be absent for name = {name}, got {value}; only {reader} reads it"
            )
