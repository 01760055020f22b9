"""Print the reward audit on the terminal: each policy's reward, the spread in the start's groups, and the warnings."""

from collections.abc import Mapping
from textwrap import fill
from typing import Any

import pandas as pd

from grpo_pipeline.tracking.summary import COLUMNS, cell_text

Document = Mapping[str, Any]


def reward_audit_text(document: Document, *, is_brief: bool = False) -> str:
    """Write the policies as a table, then the spread inside the start's groups, then the warnings, wrapped.

    With ``is_brief`` the warnings alone, for a run that has more to tell: the tables are on its page.
    """
    n, start = document["n"], document["start"]
    warm = (
        f", after {document['warmup_steps']} steps of the control"
        if document["warmup_steps"]
        else ""
    )
    title = f"{document['split']} split, {n['examples']} examples, {n['clusters']} clusters by {n['cluster']}{warm}"
    sentences = document["warnings"] or ["nothing to warn about"]
    warnings = [fill(f"- {sentence}", COLUMNS, subsequent_indent="  ") for sentence in sentences]
    figures = (
        []
        if is_brief
        else [policies_text(document), *groups_lines(document["policies"][start], start)]
    )
    return "\n".join([title, *figures, *warnings])


def policies_text(document: Document) -> str:
    """Write a line per policy: its role, its mean reward, its difference to the start, and its metrics."""
    rows = {
        name: {
            "role": policy["role"],
            "reward": cell_text(policy["reward"], sign=False, with_interval=False),
            "more than start": cell_text(policy["more_than_start"], sign=True, with_interval=True),
            **{
                metric: cell_text(entry, sign=False, with_interval=False)
                for metric, entry in policy["metrics"].items()
            },
        }
        for name, policy in document["policies"].items()
    }
    return str(pd.DataFrame.from_dict(rows, orient="index").to_string())


def groups_lines(policy: Mapping[str, Any], name: str) -> list[str]:
    """Write how much the samples of an example differ, and the share of each component in that."""
    groups = policy["groups"]
    std = cell_text(groups["std"], sign=False, with_interval=False)
    shares = ", ".join(
        f"{part} {cell_text(found['explained'], sign=False, with_interval=False)}"
        for part, found in groups["components"].items()
    )
    return [
        f"groups of {name}: standard deviation {std}, {groups['tied']:.0%} tied; share of the variance: {shares}"
    ]
