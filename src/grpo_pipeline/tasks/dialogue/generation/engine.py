"""Define what an engine is asked and answers, and turn its answer into rollouts.

Axes: P prompts, S tokens of a prompt, G replies of each, L longest reply, V choices.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor
from torch.nn.functional import pad

from grpo_pipeline.tasks.dialogue.language_model.packed_masks import pack
from grpo_pipeline.tasks.dialogue.language_model.reply_rollouts import ReplyRollouts, is_end
from grpo_pipeline.tasks.dialogue.language_model.tokens import Tokens


@dataclass(frozen=True)
class Request:
    """Ask for replies to some prompts.

    Attributes:
        prompts: ids and is_token [P, S], padded on the left.
        group_size: G.
        temperature: divides the logits.
        top_k: keep the k likeliest tokens; None keeps all.
        top_p: then keep the smallest set of likeliest tokens with this share of the mass; None keeps all.
        max_tokens: L, the longest reply, its end included.
        ends: (*end_ids, pad_id) of the tokenizer.
        seed: the only source of randomness, below 2^31.
    """

    prompts: Tokens
    group_size: int
    temperature: float
    top_k: int | None
    top_p: float | None
    max_tokens: int
    ends: tuple[int, ...]
    seed: int


class Drawn(NamedTuple):
    """Replies of an engine, of T <= L tokens; what stands behind an end is ignored.

    Attributes:
        tokens: int64 [P, G, T].
        logprobs: [P, G, T], those of the engine, of the distribution that it drew from, in nats.
        kept: bool [P, G, T, V], the tokens that top-k and top-p left; None where all were left.
    """

    tokens: Tensor
    logprobs: Tensor
    kept: Tensor | None = None


class Engine(Protocol):
    """Draw replies."""

    def draw(self, request: Request) -> Drawn:
        """Draw G replies to each prompt; the same request gives the same replies, as far as the engine can promise it."""
        ...


def rollouts_of(drawn: Drawn, request: Request) -> ReplyRollouts:
    """Mark the decisions of an engine's replies, up to the first end of each, and pad them to L tokens."""
    ended = is_end(drawn.tokens, request.ends)  # [P, G, T]
    is_valid = (ended.cumsum(-1) - ended.long()) == 0  # an end is a decision; nothing behind it is
    missing = request.max_tokens - drawn.tokens.shape[-1]
    kept = None if drawn.kept is None else pack(drawn.kept & is_valid[..., None])
    return ReplyRollouts(
        pad(
            drawn.tokens.masked_fill(~is_valid, request.ends[-1]),
            (0, missing),
            value=request.ends[-1],
        ),
        pad(drawn.logprobs.masked_fill(~is_valid, 0.0), (0, missing)),
        pad(is_valid, (0, missing)),
        None if kept is None else pad(kept, (0, 0, 0, missing)),
    )
