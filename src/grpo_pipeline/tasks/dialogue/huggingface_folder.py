"""Write the language model as a Hugging Face folder, which transformers loads by itself.

The folder holds config.json, model.safetensors and the tokenizer.

Low-rank updates are merged into their weights, W + (alpha / r) B A. So transformers alone can load the folder, without missing or
unexpected keys. This project reads back the model beside the folder, whose updates are separate.
"""

import copy
from pathlib import Path
from typing import Any

from grpo_pipeline.tasks.dialogue.language_model.base import LanguageModel
from grpo_pipeline.tasks.dialogue.language_model.folder_tokenizer import FolderTokenizer
from grpo_pipeline.tasks.dialogue.language_model.safe_loading import without_bars
from grpo_pipeline.tasks.dialogue.language_model.tokens import Tokenizer

FOLDER, ADAPTER = "huggingface", "adapter"


def write_huggingface(language_model: LanguageModel, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a language model so that ``AutoModelFor….from_pretrained(folder)`` gives the same log-probabilities.

    Args:
        language_model: of ``build_language_model``, with or without low-rank updates; it stays as it is.
        tokenizer: that it was trained with. The byte-level one is written as transformers' ``ByT5Tokenizer``, whose ids are the
            same.
        folder: exists and is empty.
    """
    with without_bars():
        plain_model(language_model).save_pretrained(folder)
    if isinstance(tokenizer, FolderTokenizer):
        for name, content in tokenizer.files.items():
            if name != "config.json":
                (folder / name).write_bytes(content)
    else:
        # Imported here, because reading a model back does not need it.
        from transformers import ByT5Tokenizer

        ByT5Tokenizer(extra_ids=0).save_pretrained(folder)


def write_adapter(language_model: LanguageModel, folder: Path) -> None:
    """Write the low-rank updates alone, so that ``PeftModel.from_pretrained(start, folder)`` adds them to the frozen network.

    Args:
        language_model: with low-rank updates.
        folder: exists and is empty; gets adapter_config.json and adapter_model.safetensors.
    """
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    model = language_model.model
    config = copy.copy(model.peft_config["default"])
    config.inference_mode = True
    # The name of a path of this machine would be wrong on another; peft is given the network.
    config.base_model_name_or_path = None
    config.save_pretrained(str(folder))
    updates = get_peft_model_state_dict(model)
    tensors = {f"base_model.model.{name}": part.contiguous() for name, part in updates.items()}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def has_updates(language_model: LanguageModel) -> bool:
    """Check whether a language model has low-rank updates."""
    return any("lora_" in name for name, _ in language_model.model.named_parameters())


def plain_model(language_model: LanguageModel) -> Any:
    """Merge low-rank updates into a copy of the model; a model without them is returned itself."""
    if not has_updates(language_model):
        return language_model.model
    from peft.tuners.lora import LoraLayer

    model = copy.deepcopy(language_model.model)
    # The innermost first: the parameters of experts have an update each, one around the other.
    for name, module in reversed(list(model.named_modules())):
        if isinstance(module, LoraLayer):
            module.merge()
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, module.get_base_layer())
    return model
