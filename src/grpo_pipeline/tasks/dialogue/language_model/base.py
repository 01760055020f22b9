"""Define the interface of the language models: encode a prompt once, then write or score many replies to it.

Axes: P prompts, G replies of each, T tokens of a reply, D width, S tokens that are read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from grpo_pipeline.core.training.micro_batches import PerPrompt
from grpo_pipeline.tasks.dialogue.language_model import recomputed_layers
from grpo_pipeline.tasks.dialogue.language_model.prompt_text import ModelKind
from grpo_pipeline.tasks.dialogue.language_model.tokens import Tokens
from grpo_pipeline.tasks.dialogue.retriever.towers import Retriever


@dataclass(frozen=True)
class Encoded:
    """Prompts after reading; the first axis of every tensor is the prompts, so that ``core.training.micro_batches`` can cut it.

    Attributes:
        start: int64 [P], the token from which a reply is predicted; it is given, and so no action.
        is_seen: bool [P, S], the places of the memory or the cache that a reply may attend to.
        memory: [P, S, D], the encoder's output (seq2seq), else None.
        cache: "keys/i" and "values/i" -> [P, h, S, d] of decoder layer i (causal), else empty.
        stages: of each prompt where its conversations begin (``episodes.conversations.Stage``); empty without an environment.
        stories: int64 [P, n], numbers of the stories that a retriever chose; None without one.
        prompt: ids and is_token [P, n, S] that were read, for an engine that reads them itself; None without one.
    """

    start: Tensor
    is_seen: Tensor
    memory: Tensor | None = None
    cache: Mapping[str, Tensor] = field(default_factory=dict)
    stages: PerPrompt = field(default_factory=PerPrompt)
    stories: Tensor | None = None
    prompt: Tokens | None = None


# The output embedding and its bias, or None: see ``LanguageModel.head``.
Head = tuple[Tensor, Tensor | None] | None


class Decoding(Protocol):
    """Replies in progress, written a token of each at a time, with a key-value cache."""

    def step(self, tokens: Tensor) -> Tensor:
        """Append tokens, int64 [P, G], and compute the hidden states [P, G, D] that predict the next ones."""
        ...

    def keep(self, prompts: Tensor, places: Tensor) -> None:
        """Keep only the prompts int64 [P'] and, of each, the replies at places int64 [P', G']."""
        ...


class LanguageModel(nn.Module):
    """A language model that answers prompts.

    ``CausalModel`` and ``Seq2SeqModel`` share a prompt among its replies, for networks whose layers they know; ``LibraryCausal``
    and ``LibrarySeq2Seq`` take any network of transformers.

    Args:
        model: of transformers, with a head; without dropout, so that sampling and scoring give the same numbers.
    """

    kind: ModelKind

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.recomputes_layers = False
        # A part of the policy that the task adds; it finds the stories of a prompt.
        self.retriever: Retriever | None = None

    @property
    def choices(self) -> int:
        """V, the number of rows of the output embedding."""
        return len(self.model.get_output_embeddings().weight)

    @property
    def head(self) -> Head:
        """Return the output embedding [V, D] and its bias [V] or None: logits = hidden @ weight.T + bias.

        None for a network whose logits are another function of its states: its ``hidden`` gives the logits.
        """
        layer = self.model.get_output_embeddings()
        return layer.weight, layer.bias

    @property
    def positions(self) -> int | None:
        """Largest number of tokens of a causal network's text, or of a decoder's; None without a limit."""
        found = getattr(self.model.config, "max_position_embeddings", None)
        return None if found is None else int(found)

    def run(self, network: Any, **inputs: Any) -> Any:
        """Run a network of the library, whose layers may compute themselves again in the backward pass."""
        return recomputed_layers.run(network, is_on=self.recomputes_layers, **inputs)

    def encode(self, ids: Tensor, is_token: Tensor) -> Encoded:
        """Read the prompts, int64 and bool [P, n, S], once; with gradient if it is enabled.

        Raises:
            ValueError: if the shapes do not fit the kind, or a prompt is empty (names it).
        """
        raise NotImplementedError

    def hidden(self, encoded: Encoded, replies: Tensor) -> Tensor:
        """Compute the hidden states [P, G, T, D] that predict the tokens of the replies, int64 [P, G, T], all at once.

        State t has seen the start and the tokens before t.
        """
        raise NotImplementedError

    def begin(self, encoded: Encoded, group_size: int) -> Decoding:
        """Begin to write group_size replies to each prompt."""
        raise NotImplementedError

    def check_room(self, encoded: Encoded, max_tokens: int) -> None:
        """Check that replies of max_tokens fit after the prompts.

        Raises:
            ValueError: if a prompt is longer than that allows.
        """


def shifted(encoded: Encoded, replies: Tensor) -> Tensor:
    """Shift the replies for the decoder: the start, then all tokens but the last, [P * G, T]."""
    start = encoded.start[:, None, None].expand(*replies.shape[:2], 1)  # [P, G, 1]
    return torch.cat((start, replies[..., :-1]), dim=-1).flatten(0, 1)  # [P, G, T] -> [P * G, T]


def detached(encoded: Encoded) -> Encoded:
    """Detach the encoding from the graph."""
    cut = _map(encoded, lambda tensor: tensor.detach())
    return replace(cut, stages=encoded.stages, prompt=encoded.prompt)


def choose_prompts(encoded: Encoded, prompts: Tensor) -> Encoded:
    """Select the encoding of the prompts int64 [P'], in that order, to score replies: without their stages and ids."""
    return _map(encoded, lambda tensor: tensor.index_select(0, prompts))


def check_prompts(ids: Tensor, is_token: Tensor) -> None:
    """Check the shapes and that every prompt has a token.

    Raises:
        ValueError: if the shapes are not [P, n, S], or a prompt is empty.
    """
    if ids.dim() != 3 or ids.shape != is_token.shape:
        raise ValueError(
            f"ids and is_token must have one shape [P, n, S], got {tuple(ids.shape)} and {tuple(is_token.shape)}; give the "
            "texts of each prompt an axis of their own"
        )
    empty = (~is_token.any(dim=-1).any(dim=-1)).nonzero().flatten().tolist()
    if empty:
        raise ValueError(
            f"every prompt must have a token, got none in prompt {empty[0]}; leave it out"
        )


def check_causal_prompts(ids: Tensor, is_token: Tensor) -> None:
    """Check the prompts of a causal language model, [P, 1, S], padded on the left.

    Raises:
        ValueError: as ``check_prompts``, and if there are several texts, or padding is not on the left.
    """
    check_prompts(ids, is_token)
    if ids.shape[1] != 1 or not bool(is_token[:, 0, -1].all()):
        raise ValueError(
            f"a causal language model must get one text per prompt, padded on the left, got {ids.shape[1]} texts or padding "
            "at the end; join the stories, and encode with padding: left"
        )


def check_positions(limit: int | None, encoded: Encoded, max_tokens: int) -> None:
    """Check that replies of max_tokens fit after the prompts of a causal language model.

    Raises:
        ValueError: if the longest prompt leaves too little room.
    """
    longest = int(encoded.is_seen.sum(dim=1).max()) + 1
    if limit is not None and longest + max_tokens - 1 > limit:
        raise ValueError(
            f"a prompt must have at most {limit - max_tokens + 1} tokens, so that a reply of {max_tokens} fits into "
            f"{limit} positions, got {longest}; cut the prompt, or allow shorter replies"
        )


def memory_of(encoded: Encoded) -> Tensor:
    """Return the memory [P, S, D] of an encoding.

    Raises:
        ValueError: if it is that of a causal language model.
    """
    if encoded.memory is None:
        raise ValueError(
            "encoded must hold a memory, got that of a causal language model; encode with the language model that decodes"
        )
    return encoded.memory


def logits_of(states: Tensor, head: Head) -> Tensor:
    """Compute logits [..., V], in float32 at least: sums over many choices in half precision are no probabilities.

    Args:
        states: of ``LanguageModel.hidden``, [..., D], or [..., V] where the head is None.
        head: of the language model.
    """
    logits = states if head is None else functional.linear(states, *head)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _map(encoded: Encoded, function: Callable[[Tensor], Tensor]) -> Encoded:
    memory = None if encoded.memory is None else function(encoded.memory)
    cache = {name: function(tensor) for name, tensor in encoded.cache.items()}
    stories = None if encoded.stories is None else function(encoded.stories)
    return Encoded(
        function(encoded.start), function(encoded.is_seen), memory, cache, stories=stories
    )
