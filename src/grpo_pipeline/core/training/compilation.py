"""Check that torch can compile on a device (``<task>.training.compile``)."""

import torch


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
