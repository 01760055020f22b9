"""Group a language model's parameters by component, for learning rates and gradient norms."""

from torch import nn

from grpo_pipeline.tasks.dialogue.language_model.base import LanguageModel

# Names of tables of positions: of GPT-2, and of OPT, BART and their kin. T5, Llama and their kin have none.
POSITIONS = ("wpe", "embed_positions")


def parameter_groups(language_model: LanguageModel) -> dict[str, list[nn.Parameter]]:
    """List the trainable parameters of each component, each parameter once; a component without any is left out.

    ``embeddings`` holds those of tokens and positions and the head (many networks tie some of them). ``encoder`` and
    ``decoder`` hold the layers; a causal language model has no encoder. Low-rank updates belong to the layers that they change.
    ``retriever`` holds its word vectors, if there is one.
    """
    model = language_model.model
    positions = [
        part
        for name, part in model.named_modules()
        if name.rpartition(".")[2] in POSITIONS and isinstance(part, nn.Embedding)
    ]
    modules = {
        "embeddings": [model.get_input_embeddings(), model.get_output_embeddings(), *positions],
        "encoder": [model.get_encoder()] if language_model.kind == "seq2seq" else [],
        "decoder": [model],
    }
    taken: set[int] = set()
    groups: dict[str, list[nn.Parameter]] = {}
    for name, parts in modules.items():
        own = {id(p): p for part in parts for p in part.parameters() if id(p) not in taken}
        taken |= own.keys()
        groups[name] = [p for p in own.values() if p.requires_grad]
    if language_model.retriever is not None:
        groups["retriever"] = list(language_model.retriever.parameters())
    return {name: parameters for name, parameters in groups.items() if parameters}
