"""Choose which weights of SAM's vision encoder are trained: all, none, or a small addition to a frozen encoder."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from grpo_pipeline.tasks.attention.params import ModelParams

# Bottleneck adapters in a vision transformer: small trainable maps behind frozen sub-layers.
#
# Houlsby et al. 2019 (arXiv 1902.00751), figure 2: one adapter behind attention and one behind the MLP of every block, each
# inside the block's residual connection. The Medical SAM Adapter (arXiv 2304.12620) puts them into SAM; how this differs: both
# adapters stand behind their sub-layer, where that one scales the second and runs it beside the MLP.


class Adapter(nn.Module):
    """Add a bottleneck to its input: x + W_up gelu(W_down x + b_down) + b_up, with W_up and b_up starting at 0."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank)
        self.up = nn.Linear(rank, width)
        for parameter in self.up.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """Return the same shape, [..., width]."""
        bottleneck: Tensor = self.up(F.gelu(self.down(x)))
        return x + bottleneck


class Adapted(nn.Module):
    """A sub-layer followed by an adapter; of a tuple, as attention returns one, the first part is adapted."""

    def __init__(self, base: nn.Module, width: int, rank: int) -> None:
        super().__init__()
        self.base, self.adapter = base, Adapter(width, rank)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the sub-layer, then the adapter, cell by cell."""
        out = self.base(*args, **kwargs)
        return (self.adapter(out[0]), *out[1:]) if isinstance(out, tuple) else self.adapter(out)


# Low-rank updates of the frozen attention layers of SAM's vision encoder: LoRA, by the library peft.
#
#     W x + (alpha / r) B A x,    A [r, in] random, B [out, r] starting at 0
#
# Hu et al. 2021 (arXiv 2106.09685), equation 3. SAM holds query, key and value in one matrix, ``qkv``: one A for the three, and
# a B of three times the width. There is no dropout: sampling and update must give the same numbers (ratio 1 at the first update).


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


def tune_encoder(encoder: Any, params: ModelParams) -> None:
    """Freeze an encoder as ``params.encoder`` says, in place, and add what is to be trained instead.

    Args:
        encoder: a ``SamVisionEncoder``, with the weights it starts from.
        params: of the model; they hold an ``encoder_tuning`` where one is needed.
    """
    tuning = params.encoder_tuning
    if params.encoder == "frozen":
        encoder.requires_grad_(False)
    elif params.encoder == "adapter" and tuning is not None:
        # One behind attention and MLP of each block; 2 * layers * (2 * width * rank + rank + width) trainable numbers. The
        # outputs are those of the plain encoder until an update.
        encoder.requires_grad_(False)
        width, rank = encoder.config.hidden_size, tuning.rank
        for layer in encoder.layers:
            layer.attn = Adapted(layer.attn, width, rank)
            layer.mlp = Adapted(layer.mlp, width, rank)
    elif (
        params.encoder == "lora"
        and tuning is not None
        and tuning.alpha is not None
        and tuning.targets is not None
    ):
        add_lora(encoder, rank=tuning.rank, alpha=tuning.alpha, targets=tuning.targets)
