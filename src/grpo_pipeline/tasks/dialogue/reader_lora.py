"""Low-rank updates of a frozen reader's attention: LoRA, by the library peft.

    W x + (alpha / r) B A x,    A [r, in] random, B [out, r] starting at 0

Hu et al. 2021 (arXiv 2106.09685), equation 3; as there, the queries and values of every attention, in encoder and decoder.
GPT-2 holds query, key and value in one matrix: the update is of all three. There is no dropout: sampling and update must give
the same numbers (ratio 1 at the first update).
"""

from grpo_pipeline.tasks.dialogue.reader import Reader
from grpo_pipeline.tasks.dialogue.reader_params import LoraParams

TARGETS = {"t5": ("q", "v"), "gpt2": ("c_attn",), "llama": ("q_proj", "v_proj")}


def add_lora(reader: Reader, params: LoraParams) -> None:
    """Freeze a reader, in place, and add trainable low-rank updates; A is drawn from the global random stream.

    What it writes is that of the plain reader until an update.

    Args:
        reader: one of those that ``build_reader`` knows, without such updates.
        params: their size.
    """
    # Here and not above: a machine that trains whole readers does not need the library.
    from peft import LoraConfig, inject_adapter_in_model

    kind = reader.model.config.model_type
    reader.requires_grad_(False)
    config = LoraConfig(
        r=params.rank,
        lora_alpha=params.alpha,  # type: ignore[arg-type]  # peft divides whatever it is given
        target_modules=list(TARGETS[kind]),
        lora_dropout=0.0,
        fan_in_fan_out=kind == "gpt2",  # its layers hold [in, out]
    )
    inject_adapter_in_model(config, reader.model)
