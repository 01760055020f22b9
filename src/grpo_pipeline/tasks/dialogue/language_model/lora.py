"""Add low-rank updates to a frozen language model's attention: LoRA, by the library peft.

    W x + (alpha / r) B A x,    A [r, in] random, B [out, r] starting at 0

Hu et al. 2021 (arXiv 2106.09685), equation 3; as there, the queries and values of every attention, in encoder and decoder.
GPT-2 holds query, key and value in one matrix: the update is of all three. There is no dropout: sampling and update must give
the same numbers (ratio 1 at the first update).
"""

from grpo_pipeline.tasks.dialogue.language_model.base import LanguageModel
from grpo_pipeline.tasks.dialogue.language_model.params import LoraTuning

TARGETS = {"t5": ("q", "v"), "gpt2": ("c_attn",), "llama": ("q_proj", "v_proj")}


def add_lora(language_model: LanguageModel, params: LoraTuning) -> None:
    """Freeze a language model in place, and add trainable low-rank updates; A is drawn from the global random stream.

    What it writes is that of the plain language model until an update.

    Args:
        language_model: one of those that ``build_language_model`` knows, without such updates.
        params: their size.
    """
    # Imported here, because training whole language models does not need the library.
    from peft import LoraConfig, inject_adapter_in_model

    kind = language_model.model.config.model_type
    language_model.requires_grad_(False)
    config = LoraConfig(
        r=params.rank,
        lora_alpha=params.alpha,  # type: ignore[arg-type]  # peft divides whatever it is given
        target_modules=list(TARGETS[kind]),
        lora_dropout=0.0,
        fan_in_fan_out=kind == "gpt2",  # its layers hold [in, out]
    )
    inject_adapter_in_model(config, language_model.model)
