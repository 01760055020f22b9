"""A small server of the OpenAI protocol on loopback: it completes token ids, by a loop without cache and batch."""

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

Body = dict[str, Any]


def complete(model: Any, body: Body) -> Body:
    """Draw n completions of a prompt, token by token, each from a stream of its own."""
    choices = [_choice(model, body, number) for number in range(body["n"])]
    return {"object": "text_completion", "model": body["model"], "choices": choices[::-1]}  # in another order than asked


@torch.no_grad()
def _choice(model: Any, body: Body, number: int) -> Body:
    generator = torch.Generator().manual_seed(body["seed"] + number)
    ids, logprobs = list(body["prompt"]), []
    while len(logprobs) < body["max_tokens"]:
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].float()
        log_probs = (logits / body["temperature"]).log_softmax(-1)
        ids.append(int(torch.multinomial(log_probs.exp(), 1, generator=generator)))
        logprobs.append(float(log_probs[ids[-1]]))
        if ids[-1] in body["stop_token_ids"]:
            break
    tokens = [f"token_id:{token}" for token in ids[len(body["prompt"]) :]]
    return {"index": number, "text": "", "logprobs": {"tokens": tokens, "token_logprobs": logprobs}}


class TinyServer:
    """Serve a network while the ``with`` block runs.

    Args:
        model: a causal network of transformers.
        change: alters an answer; gets it with the number of the request, and returns an answer, a status, or seconds to wait.
    """

    def __init__(self, model: Any, change: Callable[[Body, int], Body | int | float | bytes] | None = None) -> None:
        self.asked = asked = list[Body]()
        self.paths = paths = list[str]()
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:  # one network, one answer at a time
                    number = len(asked)
                    asked.append(body)
                    paths.append(self.path)
                    answer: Any = complete(model, body)
                found = answer if change is None else change(answer, number)
                if isinstance(found, float):
                    time.sleep(found)
                status = found if isinstance(found, int) else 200
                content = found if isinstance(found, bytes) else json.dumps(found).encode()
                with suppress(ConnectionError):  # who asked waits no longer
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)

            def log_message(self, *args: Any) -> None:
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> "TinyServer":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
