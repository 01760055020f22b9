"""Tabulate sampled replies with each reward component and advantage: a table per example, the best reply first."""

from dataclasses import dataclass

import pandas as pd

from grpo_pipeline.pipelines.reporting.tables import Cell, Table, shorten

REWARD = "reward_"


@dataclass(frozen=True)
class ReplyGroup:
    """The group of replies to one example.

    Attributes:
        question: the text that the language model read, without the stories.
        needs: source of the right reply: persona, story or none.
        replies: reply, reward components, reward and advantage.
    """

    question: str
    needs: str
    replies: Table


def reply_groups(rollouts: pd.DataFrame, *, limit: int) -> list[ReplyGroup]:
    """Build the groups of the first ``limit`` examples of a table of sampled replies.

    Args:
        rollouts: rows of ``dialogue.<arm>.rollouts`` (docs/dialogue/artefacts.md); an empty cell is an empty reply.
        limit: how many examples.
    """
    groups = [group for _, group in rollouts.groupby("example_id", sort=False)]
    return [reply_group(group) for group in groups[:limit]]


def reply_group(group: pd.DataFrame) -> ReplyGroup:
    """Sort the replies to an example by falling reward; equal replies are shown once, with their number."""
    parts = [name for name in group.columns if name.startswith(REWARD)]
    group = group.assign(reply=group["reply"].fillna("").astype(str))
    shown = group.groupby("reply", sort=False).agg(
        dict.fromkeys((*parts, "reward", "advantage"), "first") | {"sample": "size"}
    )
    ranked = shown.sort_values("reward", ascending=False, kind="stable", na_position="last")
    heads = [
        "reply",
        "times",
        *(name.removeprefix(REWARD) for name in parts),
        "reward",
        "advantage",
    ]
    rows = []
    for reply, row in ranked.to_dict(orient="index").items():
        found = [row[name] for name in (*parts, "reward")]
        rewards = [Cell("not measured") if pd.isna(one) else Cell(f"{one:.3f}") for one in found]
        advantage = row["advantage"]  # 0 teaches nothing
        tone = "better" if advantage > 0 else "worse" if advantage < 0 else ""
        first_cells = Cell(shorten(reply) or "(nothing)"), Cell(str(row["sample"]))
        rows.append([*first_cells, *rewards, Cell(f"{advantage:+.2f}", tone=tone)])
    first = group.iloc[0]
    known = "" if pd.isna(first["answer"]) else f": the right reply is “{shorten(first['answer'])}”"
    caption = f"{first['example_id']}{known}"
    return ReplyGroup(shorten(first["question"]), str(first["needs"]), Table(caption, heads, rows))
