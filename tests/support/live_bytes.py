"""Count the bytes of tensors that are alive at a time, to compare the memory of two ways to compute."""

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class LiveBytes(TorchDispatchMode):
    """Inside of it every new storage is counted until it is freed; ``peak`` is the largest sum so far, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._live = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor):
                self._watch(tensor)
        return out

    def _watch(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._known:
            return
        self._known.add(storage._cdata)
        self._live += storage.nbytes()
        self.peak = max(self.peak, self._live)
        weakref.finalize(storage, self._forget, storage._cdata, storage.nbytes())

    def _forget(self, address: int, size: int) -> None:
        self._known.discard(address)
        self._live -= size


def peak_of(function: Any) -> int:
    """Return the peak of a call, in bytes."""
    with LiveBytes() as counter, torch.enable_grad():
        function()
    return counter.peak
