"""Personas are divided once, whatever the order of the rows."""

import pandas as pd
import pytest

from grpo_pipeline.tasks.dialogue.data.params import DialogueSplitParams
from grpo_pipeline.tasks.dialogue.data.splits import split_personas
from grpo_pipeline.tasks.params import SplitFractions

PARAMS = DialogueSplitParams(seed=0, fractions=SplitFractions(train=0.6, val=0.15, test=0.25))


def table(personas=20, each=3, partners=False):
    rows = [
        (f"e{p}-{k}", f"p{p}", f"p{(p + k + 1) % personas}" if partners else "", "") for p in range(personas) for k in range(each)
    ]
    return pd.DataFrame(rows, columns=["example_id", "subject_id", "partner_id", "split"])


def test_a_persona_is_never_divided_and_shares_hold_in_any_order_of_the_rows():
    checked = table()
    splits = split_personas(checked, PARAMS)
    persona = checked.set_index("example_id")["subject_id"]
    parts = {name: set(persona[members]) for name, members in splits.items()}
    assert {name: len(part) for name, part in parts.items()} == {"train": 12, "val": 3, "test": 5, "left_out": 0}
    assert len(set().union(*parts.values())) == 20
    assert sum(map(len, splits.values())) == len(checked)
    assert split_personas(checked.sample(frac=1, random_state=1), PARAMS) == splits
    assert split_personas(checked, PARAMS.model_copy(update={"seed": 1})) != splits


def test_a_conversation_across_splits_is_left_out():
    checked = table(each=8, partners=True)
    alone, splits = split_personas(table(each=8), PARAMS), split_personas(checked, PARAMS)
    home = {f"p{e[1:].split('-')[0]}": name for name, members in alone.items() for e in members}
    rows = list(zip(checked["example_id"], checked["subject_id"], checked["partner_id"], strict=True))
    assert splits["left_out"] == sorted(example for example, own, other in rows if home[own] != home[other])
    assert splits["left_out"]
    assert splits["train"] == sorted(e for e, own, other in rows if home[own] == home[other] == "train")


def test_splits_of_the_file_are_kept_and_none_may_be_empty():
    checked = table(3, 1).assign(split=["test", "train", "val"])
    assert split_personas(checked, PARAMS) == {"train": ["e1-0"], "val": ["e2-0"], "test": ["e0-0"], "left_out": []}
    for bad, message in [
        (checked.assign(split=["test", "train", "train"]), "split 'val' must hold examples, got none; name it in some rows"),
        (table(3), "split 'val' must hold examples"),
        (
            table(2),
            "at least 3 personas, or groups of rows or of those who talk with each other, got 2; none is ever divided",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            split_personas(bad, PARAMS)
