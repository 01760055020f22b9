"""Check a Hugging Face folder on this machine: it must hold safe weights, and no code of it is run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# For every ``from_pretrained``: nothing is downloaded, and a folder's code is never run, not even after a prompt.
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
# For models: the weights are tensors only.
SAFE: dict[str, Any] = LOCAL | {"use_safetensors": True}
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")


def check_weights(folder: Path) -> None:
    """Check that a folder holds a model whose weights are safetensors.

    Raises:
        FileNotFoundError: if there is no configuration or no weights, or weights are pickles alone, which run code when they
            are read.
    """
    held = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    if "config.json" in held and any(name in held for name in WEIGHTS):
        return
    if "adapter_config.json" in held:
        raise FileNotFoundError(
            f"{folder} must hold a whole model, got an adapter, low-rank updates of another model; merge them, "
            "PeftModel.from_pretrained(base, folder).merge_and_unload().save_pretrained(another), and give that folder"
        )
    pickles = (
        sorted(entry.name for pattern in PICKLES for entry in folder.glob(pattern)) if held else []
    )
    if pickles:
        raise FileNotFoundError(
            f"{folder} must hold its weights as {WEIGHTS[0]} (or its shards), got the pickle {pickles[0]}, which runs code when "
            "it is read; where you trust its source convert it with save_pretrained(folder, safe_serialization=True)"
        )
    raise FileNotFoundError(
        f"{folder} must hold config.json and {WEIGHTS[0]} (or its shards), got {held or 'no folder'}; write it with "
        "save_pretrained"
    )


@contextmanager
def refusing_code(folder: Path) -> Iterator[None]:
    """Turn the library's refusal of a folder with code of its own into a single sentence.

    Raises:
        ValueError: that sentence.
    """
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error) and "custom code" not in str(error):
            raise
        raise ValueError(
            f"{folder} must be of a kind that the library transformers knows, got one with code of its own, which is never run; "
            "give another model"
        ) from error


@contextmanager
def refusing_kinds(name: str) -> Iterator[None]:
    """Turn the library's list of all the models that it knows into a single sentence.

    Raises:
        ValueError: that sentence, for a model that writes no text.
    """
    try:
        yield
    except ValueError as error:
        if "Unrecognized" not in str(error) and "does not recognize this architecture" not in str(
            error
        ):
            raise
        raise ValueError(
            f"{name} must hold a causal language model or an encoder-decoder that the library transformers knows, got another; "
            "give another folder, or install a newer transformers"
        ) from error


@contextmanager
def without_bars() -> Iterator[None]:
    """Switch off transformers' progress bar of every model that is read or written."""
    from transformers.utils import logging

    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()
