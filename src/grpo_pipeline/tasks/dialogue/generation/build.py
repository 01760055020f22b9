"""Choose the engine that draws, and refuse what it cannot draw for."""

from grpo_pipeline.tasks.dialogue.generation.engine import Engine
from grpo_pipeline.tasks.dialogue.generation.library_generate import LibraryEngine
from grpo_pipeline.tasks.dialogue.generation.openai_server import ServerEngine
from grpo_pipeline.tasks.dialogue.generation.params import Generation, ServerGeneration
from grpo_pipeline.tasks.dialogue.language_model.base import LanguageModel


def engine_of(params: Generation, language_model: LanguageModel) -> Engine:
    """Build the engine that is not the project's own sampler."""
    if isinstance(params, ServerGeneration):
        return ServerEngine(params, choices=language_model.choices)
    return LibraryEngine(language_model)
