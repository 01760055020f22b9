"""Draw molecules of all arms, before and after training, from their prediction rows; needs RDKit."""

from collections.abc import Iterator, Mapping

import pandas as pd

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.pipelines.params import EvaluationParams

SHOWN, COLUMNS = 12, 6
TEXTS = ("smiles", "cause")


def draw_arms(arms: Mapping[str, pd.DataFrame], params: EvaluationParams) -> dict[str, str]:
    """Draw SHOWN molecules per SVG: ``<arm>_<best or random>_<before or after>`` -> text.

    "Before" is the chance rule, the initial model; "after" is the headline rule. The random molecules have the same prompts and
    noise in every grid, so that equal places can be compared.

    Args:
        arms: arm -> prediction rows; empty cells of a table from a file are "".
        params: names of the rules; the seed of the choice.
    """
    # Needs RDKit, which the registry opens without.
    from grpo_pipeline.tasks.molecules.graphs.drawings import draw_grid

    rules = {"before": params.chance_rule, "after": params.headline_rule}
    return {
        f"{arm}_{choice}_{when}": draw_grid(rows, columns=COLUMNS)
        for arm, table in arms.items()
        for when, rule in rules.items()
        for choice, rows in choose(rows_of(table, rule), seed=params.seed)
    }


def rows_of(table: pd.DataFrame, rule: str) -> pd.DataFrame:
    """Select a rule's rows by ``sample_id``, with "" in empty cells."""
    texts = {
        name: table[name].astype(object).fillna("").astype(str) for name in TEXTS if name in table
    }
    rows = table.assign(**texts, sample_id=table["sample_id"].astype(str))
    return rows[rows["rule"] == rule].sort_values("sample_id", kind="stable", ignore_index=True)


def choose(rows: pd.DataFrame, *, seed: int) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the best and some random molecules."""
    from grpo_pipeline.tasks.molecules.graphs.drawings import best_molecules, random_molecules

    yield "best", best_molecules(rows, SHOWN)
    yield (
        "random",
        random_molecules(rows, SHOWN, generator=step_generator(seed, stream=Stream.DRAWINGS)),
    )
