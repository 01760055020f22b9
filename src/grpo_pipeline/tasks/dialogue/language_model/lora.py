"""Add low-rank updates to the linear layers of a frozen language model: LoRA, by the library peft.

    W x + (alpha / r) B A x,    A [r, in] random, B [out, r] starting at 0

Hu et al. 2021 (arXiv 2106.09685), equation 3. By default every linear layer but the head has updates: those of the attention
alone reach less (Dettmers et al. 2023, arXiv 2305.14314, figure 2). There is no dropout: sampling and update must give the same
numbers (ratio 1 at the first update).
"""

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from grpo_pipeline.tasks.dialogue.language_model.base import LanguageModel
from grpo_pipeline.tasks.dialogue.language_model.params import LoraTuning

ALL = "all-linear"
LINEAR = (nn.Linear, Conv1D)  # GPT-2 and its kin hold [in, out]


def add_lora(language_model: LanguageModel, params: LoraTuning) -> None:
    """Freeze a language model in place, and add trainable low-rank updates; A is drawn from the global random stream.

    What it writes is that of the plain language model until an update.

    Args:
        language_model: without such updates.
        params: their size, and the names of the layers that have them.

    Raises:
        ValueError: if no layer has such a name (says which there are).
    """
    # Imported here, because training whole language models does not need the library.
    from peft import LoraConfig, inject_adapter_in_model

    model = language_model.model
    layers = linear_layers(model)
    if unknown := sorted(set(params.targets or ()) - set(layers)):
        raise ValueError(
            f"dialogue.language_model.tuning.targets must name linear layers of a {model.config.model_type}, "
            f"{', '.join(layers)}, got {', '.join(unknown)}; correct them, or leave targets out for all"
        )
    language_model.requires_grad_(False)
    config = LoraConfig(
        r=params.rank,
        lora_alpha=params.alpha,  # type: ignore[arg-type]  # peft divides whatever it is given
        target_modules=list(params.targets) if params.targets else ALL,
        lora_dropout=0.0,
        fan_in_fan_out=any(isinstance(part, Conv1D) for part in model.modules()),
    )
    inject_adapter_in_model(config, model)
    for parameter in language_model.parameters():
        if parameter.requires_grad:
            # Beside weights in half precision, too: it would round small updates away.
            parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))


def linear_layers(model: PreTrainedModel) -> list[str]:
    """List the last names of the linear layers of a network of transformers, without its head."""
    head = model.get_output_embeddings()
    return sorted(
        {
            name.rpartition(".")[2]
            for name, part in model.named_modules()
            if isinstance(part, LINEAR) and part is not head
        }
    )
