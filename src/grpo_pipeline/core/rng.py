"""Make the random streams of a run: a generator per purpose and place, and the capture of all global streams for a checkpoint.

Two streams that share a key draw the same numbers, which couples what should be independent (which groups are replayed and what
is drawn again in their place, say). Here a key is (seed, name, places), each of fixed width, so that two keys are equal only if
all three are; a name stands once in ``Stream``. How this differs from numbered streams: 21 + n for the n-th retry meets 31.
"""

import base64
import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum, unique
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

WORD = 32


@unique
class Stream(StrEnum):
    """Uses of random numbers, each with a stream of its own; the places beside each name tell its draws apart.

    A new stream is one line here. Of a task's own streams each task has one; two tasks never draw in one run.
    """

    # Training: (step), retries (step, attempt), order (epoch).
    ROLLOUTS = "rollouts"
    RETRIES = "retries"
    REPLAY = "replay"
    BATCH = "batch"
    ORDER = "order"
    # Around training: (batch), choices of rows ().
    SAMPLE_TABLE = "sample_table"
    PREDICTED_SAMPLES = "predicted_samples"
    SHOWCASE_ROWS = "showcase_rows"
    SHOWN_SAMPLES = "shown_samples"
    AUDIT_ROWS = "audit_rows"
    BOOTSTRAP = "bootstrap"
    DRAWINGS = "drawings"
    # A task's own: (batch) or (); splits (), folds (kind, places), predictions (content, part).
    SPLIT = "split"
    FOLDS = "folds"
    VALIDATION = "validation"
    EVALUATION = "evaluation"
    EVALUATION_ROWS = "evaluation_rows"
    COMPARED_ROWS = "compared_rows"
    SHOWCASE = "showcase"
    FRAME_ROWS = "frame_rows"
    FRAMES = "frames"
    CALIBRATION = "calibration"
    INPUTS = "inputs"
    PREDICTION = "prediction"
    BASELINES = "baselines"
    AUDIT = "audit"
    AUDIT_BASELINES = "audit_baselines"


def stream_key(seed: int, stream: Stream, *places: int) -> tuple[int, ...]:
    """Return the key of a stream: 32-bit words of the seed (2), of the name's hash (2), the number of places and each place (2).

    Raises:
        ValueError: for a seed or a place outside [0, 2^64).
    """
    name = hashlib.sha256(Stream(stream).value.encode()).digest()
    words = [*_words("seed", seed), *np.frombuffer(name[:8], "<u4").tolist(), len(places)]
    return tuple(words + [word for place in places for word in _words("place", place)])


def seed_sequence(seed: int, stream: Stream, *places: int) -> np.random.SeedSequence:
    """Return numpy's seed sequence of a stream; see ``stream_key``."""
    return np.random.SeedSequence(stream_key(seed, stream, *places))


def numpy_generator(seed: int, stream: Stream, *places: int) -> np.random.Generator:
    """Return numpy's generator of a stream; see ``stream_key``."""
    return np.random.default_rng(seed_sequence(seed, stream, *places))


def step_generator(
    seed: int, *places: int, stream: Stream = Stream.ROLLOUTS, device: torch.device | str = "cpu"
) -> torch.Generator:
    """Return torch's generator of a stream: a function of (seed, stream, places) alone, so that a resumed run draws the same.

    Args:
        seed: seed of the run.
        places: what tells the draws of one stream apart, such as the number of the batch.
        stream: what is drawn.
        device: device of the generator.

    Raises:
        ValueError: as ``stream_key``.
    """
    mixed = int(seed_sequence(seed, stream, *places).generate_state(1, np.uint64)[0]) >> 1
    return torch.Generator(device=device).manual_seed(mixed)


@contextmanager
def drawn_on_the_cpu(seed: int) -> Iterator[None]:
    """Seed the CPU's global stream, from which modules draw their first weights, and put it back afterwards.

    ``torch.manual_seed`` would seed every CUDA device, too, and nothing would put that back.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def capture_rng(generators: Mapping[str, torch.Generator] | None = None) -> dict[str, Any]:
    """Return the state of every random stream as JSON values.

    Covers torch's CPU stream, torch's CUDA streams where CUDA is in use, numpy's and Python's global ones, and the
    named generators.
    """
    numpy = np.random.get_state(legacy=False)  # noqa: NPY002 the global stream is what libraries use
    version, internal, gauss_next = random.getstate()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        "torch": _encode(torch.get_rng_state()),
        "torch_cuda": [_encode(state) for state in cuda],
        "numpy": {
            **numpy,
            "state": {"key": _pack(numpy["state"]["key"]), "pos": numpy["state"]["pos"]},
        },
        "python": {"version": version, "internal": _pack(internal), "gauss_next": gauss_next},
        "generators": {
            name: _encode(generator.get_state()) for name, generator in (generators or {}).items()
        },
    }


def restore_rng(
    rng: Mapping[str, Any], generators: Mapping[str, torch.Generator] | None = None
) -> None:
    """Set every random stream to a captured state.

    Raises:
        ValueError: if the named generators are not those that were captured.
    """
    given, stored = sorted(generators or {}), sorted(rng["generators"])
    if given != stored:
        raise ValueError(
            f"generators must be those of the checkpoint {stored}, got {given}; pass the same names"
        )
    torch.set_rng_state(_decode(rng["torch"]))
    if (
        rng["torch_cuda"]
        and torch.cuda.is_available()
        and torch.cuda.device_count() == len(rng["torch_cuda"])
    ):
        torch.cuda.set_rng_state_all([_decode(state) for state in rng["torch_cuda"]])
    n, p = rng["numpy"], rng["python"]
    key = {"key": _unpack(n["state"]["key"]), "pos": n["state"]["pos"]}
    np.random.set_state({**n, "state": key})  # noqa: NPY002
    random.setstate((p["version"], tuple(_unpack(p["internal"]).tolist()), p["gauss_next"]))
    for name, generator in (generators or {}).items():
        generator.set_state(_decode(rng["generators"][name]))


def _words(what: str, value: int) -> list[int]:
    if not 0 <= value < 2 ** (2 * WORD):
        raise ValueError(
            f"{what} of a random stream must be within [0, 2^64), got {value}; give a number that is not negative"
        )
    return [int(value) & (2**WORD - 1), int(value) >> WORD]


def _pack(words: Sequence[int] | NDArray[np.uint32]) -> str:
    """Encode 32-bit words, little-endian, as base64."""
    return base64.b64encode(np.asarray(words, dtype="<u4").tobytes()).decode("ascii")


def _unpack(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(base64.b64decode(text), dtype="<u4").astype(np.uint32)


def _encode(state: torch.Tensor) -> str:
    return base64.b64encode(state.cpu().numpy().tobytes()).decode("ascii")


def _decode(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
