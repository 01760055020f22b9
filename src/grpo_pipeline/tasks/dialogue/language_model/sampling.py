"""Sample G replies per prompt, with the log-probability of every token under the distribution that it was drawn from.

How this differs from public versions:

- The log-probabilities of the draw are kept, not computed again by a second model call.
- They are those of the truncated, renormalised distribution.
- A reply does not depend on which other replies have finished: every reply has its own random number at every step.
"""

import torch
from torch import Tensor

from grpo_pipeline.core.sampling.truncation import action_logprobs, truncated_log_probs
from grpo_pipeline.tasks.dialogue.episodes.conversations import Conversations
from grpo_pipeline.tasks.dialogue.language_model.base import Encoded, LanguageModel, logits_of
from grpo_pipeline.tasks.dialogue.language_model.compaction import Places, compacted
from grpo_pipeline.tasks.dialogue.language_model.packed_masks import pack
from grpo_pipeline.tasks.dialogue.language_model.params import ReplyParams
from grpo_pipeline.tasks.dialogue.language_model.reply_rollouts import ReplyRollouts, is_end
from grpo_pipeline.tasks.dialogue.language_model.token_draw import draw_tokens


@torch.no_grad()
def sample_replies(
    language_model: LanguageModel,
    encoded: Encoded,
    group_size: int,
    *,
    params: ReplyParams,
    ends: tuple[int, ...],
    generator: torch.Generator,
) -> ReplyRollouts:
    """Draw G replies to each prompt (no grad).

        token t ~ softmax(z / temperature) over the tokens that top-k, then top-p, keep

    Each token of a reply takes a random number (``draw_tokens``). The same generator gives the same replies whether or not
    finished ones leave the batch, up to rounding of the logits. With ``encoded.stages`` a reply that ends is answered, and the
    conversation goes on: the answer is read, and is no decision.

    Args:
        language_model: the policy.
        encoded: its encoding of P prompts.
        group_size: G.
        params: how to draw; L = max_tokens.
        ends: (*end_ids, pad_id) of the tokenizer.
        generator: the only source of randomness, on the device of the language model.

    Raises:
        ValueError: if prompt and reply do not fit the language model, or an environment fails.
    """
    language_model.check_room(encoded, params.max_tokens)
    decoding, head = language_model.begin(encoded, group_size), language_model.head
    table = _Table(len(encoded.start), group_size, params, ends, encoded.start)
    if encoded.stages:
        table.conversations = Conversations(
            encoded.stages, group_size, params.max_tokens, encoded.start.device
        )
    tokens = encoded.start[:, None].expand(-1, group_size)  # [P, G]
    for _ in range(params.max_tokens):
        tokens = table.draw(logits_of(decoding.step(tokens), head), generator)  # [P', G']
        unfinished = int(table.is_open.sum())
        if not unfinished:
            break
        # No place moves while all remaining replies are in progress.
        stay = None if unfinished == tokens.numel() else compacted(table.is_open)
        if stay is not None:
            decoding.keep(*stay)
            tokens = stay.take(tokens)
            table.keep(stay)
    if table.conversations is not None:
        table.conversations.check_again()
    return table.rollouts()


def greedy_replies(
    language_model: LanguageModel, encoded: Encoded, *, max_tokens: int, ends: tuple[int, ...]
) -> ReplyRollouts:
    """Write a reply to each prompt from the likeliest token each time, actions [P, 1, L].

    It serves evaluation only: as a "sample" it would have no distribution. Of equal logits the lower id wins.
    """
    params = ReplyParams(
        max_tokens=max_tokens, temperature=1.0, top_k=1, top_p=None, tokens_per_batch=None
    )
    # There is a single choice, so any seed will do.
    generator = torch.Generator(device=encoded.start.device).manual_seed(0)
    return sample_replies(language_model, encoded, 1, params=params, ends=ends, generator=generator)


class _Table:
    """The tokens written so far, and the samples in progress.

    Rows n = p*G + g of the whole batch; ``rows`` [P', G'] are those of the places that are still in it. Columns are kept apart
    until the end: a step writes whole ones.
    """

    def __init__(
        self,
        prompts: int,
        group_size: int,
        params: ReplyParams,
        ends: tuple[int, ...],
        like: Tensor,
    ) -> None:
        self._params, self._ends, self._pad = params, ends, ends[-1]
        self._shape = (prompts, group_size)
        self.conversations: Conversations | None = None
        self.rows = torch.arange(prompts * group_size, device=like.device).view(prompts, group_size)
        self.is_open = torch.ones_like(self.rows, dtype=torch.bool)
        self._columns: dict[str, list[Tensor]] = {
            "actions": [],
            "logprobs": [],
            "is_valid": [],
            "kept": [],
        }

    def draw(self, logits: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the next token of each place from logits [P', G', V], store it and return it [P', G']."""
        p = self._params
        log_probs = truncated_log_probs(
            logits, temperature=p.temperature, top_k=p.top_k, top_p=p.top_p
        )  # [P', G', V]
        # A number for each row of the whole batch, so that no draw depends on the replies that have left.
        uniform = torch.rand(
            self._shape, dtype=torch.float64, device=logits.device, generator=generator
        )  # [P, G]
        tokens = draw_tokens(log_probs, uniform.flatten()[self.rows])
        own = self.is_open
        if self.conversations is not None:
            is_told, said = self.conversations.told(self.rows, len(self._columns["actions"]))
            tokens, own = torch.where(is_told, said, tokens), own & ~is_told
        self._write(tokens, log_probs, own)
        ended = own & is_end(tokens, self._ends)
        self.is_open = self.is_open & ~(ended if self.conversations is None else self._over(ended))
        return tokens

    def _over(self, ended: Tensor) -> Tensor:
        """Have the replies that ended answered, and mark those after which nothing is said, [P', G']."""
        rows = self.rows[ended]  # [n]
        if self.conversations is None or not len(rows):
            return ended
        written = torch.stack(self._columns["actions"], dim=-1).flatten(0, 1)[rows]  # [n, t]
        is_over = self.conversations.hear(rows.tolist(), written, written.shape[1] - 1)
        return ended.masked_scatter(ended, torch.tensor(is_over, device=ended.device))

    def keep(self, stay: Places) -> None:
        """Keep a part of the places."""
        self.rows, self.is_open = stay.take(self.rows), stay.take(self.is_open)

    def rollouts(self) -> ReplyRollouts:
        """Join all written tokens, L wide."""
        actions, logprobs, is_valid = (
            self._stacked(name) for name in ("actions", "logprobs", "is_valid")
        )
        return ReplyRollouts(
            actions, logprobs, is_valid, self._stacked("kept") if self._columns["kept"] else None
        )

    def _write(self, tokens: Tensor, log_probs: Tensor, own: Tensor) -> None:
        """Store a column of each kind; finished replies that are still in the batch get padding.

        Args:
            tokens: int64 [P', G'].
            log_probs: [P', G', V].
            own: bool [P', G'], where the token was drawn.
        """
        self._add("actions", tokens.masked_fill(~self.is_open, self._pad))
        self._add("logprobs", action_logprobs(log_probs, tokens).masked_fill(~own, 0.0))
        self._add("is_valid", own)
        if self._params.top_k is not None or self._params.top_p is not None:
            self._add("kept", pack((log_probs > -float("inf")) & own[..., None]))

    def _add(self, name: str, column: Tensor) -> None:
        if self.rows.shape != self._shape:
            # From the remaining places, [P', G', ...], back to the whole batch, [P, G, ...]; replies that have left get padding.
            whole = column.new_full((*self._shape, *column.shape[2:]), self._empty(name))
            column = (
                whole.flatten(0, 1)
                .index_copy_(0, self.rows.flatten(), column.flatten(0, 1))
                .view_as(whole)
            )
        self._columns[name].append(column)

    def _stacked(self, name: str) -> Tensor:
        """Stack the columns as [P, G, L, ...]."""
        written = torch.stack(self._columns[name], dim=2)  # [P, G, written, ...]
        missing = self._params.max_tokens - written.shape[2]
        if not missing:
            return written
        rest = written.new_full((*self._shape, missing, *written.shape[3:]), self._empty(name))
        return torch.cat((written, rest), dim=2)

    def _empty(self, name: str) -> int:
        return self._pad if name == "actions" else 0
