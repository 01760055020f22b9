"""Parameters of the training loop, as pydantic models. Values live in YAML.

What every run needs has no default here; what a run may leave out is None. Every combination of options either works or is
refused when the parameters are read.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from grpo_pipeline.core.agreement import EXECUTION
from grpo_pipeline.core.schedules import Schedule

# How long a run is: may change when it goes on, see ``pipelines.training.resuming``.
LENGTH = ("epochs", "max_steps")


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
        memory_format: how images and convolution weights lie in memory.
        activation_checkpointing: ``encoder`` keeps the inputs of the encoder's layers alone and computes each layer again in the
            backward pass.
        micro_batch_size: prompts that are worked on at once, or None for the whole batch.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    device: Annotated[str, EXECUTION] = Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    precision: Precision
    float32_products: Float32Products
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
        group_size: G, samples per prompt and step, in the control too; an advantage is measured against the others of the group.
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
    """

    epochs: int = Field(ge=1)
    max_steps: int | None = Field(default=None, ge=1, exclude_if=lambda steps: steps is None)
    batch_size: int = Field(ge=1)
    group_size: int = Field(ge=2)
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
