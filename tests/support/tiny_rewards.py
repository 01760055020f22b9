"""Rewards that behave as the text tells them to."""

import asyncio
import math
import os
import random
import subprocess
import sys
import time
import zlib


def scripted(replies, answers):
    """Score a reply by its length and number of answers, or misbehave as its first word says."""
    if "short" in replies:
        return []
    return [_one(reply, len(texts)) for reply, texts in zip(replies, answers, strict=True)]


def _one(reply, count):
    match reply.partition(" ")[0]:
        case "raise":
            raise KeyError(reply)
        case "exit":
            sys.exit(3)
        case "nan" | "inf":
            return float(reply.partition(" ")[0])
        case "text":
            return "0.5"
        case "hang":
            time.sleep(1000)
        case "die":
            os._exit(3)
        case "children":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
            print(child.pid, file=open(reply.partition(" ")[2], "w"), flush=True)  # noqa: SIM115
            time.sleep(1000)
        case "print":
            print("this is no JSON", flush=True)
    return len(reply) + count / 7


def distinct(replies, answers):
    """Score a reply by its bytes: other replies, other rewards."""
    return [zlib.crc32(reply.encode()) / 2**32 for reply in replies]


def lengths_of_both(prompts, completions):
    """Score a reply by its length, and by 100 times that of its prompt."""
    return [len(reply) + 100.0 * len(prompt) for prompt, reply in zip(prompts, completions, strict=True)]


def slow(replies, answers, *, seconds):
    """Take some time for each call."""
    time.sleep(seconds)
    return [1.0] * len(replies)


def changing(replies, answers, *, kind, seen=[]):  # noqa: B006 - a state between calls is what is wrong with it
    """Give a reply another value the next time, for one of the reasons that there are."""
    seen.append(len(replies))
    match kind:
        case "clock":
            return [float(time.time_ns() % 10**9) for _ in replies]
        case "draw":
            return [random.random() for _ in replies]
        case "company":
            return [place / len(replies) for place in range(len(replies))]
        case "count":
            return [float(sum(seen) + os.getpid()) for _ in replies]
        case "nan":
            return [math.nan if place else 1.0 for place in range(len(replies))]
        case "hash":
            return [float(hash(reply)) for reply in replies]
        case "late":
            return [float(max(len(seen) - 20, 0)) for _ in replies]


def loud(replies, answers, *, lines):
    """Print much."""
    for _ in range(lines):
        print("reward prints", end=" ")
    return [1.0] * len(replies)


def threads(replies, answers):
    """Return how many threads a numerical library may start here."""
    return [float(os.environ["OMP_NUM_THREADS"])] * len(replies)


def process(replies, answers):
    """Return who measures."""
    return [float(os.getpid())] * len(replies)


def nothing_taken():
    """Take too little."""
    return []


def a_column_by_its_name(replies, *, level):
    """Ask for what nobody gives."""
    return [0.0] * len(replies)


def columns_first(columns, replies):
    """Take them in the wrong order."""
    return [0.0] * len(replies)


def levels(replies, *, prompts, answers, columns, factor=1.0):
    """Score a reply by what its own row says, or by 0 where it says nothing."""
    rows = zip(replies, prompts, answers, columns["level"], strict=True)
    return [factor * (len(r) + 10 * len(p) + 100 * len(a) + 1000 * (level or 0)) for r, p, a, level in rows]


async def later(replies, answers, *, seconds):
    """Wait for all replies at once, and count their letters."""

    async def one(reply):
        await asyncio.sleep(seconds if len(replies) > 1 else 0)
        if reply == "no":
            raise ValueError("no")
        return len(reply)

    return await asyncio.gather(*map(one, replies))


NOT_A_FUNCTION = 3


def as_trl(prompts, completions, **kwargs):
    assert kwargs["references"] is kwargs["answers"]
    return [len(p) + 10 * len(c) + 100 * len(r) for p, c, r in zip(prompts, completions, kwargs["references"], strict=True)]


def completions_alone(completions, answers, scale=1.0):
    return [scale * (c == a[0]) for c, a in zip(completions, answers, strict=True)]


def references_first(references, subjects):
    return [0.0 for _ in subjects]


def prompts_and_texts(question, responses):
    return [0.0 for _ in responses]


def other_columns(completions, ground_truth):
    return [float(c == t) for c, t in zip(completions, ground_truth, strict=True)]


def by_letters(replies, answers):
    """Score a reply by its letters, so that two different ones hardly ever earn the same."""
    return [sum(place * ord(letter) for place, letter in enumerate(reply, 1)) % 97 / 97 for reply in replies]


def keep(word, kept=[]):  # noqa: B006 - what is kept between calls is what is tested
    """Say what this process has been given so far."""
    kept.append(word)
    return kept
