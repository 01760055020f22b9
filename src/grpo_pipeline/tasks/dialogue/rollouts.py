"""Write replies: G samples of each prompt, with the log-probability of every token under the distribution it was drawn from.

How this differs from public versions: the log-probabilities are kept from sampling and not computed again by a second model
call; they are those of the truncated, renormalised distribution; the draw of a reply does not depend on which other replies
have finished, since every reply has its own noise at every step.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from grpo_pipeline.core.sampling import gumbel_noise
from grpo_pipeline.core.truncation import action_logprobs, truncated_log_probs
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.dialogue.compaction import Places, compacted
from grpo_pipeline.tasks.dialogue.kept_tokens import pack
from grpo_pipeline.tasks.dialogue.reader import Encoded, Reader
from grpo_pipeline.tasks.dialogue.reader_params import ReplyParams


@dataclass(frozen=True)
class ReplyRollouts(Rollouts):
    """Replies as they were drawn.

    Actions are token ids, the end among them; after it they are ``pad_id``, and logprobs are 0. A reply without an end was cut
    at L tokens.

    Attributes:
        kept: uint8 [P, G, L, ceil(V / 8)], the tokens that top-k and top-p left at each decision, packed (``kept_tokens``);
            None where all were left.
    """

    kept: Tensor | None = None


@torch.no_grad()
def sample_replies(
    reader: Reader,
    encoded: Encoded,
    group_size: int,
    *,
    params: ReplyParams,
    ends: tuple[int, int],
    generator: torch.Generator,
) -> ReplyRollouts:
    """Draw G replies to each prompt (no grad).

        token t ~ softmax(z / temperature) over what top-k, then top-p, keep

    Drawn by the Gumbel-max trick: Maddison et al., arXiv 1411.0030, section 2. The same generator gives the same replies
    whether or not finished ones leave the batch, but for logits that differ in their last bits where the batch is smaller.

    Args:
        reader: the policy.
        encoded: its reading of P prompts.
        group_size: G.
        params: how to draw; L = max_tokens.
        ends: (eos_id, pad_id) of the tokenizer.
        generator: the only source of randomness, on the device of the reader.

    Raises:
        ValueError: if prompt and reply do not fit the reader.
    """
    reader.check_room(encoded, params.max_tokens)
    decoding = reader.begin(encoded, group_size)
    table = _Table(len(encoded.start), group_size, reader.choices, params, ends, encoded.start)
    tokens = encoded.start[:, None].expand(-1, group_size)
    for t in range(params.max_tokens):
        logits = _logits(reader, decoding.step(tokens))
        tokens = table.draw(t, logits, generator)
        if not bool(table.is_open.any()):
            break
        stay = compacted(table.is_open)
        if stay is not None:
            decoding.keep(*stay)
            tokens = stay.take(tokens)
            table.keep(stay)
    return table.rollouts()


def greedy_replies(reader: Reader, encoded: Encoded, *, max_tokens: int, ends: tuple[int, int]) -> ReplyRollouts:
    """Write the one reply to each prompt that takes the likeliest token each time, actions [P, 1, L].

    For evaluation: as a "sample" it would have no distribution. Equal logits: the lower id.
    """
    params = ReplyParams(max_tokens=max_tokens, temperature=1.0, top_k=1, top_p=None, tokens_per_batch=None)
    generator = torch.Generator(device=encoded.start.device).manual_seed(0)  # draws from one choice: any seed does
    return sample_replies(reader, encoded, 1, params=params, ends=ends, generator=generator)


class _Table:
    """What has been written so far, and which part of it is still being written.

    Rows n = p*G + g of the whole batch; ``rows`` [P', G'] are those of the places that are still in it.
    """

    def __init__(
        self, prompts: int, group_size: int, choices: int, params: ReplyParams, ends: tuple[int, int], like: Tensor
    ) -> None:
        self._params, (self._eos, pad) = params, ends
        self._shape = (prompts, group_size, params.max_tokens)
        size, device = (prompts * group_size, params.max_tokens), like.device
        self._noise_shape = (size[0], choices)
        self.rows = torch.arange(size[0], device=device).view(prompts, group_size)
        self.is_open = torch.ones_like(self.rows, dtype=torch.bool)
        self._actions = torch.full(size, pad, dtype=torch.int64, device=device)
        self._logprobs: Tensor | None = None
        self._is_valid = torch.zeros(size, dtype=torch.bool, device=device)
        self._kept: Tensor | None = None

    def draw(self, t: int, logits: Tensor, generator: torch.Generator) -> Tensor:
        """Draw token t of each place from logits [P', G', V], write it down and return it [P', G']."""
        p = self._params
        log_probs = truncated_log_probs(logits, temperature=p.temperature, top_k=p.top_k, top_p=p.top_p)
        noise = gumbel_noise(self._noise_shape, like=log_probs, generator=generator)[self.rows]
        tokens = (log_probs + noise).argmax(dim=-1)
        self._write(t, tokens, log_probs)
        self.is_open = self.is_open & (tokens != self._eos)
        return tokens

    def keep(self, stay: Places) -> None:
        """Go on with a part of the places."""
        self.rows, self.is_open = stay.take(self.rows), stay.take(self.is_open)

    def rollouts(self) -> ReplyRollouts:
        """Return everything that was written."""
        assert self._logprobs is not None  # there is at least one step
        kept = None if self._kept is None else self._kept.view(*self._shape, -1)
        return ReplyRollouts(
            self._actions.view(self._shape), self._logprobs.view(self._shape), self._is_valid.view(self._shape), kept
        )

    def _write(self, t: int, tokens: Tensor, log_probs: Tensor) -> None:
        if self._logprobs is None:
            self._logprobs = log_probs.new_zeros(self._is_valid.shape)
        rows = self.rows[self.is_open]
        self._actions[rows, t] = tokens[self.is_open]
        self._logprobs[rows, t] = action_logprobs(log_probs, tokens)[self.is_open]
        self._is_valid[rows, t] = True
        if self._params.top_k is not None or self._params.top_p is not None:
            packed = pack(log_probs[self.is_open] > -float("inf"))
            if self._kept is None:
                self._kept = packed.new_zeros(*self._is_valid.shape, packed.shape[-1])
            self._kept[rows, t] = packed


def _logits(reader: Reader, hidden: Tensor) -> Tensor:
    """Return logits [..., V], in float32 at least: a sum over many choices in half precision is not a probability."""
    weight, bias = reader.head
    logits = functional.linear(hidden, weight, bias)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
