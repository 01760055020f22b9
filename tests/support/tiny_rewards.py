"""Rewards that behave as the text tells them to."""

import os
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


def slow(replies, answers, *, seconds):
    """Take some time for each call."""
    time.sleep(seconds)
    return [1.0] * len(replies)


def threads(replies, answers):
    """Return how many threads a numerical library may start here."""
    return [float(os.environ["OMP_NUM_THREADS"])] * len(replies)


def process(replies, answers):
    """Return who measures."""
    return [float(os.getpid())] * len(replies)


def one_argument(replies):
    """Take too little."""
    return [0.0] * len(replies)


async def later(replies, answers):
    """Promise numbers."""
    return [0.0] * len(replies)


NOT_A_FUNCTION = 3
