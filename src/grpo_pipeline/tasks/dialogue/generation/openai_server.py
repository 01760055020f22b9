"""Draw replies from a server that speaks the OpenAI protocol; prompts and replies travel as token ids.

Each prompt is a request, ``POST <base_url>/completions``, with the extensions of vLLM that ids need: a list of ids as the prompt,
and ``return_tokens_as_token_ids``. Nothing but the user's address is called.
"""

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from grpo_pipeline.tasks.dialogue.generation.engine import Drawn, Ends
from grpo_pipeline.tasks.dialogue.generation.params import ServerGeneration
from grpo_pipeline.tasks.dialogue.json_server import ask
from grpo_pipeline.tasks.dialogue.language_model.params import ReplyParams
from grpo_pipeline.tasks.dialogue.language_model.tokens import Tokens

TOKEN = re.compile(r"token_id:(\d+)")


class ServerEngine:
    """A server with weights of its own.

    Args:
        params: where it is, and how long it is waited for.
        choices: V; an id of a reply is below it.
    """

    def __init__(self, params: ServerGeneration, *, choices: int) -> None:
        self._params, self._choices = params, choices

    def draw(
        self, prompts: Tokens, group_size: int, *, params: ReplyParams, ends: Ends, seed: int
    ) -> Drawn:
        """See ``Engine.draw``.

        Raises:
            ConnectionError: if the server does not answer, or answers with an error.
            ValueError: if an answer does not hold G replies of known ids with a log-probability each.
        """
        asked = {
            "model": self._params.model,
            "n": group_size,
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "stop_token_ids": list(ends[:-1]),
            "logprobs": 1,
            "return_tokens_as_token_ids": True,
            # A server may have defaults of the model's own, which cut or bend the distribution.
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
        }
        ids, is_token = prompts.ids.cpu(), prompts.is_token.cpu()
        generator = torch.Generator().manual_seed(seed)
        seeds = torch.randint(2**31 - 1, (len(ids),), generator=generator).tolist()
        rows = zip(ids, is_token, seeds, strict=True)
        bodies = [asked | {"prompt": row[seen].tolist(), "seed": one} for row, seen, one in rows]
        call = partial(
            ask,
            f"{self._params.base_url.rstrip('/')}/completions",
            timeout_s=self._params.timeout_s,
            retries=self._params.retries,
        )
        with ThreadPoolExecutor(self._params.at_once) as pool:
            answers = list(pool.map(call, bodies))
        # P * G pairs of ids and log-probabilities, of unlike lengths, then both [P * G, T].
        replies = [reply for answer in answers for reply in self._replies(answer, asked)]
        columns = (map(torch.tensor, column) for column in zip(*replies, strict=True))
        tokens, logprobs = (pad_sequence([*column], batch_first=True) for column in columns)
        shape, device = (len(ids), group_size, -1), prompts.ids.device
        return Drawn(tokens.view(shape).to(device), logprobs.view(shape).to(device))

    def _replies(
        self, answer: Any, asked: Mapping[str, Any]
    ) -> Iterator[tuple[list[int], list[float]]]:
        """Yield ids and log-probabilities of G replies, and check them."""
        n, longest, ends = asked["n"], asked["max_tokens"], asked["stop_token_ids"]
        try:
            choices = sorted(answer["choices"], key=lambda choice: choice["index"])
            found = [(c["logprobs"]["tokens"], c["logprobs"]["token_logprobs"]) for c in choices]
        except (KeyError, TypeError) as error:
            raise self._refusal("hold choices with logprobs", repr(error)) from error
        if len(found) != n:
            raise self._refusal(f"hold n = {n} choices", str(len(found)))
        for tokens, logprobs in found:
            ids = [self._id(token) for token in tokens or ()]
            if not 0 < len(ids) <= longest or not (ids[-1] in ends or len(ids) == longest):
                rule = f"hold replies that end with an id of {ends} or have {longest} tokens"
                raise self._refusal(rule, f"{len(ids)} tokens")
            known = [float(one) for one in logprobs or () if isinstance(one, int | float)]
            if not len(known) == len(logprobs or ()) == len(ids):
                rule = "hold a log-probability of each token"
                raise self._refusal(rule, f"{len(known)} of {len(ids)}")
            yield ids, known

    def _id(self, token: object) -> int:
        found = TOKEN.fullmatch(str(token))
        if found is None or int(found[1]) >= self._choices:
            rule = f"hold tokens as token_id:<id>, with ids below {self._choices}"
            raise self._refusal(rule, repr(token))
        return int(found[1])

    def _refusal(self, rule: str, got: str) -> ValueError:
        return ValueError(
            f"an answer of {self._params.base_url} must {rule}, got {got}; see docs/dialogue/engines.md for what the server must "
            "understand"
        )
