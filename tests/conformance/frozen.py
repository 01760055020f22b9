"""Answers of the oracles, kept as JSON: exact float64, readable without their libraries."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from outcomes import Outcome
from torch import Tensor

FOLDER = Path(__file__).resolve().parent / "fixtures"


@dataclass(frozen=True)
class Fixture:
    """The frozen outcomes of one library.

    Attributes:
        library: the distribution's name.
        version: of the library.
        torch: the version of torch it ran on.
        digests: set of cases -> what ``cases.digest`` says of the frozen ones.
        outcomes: "key, set of cases" -> one outcome per frozen case.
    """

    library: str
    version: str
    torch: str
    digests: Mapping[str, str]
    outcomes: Mapping[str, Sequence[Outcome]]


def path(library: str) -> Path:
    """Return where a library's fixture lies."""
    return FOLDER / f"{library}.json"


def save(fixture: Fixture) -> None:
    """Write a fixture, one line per outcome, so that a difference between two versions can be read."""
    rows = [
        f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(_encode(outcome)) for outcome in outcomes) + "\n]"
        for name, outcomes in fixture.outcomes.items()
    ]
    head = json.dumps({name: value for name, value in vars(fixture).items() if name != "outcomes"})
    text = f'{{"about": {head},\n"outcomes": {{\n' + ",\n".join(rows) + "\n}}\n"
    path(fixture.library).write_text(text, encoding="utf-8")


def load(library: str) -> Fixture:
    """Read a library's fixture."""
    encoded = json.loads(path(library).read_text(encoding="utf-8"))
    outcomes = {name: [_decode(*outcome) for outcome in outcomes] for name, outcomes in encoded["outcomes"].items()}
    return Fixture(outcomes=outcomes, **encoded["about"])


def _encode(outcome: Outcome) -> list[Any]:
    parts = [outcome.value] if outcome.gradient is None else [outcome.value, outcome.gradient]
    return [list(outcome.value.shape), *(base64.b64encode(part.numpy().astype("<f8").tobytes()).decode() for part in parts)]


def _decode(shape: Sequence[int], value: str, gradient: str | None = None) -> Outcome:
    return Outcome(_numbers(value).reshape(tuple(shape)), None if gradient is None else _numbers(gradient))


def _numbers(text: str) -> Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), dtype="<f8").astype(np.float64))
