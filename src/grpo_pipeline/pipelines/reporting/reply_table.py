"""Sampled replies with each reward part and advantage -> one table per example, the best reply first."""

from dataclasses import dataclass

import pandas as pd

from grpo_pipeline.pipelines.reporting.tables import Cell, Table, shorten

REWARD = "reward_"


@dataclass(frozen=True)
class ReplyGroup:
    """The group of replies to one example.

    Attributes:
        question: what the reader read, without the stories.
        needs: what the right reply needs.
        replies: reply, reward parts, reward and advantage.
    """

    question: str
    needs: str
    replies: Table


def reply_groups(rollouts: pd.DataFrame, *, limit: int) -> list[ReplyGroup]:
    """Return the first ``limit`` examples of a table of sampled replies.

    Args:
        rollouts: rows of ``dialogue.<arm>.rollouts`` (docs/architecture.md); an empty cell is an empty reply.
        limit: how many examples.
    """
    groups = [group for _, group in rollouts.groupby("example_id", sort=False)]
    return [reply_group(group) for group in groups[:limit]]


def reply_group(group: pd.DataFrame) -> ReplyGroup:
    """Return the replies to one example by falling reward; equal replies are shown once, with their number."""
    parts = [name for name in group.columns if name.startswith(REWARD)]
    group = group.assign(reply=group["reply"].fillna("").astype(str))
    shown = group.groupby("reply", sort=False).agg(dict.fromkeys((*parts, "reward", "advantage"), "first") | {"sample": "size"})
    ranked = shown.sort_values("reward", ascending=False, kind="stable", na_position="last")
    heads = ["reply", "times", *(name.removeprefix(REWARD) for name in parts), "reward", "advantage"]
    rows = [
        [
            Cell(shorten(reply) or "(nothing)"),
            Cell(str(row["sample"])),
            *(number_cell(row[name]) for name in (*parts, "reward")),
            advantage_cell(row["advantage"]),
        ]
        for reply, row in ranked.to_dict(orient="index").items()
    ]
    first = group.iloc[0]
    caption = f"{first['example_id']}: the right reply is “{shorten(first['answer'])}”"
    return ReplyGroup(shorten(first["question"]), str(first["needs"]), Table(caption, heads, rows))


def number_cell(value: float) -> Cell:
    """Return a reward, or that it could not be measured."""
    return Cell("not measured") if pd.isna(value) else Cell(f"{value:.3f}")


def advantage_cell(value: float) -> Cell:
    """Return a signed advantage, coloured by what it teaches; 0 teaches nothing."""
    return Cell(f"{value:+.2f}", tone="better" if value > 0 else "worse" if value < 0 else "")
