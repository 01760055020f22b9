"""Score replies by a language model behind a server of the OpenAI protocol: a judge."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from grpo_pipeline.tasks.dialogue.json_server import ask
from grpo_pipeline.tasks.dialogue.scores.number import last_number

INSTRUCTION = (
    "Grade the reply to the prompt from 0 (useless) to 10 (perfect). Answer with the number alone."
)
MOST_TOKENS = 512  # of the judge's answer


def judge(
    replies: Sequence[str],
    *,
    prompts: Sequence[str],
    answers: Sequence[Sequence[str]],
    url: str,
    model: str,
    instruction: str = INSTRUCTION,
    best: float = 10.0,
    at_once: int = 8,
    retries: int = 3,
    timeout_seconds: float = 30.0,
    key_variable: str = "",
) -> list[float]:
    """Score every reply by the last number that the judge answers, divided by its best grade.

    The judge is asked at temperature 0, since a reward must give one value for one input.

    Args:
        replies: N texts.
        prompts: N texts, what the model read.
        answers: N lists of right answers, which the judge is shown; empty ones are not mentioned.
        url: of the server, ``http://127.0.0.1:8000/v1``; nothing else is called.
        model: name of the judge there.
        instruction: what the judge is told first.
        best: the grade that earns 1.
        at_once: requests at the same time, in each process of the pool.
        retries: further tries of a request.
        timeout_seconds: for an answer; ``reward_pool.timeout_seconds`` must allow for those of a whole chunk.
        key_variable: environment variable with the key of the server; empty for none.

    Returns:
        N numbers from 0 to 1.

    Raises:
        ConnectionError: if the judge does not answer a request.
        ValueError: if its grade is no number in the range.
    """
    key = os.environ.get(key_variable, "") if key_variable else ""
    headers = {"Authorization": f"Bearer {key}"} if key else {}

    def grade(reply: str, prompt: str, right: Sequence[str]) -> float:
        messages = [
            {"role": "system", "content": instruction},
            {"role": "user", "content": _case(reply, prompt, right)},
        ]
        answer = ask(
            f"{url.rstrip('/')}/chat/completions",
            {"model": model, "messages": messages, "temperature": 0, "max_tokens": MOST_TOKENS},
            timeout_s=timeout_seconds,
            retries=retries,
            headers=headers,
        )
        return _share(answer["choices"][0]["message"]["content"], best=best)

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(grade, replies, prompts, answers))


def _case(reply: str, prompt: str, right: Sequence[str]) -> str:
    """Write what the judge is to grade."""
    told = [f"Prompt:\n{prompt}"]
    if right:
        told.append("Right answer:\n" + "\nor: ".join(right))
    return "\n\n".join([*told, f"Reply:\n{reply}"])


def _share(text: str, *, best: float) -> float:
    """Read the grade of an answer as a share of the best one."""
    found = last_number(text)
    if found is None or not 0 <= found <= best:
        raise ValueError(f"the judge must answer a number from 0 to {best:g}, got {text!r}")
    return float(found) / best
