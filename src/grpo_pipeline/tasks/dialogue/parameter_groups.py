"""Group a language model's parameters by component, for learning rates and gradient norms."""

from torch import nn

from grpo_pipeline.tasks.dialogue.language_model.base import LanguageModel


def parameter_groups(language_model: LanguageModel) -> dict[str, list[nn.Parameter]]:
    """List the trainable parameters of each component, each parameter once; a component without any is left out.

    ``embeddings`` holds those of tokens and positions and the head (T5, GPT-2 and ByT5 tie some of them). ``encoder`` and
    ``decoder`` hold the layers; a causal language model has no encoder. Low-rank updates belong to the layers that they change.
    """
    model = language_model.model
    ends = [
        model.get_input_embeddings(),
        model.get_output_embeddings(),
        # GPT-2's table of positions; T5 and Llama have none.
        *(part for name, part in model.named_modules() if name.endswith("transformer.wpe")),
    ]
    modules = {
        "embeddings": ends,
        "encoder": ([language_model.model.encoder] if language_model.kind == "seq2seq" else []),
        "decoder": [model],
    }
    taken: set[int] = set()
    groups: dict[str, list[nn.Parameter]] = {}
    for name, parts in modules.items():
        own = {id(p): p for part in parts for p in part.parameters() if id(p) not in taken}
        taken |= own.keys()
        groups[name] = [p for p in own.values() if p.requires_grad]
    return {name: parameters for name, parameters in groups.items() if parameters}
