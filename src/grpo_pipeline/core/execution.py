"""Parameters that say where and how a step computes, and not what: device, precision, memory (``<task>.training``)."""

from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field

from grpo_pipeline.core.agreement import EXECUTION
from grpo_pipeline.core.precision import Precision

Float32Products = Literal["default", "ieee", "tf32"]


class ExecutionParams(BaseModel):
    """Device, precision and memory of the training step, shared by all arms of a task.

    What is marked as EXECUTION may differ when a run goes on from a checkpoint: sums are rounded in another order at most. The
    two precisions may not: they are other numbers.

    Attributes:
        device: ``auto`` is CUDA where there is one, else the CPU; ``cuda:1`` is the second one.
        precision: of the networks in a step, see ``core.precision``; the weights are float32 either way.
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


def choose_device(wanted: str) -> torch.device:
    """Return the device of ``training.device``.

    Raises:
        ValueError: for a CUDA device that torch does not find.
    """
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = torch.device(("cuda" if found else "cpu") if wanted == "auto" else wanted)
    if device.type == "cuda" and (device.index or 0) >= found:
        raise ValueError(
            f"training.device must be a device that torch finds, got {wanted} with {found} CUDA devices; use auto or cpu, or "
            "install a torch with CUDA"
        )
    return device


def set_float32_products(wanted: Float32Products) -> None:
    """Set how exactly CUDA multiplies float32 numbers, for the whole process; ``default`` changes nothing."""
    if wanted != "default":
        # Not fp32_precision: after it torch.compile fails, which asks for the older setting.
        torch.backends.cuda.matmul.allow_tf32 = wanted == "tf32"
        torch.backends.cudnn.allow_tf32 = wanted == "tf32"


def check_compiler(device: torch.device) -> None:
    """Compile one addition, to fail now and in one sentence where torch cannot compile.

    Raises:
        ValueError: if there is no compiler for this device.
    """
    try:
        torch.compile(_add_one)(torch.zeros(2, device=device))
    except RuntimeError as error:
        needed = "Triton" if device.type == "cuda" else "a C++ compiler"
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"training.compile must be none where torch cannot compile for {device.type}, got encoder ({reason}); "
            f"install {needed}, or set it to none"
        ) from error


def _add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1
