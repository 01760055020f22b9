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

FOLDER = "huggingface"


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


def plain_model(language_model: LanguageModel) -> Any:
    """Merge low-rank updates into a copy of the model; a model without them is returned itself."""
    if not any("lora_" in name for name, _ in language_model.model.named_parameters()):
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
