"""Ask a server of the user's own over HTTP: JSON there, JSON back, a bounded number of tries."""

import json
import time
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

PAUSE_S = 0.5  # before a further try, and twice as long before each one after it
BUSY = 429


def ask(
    address: str,
    body: Mapping[str, Any],
    *,
    timeout_s: float,
    retries: int,
    headers: Mapping[str, str] | None = None,
) -> Any:
    """Send a request until it is answered.

    Args:
        address: where to; nothing but it is called, and no proxy of the environment stands between.
        body: of the request.
        timeout_s: seconds that an answer may take.
        retries: further tries after the first, each after a longer pause; not where the server refuses the request itself.
        headers: beside the type of the content.

    Raises:
        ConnectionError: saying what the last try got.
    """
    data = json.dumps(body).encode()
    told = {"Content-Type": "application/json", **(headers or {})}
    opener = build_opener(ProxyHandler({}))
    said = ""
    for attempt in range(retries + 1):
        if attempt:
            time.sleep(PAUSE_S * 2 ** (attempt - 1))
        try:
            with opener.open(Request(address, data, told), timeout=timeout_s) as answer:
                return json.load(answer)
        except HTTPError as error:
            said = f"status {error.code}: {error.read(300).decode(errors='replace')}"
            if error.code < 500 and error.code != BUSY:
                break  # the same request would be refused again
        except (OSError, HTTPException, ValueError) as error:  # no answer in time, or no JSON
            said = f"{type(error).__name__}: {error}"
    raise ConnectionError(
        f"{address} must answer within {timeout_s:g} s, got {' '.join(said.split())}; start the server, or correct its address"
    )
