"""Random streams: one generator per step for training, and the capture of every global stream for a checkpoint."""

import base64
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def step_generator(seed: int, step: int, *, stream: int = 0, device: torch.device | str = "cpu") -> torch.Generator:
    """Return the generator of one step: a function of (seed, step, stream) alone, so that a resumed run draws the same.

    Args:
        seed: seed of the run, at least 0.
        step: number of the batch, at least 0.
        stream: tells several generators of one step apart.
        device: device of the generator.
    """
    mixed = int(np.random.SeedSequence([seed, step, stream]).generate_state(1, np.uint64)[0]) >> 1
    return torch.Generator(device=device).manual_seed(mixed)


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
        "numpy": {**numpy, "state": {"key": _pack(numpy["state"]["key"]), "pos": numpy["state"]["pos"]}},
        "python": {"version": version, "internal": _pack(internal), "gauss_next": gauss_next},
        "generators": {name: _encode(generator.get_state()) for name, generator in (generators or {}).items()},
    }


def restore_rng(rng: Mapping[str, Any], generators: Mapping[str, torch.Generator] | None = None) -> None:
    """Set every random stream to a captured state.

    Raises:
        ValueError: if the named generators are not those that were captured.
    """
    given, stored = sorted(generators or {}), sorted(rng["generators"])
    if given != stored:
        raise ValueError(f"generators must be those of the checkpoint {stored}, got {given}; pass the same names")
    torch.set_rng_state(_decode(rng["torch"]))
    if rng["torch_cuda"] and torch.cuda.is_available() and torch.cuda.device_count() == len(rng["torch_cuda"]):
        torch.cuda.set_rng_state_all([_decode(state) for state in rng["torch_cuda"]])
    n, p = rng["numpy"], rng["python"]
    key = {"key": _unpack(n["state"]["key"]), "pos": n["state"]["pos"]}
    np.random.set_state({**n, "state": key})  # noqa: NPY002
    random.setstate((p["version"], tuple(_unpack(p["internal"]).tolist()), p["gauss_next"]))
    for name, generator in (generators or {}).items():
        generator.set_state(_decode(rng["generators"][name]))


def _pack(words: Sequence[int] | NDArray[np.uint32]) -> str:
    """Encode 32-bit words, little-endian, as base64."""
    return base64.b64encode(np.asarray(words, dtype="<u4").tobytes()).decode("ascii")


def _unpack(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(base64.b64decode(text), dtype="<u4").astype(np.uint32)


def _encode(state: torch.Tensor) -> str:
    return base64.b64encode(state.cpu().numpy().tobytes()).decode("ascii")


def _decode(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
