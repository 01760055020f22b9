"""Choose the device that a step computes on (``<task>.training.device``)."""

import torch


def choose_device(wanted: str, *, path: str = "training.device") -> torch.device:
    """Return the device of ``training.device``; ``path`` is its name in the configuration.

    Raises:
        ValueError: for a CUDA device that torch does not find.
    """
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = torch.device(("cuda" if found else "cpu") if wanted == "auto" else wanted)
    if device.type == "cuda" and (device.index or 0) >= found:
        raise ValueError(
            f"{path} must be a device that torch finds, got {wanted} with {found} CUDA devices; set it to cpu, which is slow for "
            "large models, or install a torch with CUDA"
        )
    return device
