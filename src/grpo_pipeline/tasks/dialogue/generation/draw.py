"""Let an engine draw the replies of a step."""

import torch

from grpo_pipeline.tasks.dialogue.generation.engine import Ends, Engine, rollouts_of
from grpo_pipeline.tasks.dialogue.generation.library_generate import LibraryEngine
from grpo_pipeline.tasks.dialogue.generation.openai_server import ServerEngine
from grpo_pipeline.tasks.dialogue.generation.params import ServerGeneration
from grpo_pipeline.tasks.dialogue.language_model.base import Encoded, LanguageModel
from grpo_pipeline.tasks.dialogue.language_model.params import ReplyParams
from grpo_pipeline.tasks.dialogue.language_model.reply_rollouts import ReplyRollouts
from grpo_pipeline.tasks.dialogue.language_model.tokens import Tokens


@torch.no_grad()
def draw_by_engine(
    language_model: LanguageModel,
    encoded: Encoded,
    group_size: int,
    *,
    params: ReplyParams,
    ends: Ends,
    generator: torch.Generator,
) -> ReplyRollouts:
    """Draw G replies to each prompt with the engine's log-probabilities; arguments as those of ``sample_replies``.

    Raises:
        ValueError: if prompt and reply do not fit the language model, or a server's answer is wrong.
        ConnectionError: if a server does not answer.
    """
    language_model.check_room(encoded, params.max_tokens)
    assert encoded.prompt is not None
    prompts = Tokens(encoded.prompt.ids[:, 0], encoded.prompt.is_token[:, 0])  # [P, S]
    seed = int(torch.randint(2**31 - 1, (), generator=generator, device=generator.device))
    engine: Engine = LibraryEngine(language_model)
    if isinstance(params.generation, ServerGeneration):
        engine = ServerEngine(params.generation, choices=language_model.choices)
    drawn = engine.draw(prompts, group_size, params=params, ends=ends, seed=seed)
    return rollouts_of(drawn, max_tokens=params.max_tokens, ends=ends)
