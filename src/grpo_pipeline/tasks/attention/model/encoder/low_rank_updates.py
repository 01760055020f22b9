"""Add low-rank updates to the frozen attention layers of SAM's vision encoder: LoRA, by the library peft.

    W x + (alpha / r) B A x,    A [r, in] random, B [out, r] starting at 0

Hu et al. 2021 (arXiv 2106.09685), equation 3. SAM holds query, key and value in one matrix, ``qkv``: one A for the three, and
a B of three times the width. There is no dropout: sampling and update must give the same numbers (ratio 1 at the first update).
"""

from typing import Any

from torch import nn


def add_lora(encoder: nn.Module, *, rank: int, alpha: float, targets: tuple[str, ...]) -> None:
    """Freeze SAM's vision encoder, in place, and add trainable low-rank updates to the named layers of each block.

    Trainable afterwards, with w the encoder's width: ``layers * rank * 4 w`` numbers for ``qkv`` and ``layers * rank * 2 w``
    for ``proj``. The outputs are those of the plain encoder until an update.

    Args:
        encoder: a ``SamVisionEncoder``.
        rank: r.
        alpha: the update counts alpha / r times.
        targets: of ``qkv`` (query, key, value) and ``proj`` (the output projection).
    """
    # Here and not above: a machine that tunes no encoder by LoRA does not need the library.
    from peft import LoraConfig, inject_adapter_in_model

    encoder.requires_grad_(False)
    # peft divides whatever alpha it is given and types it as an integer.
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(targets), lora_dropout=0.0)  # type: ignore[arg-type]
    inject_adapter_in_model(config, encoder)


def merge_lora(encoder: Any) -> None:
    """Add the low-rank updates to the weights they belong to, in place: a plain encoder of the same outputs is left.

    Raises:
        ValueError: if the encoder has none.
    """
    from peft.tuners.lora import LoraLayer

    found = [
        (name, module) for name, module in encoder.named_modules() if isinstance(module, LoraLayer)
    ]
    if not found:
        raise ValueError(
            "the encoder must have low-rank updates to merge, got none; it was not built with encoder: lora"
        )
    for name, module in found:
        parent, _, child = name.rpartition(".")
        module.merge()
        setattr(encoder.get_submodule(parent), child, module.get_base_layer())
