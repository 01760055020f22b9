from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from tiny_attention import make_clinical_examples, make_data

from grpo_pipeline.tasks.attention.batch import make_batch
from grpo_pipeline.tasks.attention.data.clinical import ClinicalStatistics, describe_columns, drop_values, fit_statistics

NAN = float("nan")


def table() -> pd.DataFrame:
    values = {"age": [60.0, 64.0, 71.0, 90.0, 10.0], "psa": [NAN, 4.0, 8.0, NAN, 999.0], "kit": [0.1, 0.1, 0.1, NAN, 7.0]}
    return pd.DataFrame(values | {"split": ["train", "train", "train", "val", "test"]})


def test_the_training_rows_alone_are_described_and_normalise():
    # age: mean 65, variance (25 + 1 + 36) / 3; psa: 4 and 8.
    found = describe_columns(table(), ("age", "psa", "kit"))
    assert found["age"] == pytest.approx({"known": 3, "unknown": 0, "mean": 65.0, "std": (62 / 3) ** 0.5, "median": 64.0})
    assert found["psa"] == pytest.approx({"known": 2, "unknown": 1, "mean": 6.0, "std": 2.0, "median": 6.0})
    assert found["kit"]["std"] == 0.0  # three times 0.1 add up to a little more than 0.3
    fitted = fit_statistics(table(), ("psa", "kit", "age"))
    expected = (6.0, pytest.approx(0.1), 65.0), (2.0, 1.0, pytest.approx((62 / 3) ** 0.5))
    assert fitted == ClinicalStatistics(("psa", "kit", "age"), *expected)
    other = table()
    other.loc[3:, ["age", "psa", "kit"]] = 12345.0
    assert fit_statistics(other, ("psa", "kit", "age")) == fitted
    other.loc[:2, "psa"] = NAN
    with pytest.raises(ValueError, match="column 'psa' must have a known value in the training split, got none; fill it in"):
        fit_statistics(other, ("age", "psa"))


def test_values_are_those_of_the_rows_and_a_missing_column_is_unknown():
    examples = make_clinical_examples()
    asked = replace(examples, table=examples.table.drop(columns="setup"))
    batch = make_batch(make_data(asked), np.array([2, 0]), grid=4, device=torch.device("cpu"), clinical=("psa", "setup", "age"))
    rows = examples.table.loc[[2, 0]]
    np.testing.assert_array_equal(batch.clinical, np.stack([rows["psa"], [NAN, NAN], rows["age"]], 1).astype(np.float32))


def test_values_are_dropped_each_by_itself_as_the_generator_says():
    values = torch.arange(8000.0).reshape(2000, 4)
    values[::2, 1] = torch.nan
    made, again, other = (drop_values(values, 0.25, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    whole = drop_values(torch.ones(2000, 4), 0.25, generator=torch.Generator().manual_seed(0))
    is_dropped = whole.isnan()
    assert torch.equal(made.isnan(), is_dropped | values.isnan())  # the unknown stays unknown and changes no draw
    assert torch.equal(made[~made.isnan()], values[~made.isnan()])
    assert torch.equal(again.isnan(), made.isnan())
    assert not torch.equal(other.isnan(), made.isnan())
    # 5 sigma of 2000 draws of probability 0.25
    share = is_dropped.double().mean(0)
    torch.testing.assert_close(share, torch.full((4,), 0.25, dtype=torch.float64), atol=5 * (0.1875 / 2000) ** 0.5, rtol=0)
    together = is_dropped.double().T.corrcoef() - torch.eye(4)
    assert float(together.abs().max()) < 5 / 2000**0.5
