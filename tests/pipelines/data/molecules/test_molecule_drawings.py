import xml.etree.ElementTree as ElementTree

import numpy as np
import pandas as pd
import torch
from sampled_graphs import all_arms, evaluation_params

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.pipelines.data.molecules.report import SHOWN, draw_arms, rows_of
from grpo_pipeline.tasks.molecules.graphs.drawings import best_molecules, draw_grid

PARAMS = evaluation_params(seed=3)


def panels(drawing):
    return len(ElementTree.fromstring(drawing).findall("{http://www.w3.org/2000/svg}svg"))


def test_before_is_the_start_and_after_the_policy():
    arms = all_arms()
    drawn = draw_arms(arms, PARAMS)
    assert sorted(drawn) == sorted(
        f"{arm}_{choice}_{when}" for arm in arms for choice in ("best", "random") for when in ("before", "after")
    )
    policy = arms["grpo"][arms["grpo"]["rule"] == "policy"]
    assert drawn["grpo_best_after"] == draw_grid(best_molecules(policy, SHOWN), columns=6)
    assert drawn["grpo_best_before"] == drawn["eager_best_before"] != drawn["grpo_best_after"]
    assert panels(drawn["grpo_best_after"]) == SHOWN


def test_random_molecules_are_the_same_samples_everywhere():
    """A table in another order gives the same drawing; its panels are the samples that the seed draws."""
    rows = all_arms()["grpo"]
    shuffled = rows.sample(frac=1.0, random_state=1)
    first, second = (draw_arms({"grpo": table}, PARAMS)["grpo_random_after"] for table in (rows, shuffled))
    assert first == second
    chosen = torch.randperm(48, generator=step_generator(3, stream=Stream.DRAWINGS))[:SHOWN].tolist()
    policy = rows[rows["rule"] == "policy"].set_index("sample_id")
    assert first == draw_grid(policy.loc[[f"s{place:03d}" for place in chosen]], columns=6)


def test_empty_cells_of_a_file_are_molecules_that_are_not_valid():
    table = pd.DataFrame({"sample_id": [1, 0], "rule": "policy", "smiles": [np.nan, "CC"], "cause": [np.nan, np.nan]})
    assert list(rows_of(table, "policy")["smiles"]) == ["CC", ""]
    assert list(rows_of(table, "policy")["cause"]) == ["", ""]
    assert rows_of(table, "start").empty
