"""Refuse options of the step that only image encoders have."""

from grpo_pipeline.core.params import ExecutionParams

PLAIN = {"memory_format": "contiguous", "activation_checkpointing": "none"}


def check_plain(execution: ExecutionParams, *, task: str) -> None:
    """Refuse another memory format and activation checkpointing.

    Raises:
        ValueError: naming the option.
    """
    for name, only in PLAIN.items():
        if (value := getattr(execution, name)) != only:
            raise ValueError(
                f"{task}.training.{name} must be {only}, got {value}; the models of this task know no other"
            )
