"""Find which datasets each dataset of a pipeline is made from, by following the graph."""

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from kedro.pipeline import Pipeline

from grpo_pipeline.core.storage.content_digest import LENGTH
from grpo_pipeline.runs.artefact_records import PARAMETER

# Options of resuming do not affect the result; `parameters` are all parameters, for the page.
NOT_SOURCES = ("params:resume", "parameters")


def sources_of(pipeline: Pipeline, *, stored: Collection[str]) -> dict[str, frozenset[str]]:
    """Map dataset -> its nearest stored sources and parameters, through all datasets in memory."""
    found: dict[str, frozenset[str]] = {}
    for node in pipeline.nodes:  # in the order in which they can run
        made_from: set[str] = set()
        for name in node.inputs:
            if name in stored or name.startswith(PARAMETER):
                made_from.add(name)
            else:
                made_from |= found.get(name, frozenset())
        found |= dict.fromkeys(node.outputs, frozenset(made_from - set(NOT_SOURCES)))
    return found


def parameter_digest(value: Any) -> str:
    """Compute a short digest of a parameter's value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=_plain).encode()).hexdigest()[
        :LENGTH
    ]


def _plain(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if dump else repr(value)


def closure(
    nearest: Collection[str], digests: Mapping[str, str], sources: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """Collect name -> digest of the nearest sources and of all their sources.

    Args:
        nearest: names.
        digests: name -> digest; a name without one is left out.
        sources: name -> the closure of a stored dataset.
    """
    found: dict[str, str] = {}
    for name in nearest:
        found |= sources.get(name, {})
    return dict(
        sorted((found | {name: digests[name] for name in nearest if name in digests}).items())
    )
