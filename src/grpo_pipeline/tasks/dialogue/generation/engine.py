"""Define what an engine is asked and answers, and turn its answer into rollouts.

Axes: P prompts, S tokens of a prompt, G replies of each, L longest reply, V choices.
"""

from typing import NamedTuple, Protocol

from torch import Tensor
from torch.nn.functional import pad

from grpo_pipeline.tasks.dialogue.language_model.packed_masks import pack
from grpo_pipeline.tasks.dialogue.language_model.params import ReplyParams
from grpo_pipeline.tasks.dialogue.language_model.reply_rollouts import ReplyRollouts, is_end
from grpo_pipeline.tasks.dialogue.language_model.tokens import Tokens

Ends = tuple[int, ...]


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

    def draw(
        self, prompts: Tokens, group_size: int, *, params: ReplyParams, ends: Ends, seed: int
    ) -> Drawn:
        """Draw G replies to each prompt, ids and is_token [P, S] padded on the left; ``seed``, below 2^31, alone decides them.

        ``params`` says how, with L = max_tokens; ``ends`` are (*end_ids, pad_id) of the tokenizer.
        """
        ...


def rollouts_of(drawn: Drawn, *, max_tokens: int, ends: Ends) -> ReplyRollouts:
    """Mark the decisions of an engine's replies, up to the first end of each, and pad them to L tokens."""
    ended = is_end(drawn.tokens, ends)  # [P, G, T]
    is_valid = (ended.cumsum(-1) - ended.long()) == 0  # an end is a decision; nothing behind it is
    room = (0, max_tokens - ended.shape[-1])
    kept = None if drawn.kept is None else pack(drawn.kept & is_valid[..., None])
    return ReplyRollouts(
        pad(drawn.tokens.masked_fill(~is_valid, ends[-1]), room, value=ends[-1]),
        pad(drawn.logprobs.masked_fill(~is_valid, 0.0), room),
        pad(is_valid, room),
        None if kept is None else pad(kept, (0, 0, *room)),
    )
