"""Draw replies from a server that speaks the OpenAI protocol; prompts and replies travel as token ids.

Each prompt is a request, ``POST <base_url>/completions``, with the extensions of vLLM that ids need: a list of ids as the prompt,
and ``return_tokens_as_token_ids``. Nothing but the user's address is called.
"""

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, build_opener
from urllib.request import Request as HttpRequest

import torch
from torch.nn.utils.rnn import pad_sequence

from grpo_pipeline.tasks.dialogue.generation.engine import Drawn, Request
from grpo_pipeline.tasks.dialogue.generation.params import ServerGeneration

PREFIX = "token_id:"
PAUSE_S = 0.5  # before a further try, and twice as long before each one after it
BUSY = 429


class ServerEngine:
    """A server with weights of its own.

    Args:
        params: where it is, and how long it is waited for.
        choices: V; an id of a reply is below it.
    """

    def __init__(self, params: ServerGeneration, *, choices: int) -> None:
        self._params, self._choices = params, choices
        # No proxy of the environment stands between: the address is the user's own.
        self._opener = build_opener(ProxyHandler({}))

    def draw(self, request: Request) -> Drawn:
        """See ``Engine.draw``.

        Raises:
            ConnectionError: if the server does not answer, or answers with an error.
            ValueError: if an answer does not hold G replies of known ids with a log-probability each.
        """
        generator = torch.Generator().manual_seed(request.seed)
        ids, is_token = request.prompts.ids.cpu(), request.prompts.is_token.cpu()
        seeds = torch.randint(2**31 - 1, (len(ids),), generator=generator).tolist()
        bodies = [
            self._body(row[seen].tolist(), seed, request)
            for row, seen, seed in zip(ids, is_token, seeds, strict=True)
        ]
        with ThreadPoolExecutor(self._params.at_once) as pool:
            answers = list(pool.map(self._ask, bodies))
        groups = [self._replies(answer, request) for answer in answers]
        pairs = [pair for group in groups for pair in group]  # P * G of (ids, log-probabilities)
        tokens, logprobs = (
            pad_sequence([torch.tensor(pair[part]) for pair in pairs], batch_first=True)
            for part in (0, 1)
        )  # [P * G, T]
        shape = (len(ids), request.group_size, -1)
        device = request.prompts.ids.device
        return Drawn(tokens.view(shape).to(device), logprobs.view(shape).to(device))

    def _body(self, prompt: list[int], seed: int, request: Request) -> dict[str, Any]:
        return {
            "model": self._params.model,
            "prompt": prompt,
            "n": request.group_size,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "seed": seed,
            "stop_token_ids": list(request.ends[:-1]),
            "logprobs": 1,
            "return_tokens_as_token_ids": True,
            # A server may have defaults of the model's own, which cut or bend the distribution.
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
        }

    def _ask(self, body: Mapping[str, Any]) -> Any:
        """Send a request until it is answered, at most ``retries`` more times."""
        address = f"{self._params.base_url.rstrip('/')}/completions"
        data = json.dumps(body).encode()
        said = ""
        for attempt in range(self._params.retries + 1):
            if attempt:
                time.sleep(PAUSE_S * 2 ** (attempt - 1))
            asked = HttpRequest(address, data, {"Content-Type": "application/json"})
            try:
                with self._opener.open(asked, timeout=self._params.timeout_s) as answer:
                    return json.load(answer)
            except HTTPError as error:
                said = f"status {error.code}: {error.read(300).decode(errors='replace')}"
                if error.code < 500 and error.code != BUSY:
                    break  # the same request would be refused again
            except (URLError, HTTPException, TimeoutError, ConnectionError) as error:
                said = f"{type(error).__name__}: {error}"
            except ValueError as error:
                said = f"no JSON: {error}"
        raise ConnectionError(
            f"{address} must answer within {self._params.timeout_s:g} s, got {' '.join(said.split())}; start the server, or "
            "correct dialogue.replies.generation"
        )

    def _replies(self, answer: Any, request: Request) -> list[tuple[list[int], list[float]]]:
        """Read the ids and log-probabilities of G replies from an answer."""
        try:
            choices = sorted(answer["choices"], key=lambda choice: choice["index"])
            found = [(c["logprobs"]["tokens"], c["logprobs"]["token_logprobs"]) for c in choices]
        except (KeyError, TypeError) as error:
            raise self._refusal("hold choices with logprobs", repr(error)) from error
        if len(found) != request.group_size:
            raise self._refusal(f"hold n = {request.group_size} choices", str(len(found)))
        return [
            (self._ids(tokens, request), self._logprobs(logprobs, tokens))
            for tokens, logprobs in found
        ]

    def _ids(self, tokens: Sequence[str], request: Request) -> list[int]:
        ids = [self._id(token) for token in tokens]
        is_cut = len(ids) == request.max_tokens
        if not 0 < len(ids) <= request.max_tokens or not (ids[-1] in request.ends[:-1] or is_cut):
            raise self._refusal(
                f"hold replies that end with one of the ids {list(request.ends[:-1])} or have {request.max_tokens} tokens",
                f"{len(ids)} tokens, the last {tokens[-1:]}",
            )
        return ids

    def _id(self, token: str) -> int:
        number = str(token).removeprefix(PREFIX)
        if not str(token).startswith(PREFIX) or not number.isdecimal():
            raise self._refusal(f"hold tokens as {PREFIX}<id>", repr(token))
        if int(number) >= self._choices:
            raise self._refusal(f"hold ids below {self._choices}", number)
        return int(number)

    def _logprobs(self, logprobs: Sequence[float | None], tokens: Sequence[str]) -> list[float]:
        known = [float(one) for one in logprobs if isinstance(one, int | float)]
        if len(known) != len(tokens) or len(logprobs) != len(tokens):
            raise self._refusal(
                "hold a log-probability of each token", f"{len(known)} of {len(tokens)}"
            )
        return known

    def _refusal(self, rule: str, got: str) -> ValueError:
        return ValueError(
            f"an answer of {self._params.base_url} must {rule}, got {got}; give the server the model that is trained, and see "
            "docs/dialogue/engines.md for what it must understand"
        )
