"""Count the samples without a value of a user-defined reward, per arm and component."""

from collections.abc import Iterator, Mapping

import pandas as pd

from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.statistics.unscored_rewards import ASKED, UNSCORED

Unscored = dict[str, dict[str, dict[str, dict[str, float]]]]


def count_unscored(
    arms: Mapping[str, pd.DataFrame],
    training: Mapping[str, pd.DataFrame],
    params: EvaluationParams,
) -> Unscored:
    """Count the samples without a value: arm -> component -> place (``training`` or the split) -> ``count`` and ``share``.

    Args:
        arms: arm -> prediction rows.
        training: arm -> metric rows. An arm that is absent, or drew no samples, has no entry for the training.
        params: names of the rows' split, and of the rule whose samples are counted.
    """
    found: Unscored = {}
    for arm, rows in arms.items():
        own = rows[rows["rule"] == params.rule_of(arm)]
        names = [name.removeprefix(ASKED) for name in rows.columns if name.startswith(ASKED)]
        found[arm] = {}
        for name in names:
            asked, unscored = (float(own[prefix + name].sum()) for prefix in (ASKED, UNSCORED))
            share = unscored / asked if asked else 0.0
            places = found[arm][name] = {params.split: {"count": unscored, "share": share}}
            steps = training.get(arm, pd.DataFrame({"split": []})).query("split == 'train'")
            if f"reward/{name}/mean" in steps and steps[f"reward/{name}/mean"].notna().any():
                count, fraction = (
                    steps.get(f"reward/{name}/{what}", pd.Series(0.0, index=steps.index)).fillna(
                        0.0
                    )
                    for what in ("unscored_count", "unscored_fraction")
                )
                places["training"] = {"count": float(count.sum()), "share": float(fraction.mean())}
    return found


def unscored_sentences(unscored: Unscored) -> Iterator[str]:
    """Write for each arm which of the user's rewards left samples without a value, and how many."""
    for arm, parts in unscored.items():
        for name, places in parts.items():
            lost = {where: one for where, one in places.items() if one["count"]}
            counts = [
                f"{one['count']:.0f} samples ({one['share']:.1%}) in {where}"
                for where, one in lost.items()
            ]
            if counts:
                yield (
                    f"{arm}: the reward {name} gave no value for {' and '.join(counts)}; they are in no mean"
                    f"{', and those of the training taught nothing' if 'training' in lost else ''}."
                )
