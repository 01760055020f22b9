"""Count the samples for which a user's reward gave no value, per arm and component, and say it: no other result shows it."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from grpo_pipeline.tasks.columns import ASKED, UNSCORED

Unscored = dict[str, dict[str, dict[str, dict[str, float]]]]


def count_unscored(arms: Mapping[str, pd.DataFrame], training: Mapping[str, pd.DataFrame], *, rule: str, split: str) -> Unscored:
    """Return arm -> part -> where (``training`` and the split) -> ``count`` and ``share`` of samples without a value.

    Args:
        arms: arm -> prediction rows.
        training: arm -> metric rows; of arms that are absent, or drew no samples, nothing is said of the training.
        rule: whose samples are counted.
        split: name of the rows' split.
    """
    found: Unscored = {}
    for arm, rows in arms.items():
        own = rows[rows["rule"] == rule]
        names = [name.removeprefix(ASKED) for name in rows.columns if name.startswith(ASKED)]
        found[arm] = {name: {split: _in_predictions(own, name)} for name in names}
        for name, places in found[arm].items():
            steps = training.get(arm, pd.DataFrame({"split": []})).query("split == 'train'")
            if f"reward/{name}/mean" in steps and steps[f"reward/{name}/mean"].notna().any():
                places["training"] = _in_training(steps, name)
    return found


def unscored_sentences(unscored: Unscored) -> Iterator[str]:
    """Say of each arm which of the user's rewards left samples without a value, and how many."""
    for arm, parts in unscored.items():
        for name, places in parts.items():
            lost = {where: one for where, one in places.items() if one["count"]}
            counts = [f"{one['count']:.0f} samples ({one['share']:.1%}) in {where}" for where, one in lost.items()]
            if counts:
                yield (
                    f"{arm}: the reward {name} gave no value for {' and '.join(counts)}; they are in no mean"
                    f"{', and those of the training taught nothing' if 'training' in lost else ''}."
                )


def _in_predictions(rows: pd.DataFrame, name: str) -> dict[str, float]:
    asked, unscored = (float(rows[prefix + name].sum()) for prefix in (ASKED, UNSCORED))
    return {"count": unscored, "share": unscored / asked if asked else 0.0}


def _in_training(steps: pd.DataFrame, name: str) -> dict[str, float]:
    count, fraction = (
        steps.get(f"reward/{name}/{what}", pd.Series(0.0, index=steps.index)).fillna(0.0)
        for what in ("unscored_count", "unscored_fraction")
    )
    return {"count": float(count.sum()), "share": float(fraction.mean())}


def describe_unscored(
    arms: Mapping[str, pd.DataFrame], training: Mapping[str, pd.DataFrame], *, rule: str, split: str
) -> dict[str, Any]:
    """Return the section ``unscored`` of a comparison; none where no arm has a reward of the user's."""
    found = count_unscored(arms, training, rule=rule, split=split)
    return {"unscored": found} if any(found.values()) else {}
