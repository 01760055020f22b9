"""Name a reward function with its options, and compute the digest of both."""

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from grpo_pipeline.rewards.functions import load_function

OURS = "grpo_pipeline."


@dataclass(frozen=True)
class Measure:
    """A reward function by its path "package.module:function", with its keyword options (JSON).

    Attributes:
        function: its path.
        options: its keyword options.
        may_hang: whether an option of the user's, such as a regular expression, decides how long it takes.
    """

    function: str
    options: Mapping[str, Any] = field(default_factory=dict)
    may_hang: bool = False

    @property
    def is_built_in(self) -> bool:
        """Check whether the function belongs to the project: a pure one, which never hangs by itself."""
        return self.function.startswith(OURS) and not self.may_hang

    @cached_property
    def digest(self) -> str:
        """Compute the cache key of values: path, options, and the present text of the function's own module.

        Of a reward of the project, the modules of its task that it imports count, too: they are part of what it computes.

        Raises:
            ValueError: as ``load_function``.
        """
        name = getattr(load_function(self.function), "__module__", None) or ""
        task = ".".join(name.split(".")[:3])  # grpo_pipeline.tasks.<task>
        is_ours = self.function.startswith(OURS)
        names = _imported(name, within=f"{task}.") if is_ours else {name}
        texts = [
            Path(file).read_bytes()
            for one in sorted(names)
            if (file := getattr(sys.modules.get(one), "__file__", None))
        ]
        return hashlib.sha256(
            json.dumps([self.function, dict(self.options)], sort_keys=True).encode()
            + b"".join(texts)
        ).hexdigest()


def _imported(name: str, *, within: str) -> set[str]:
    """Find a module and all modules of a package that it imports from, directly or indirectly."""
    found, left = {name}, [name]
    while left:
        values = vars(sys.modules[left.pop()]).values() if left[-1] in sys.modules else ()
        used = {
            getattr(value, "__module__", None) or getattr(value, "__name__", "") for value in values
        }
        new = {one for one in used if isinstance(one, str) and one.startswith(within)} - found
        found |= new
        left += sorted(new)
    return found
