import numpy as np
import pandas as pd
import pytest
import torch

from grpo_pipeline.tasks.attention.data.clinical import (
    ClinicalStatistics,
    describe_columns,
    drop_values,
    fit_statistics,
    read_values,
)

NAN = float("nan")


def table() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "age": [60.0, 64.0, 71.0, 90.0, 10.0],
            "psa": [NAN, 4.0, 8.0, NAN, 999.0],
            "kit": [0.1, 0.1, 0.1, NAN, 7.0],
            "split": ["train", "train", "train", "val", "test"],
        }
    )


def test_the_training_rows_alone_are_described():
    # age: mean 65, variance (25 + 1 + 36) / 3; psa: 4 and 8.
    found = describe_columns(table(), ("age", "psa", "kit"))
    assert found["age"] == pytest.approx({"known": 3, "unknown": 0, "mean": 65.0, "std": (62 / 3) ** 0.5, "median": 64.0})
    assert found["psa"] == pytest.approx({"known": 2, "unknown": 1, "mean": 6.0, "std": 2.0, "median": 6.0})
    # three times 0.1 add up to a little more than 0.3
    assert found["kit"]["std"] == 0.0


def test_statistics_follow_the_split_and_not_the_other_rows():
    first = fit_statistics(table(), ("psa", "age"))
    assert first.columns == ("psa", "age")
    assert (first.mean, first.std) == ((6.0, 65.0), pytest.approx((2.0, (62 / 3) ** 0.5)))
    other = table()
    other.loc[3:, ["age", "psa"]] = 12345.0
    assert fit_statistics(other, ("psa", "age")) == first
    other["split"] = ["val", "train", "train", "train", "test"]
    assert fit_statistics(other, ("psa", "age")) != first


def test_a_constant_column_is_divided_by_one():
    assert fit_statistics(table(), ("kit",)) == ClinicalStatistics(("kit",), (pytest.approx(0.1),), (1.0,))


def test_a_column_that_is_unknown_in_training_is_refused():
    values = table()
    values.loc[:2, "psa"] = NAN
    with pytest.raises(ValueError, match="column 'psa' must have a known value in the training split, got none; fill it in"):
        fit_statistics(values, ("age", "psa"))


def test_values_are_those_of_the_rows_and_a_missing_column_is_unknown():
    values = read_values(table(), np.array([2, 0]), ("psa", "grade", "age"))
    np.testing.assert_array_equal(values, np.array([[8.0, NAN, 71.0], [NAN, NAN, 60.0]], np.float32))


class TestDropValues:
    values = torch.arange(8000.0).reshape(2000, 4)

    def drop(self, probability: float, seed: int = 0, values: torch.Tensor | None = None) -> torch.Tensor:
        given = self.values if values is None else values
        return drop_values(given, probability, generator=torch.Generator().manual_seed(seed))

    def test_each_value_by_itself(self):
        is_dropped = self.drop(0.25).isnan()
        assert torch.equal(self.drop(0.25)[~is_dropped], self.values[~is_dropped])
        share = is_dropped.double().mean(0)
        # 5 sigma of 2000 draws of probability 0.25
        torch.testing.assert_close(share, torch.full((4,), 0.25, dtype=torch.float64), atol=5 * (0.1875 / 2000) ** 0.5, rtol=0)
        together = is_dropped.double().T.corrcoef() - torch.eye(4)
        assert float(together.abs().max()) < 5 / 2000**0.5

    def test_the_generator_decides(self):
        assert torch.equal(self.drop(0.5).isnan(), self.drop(0.5).isnan())
        assert not torch.equal(self.drop(0.5).isnan(), self.drop(0.5, seed=1).isnan())

    def test_the_unknown_stays_unknown_and_changes_no_draw(self):
        holes = self.values.clone()
        holes[::2, 1] = torch.nan
        assert torch.equal(self.drop(0.5, values=holes).isnan(), self.drop(0.5).isnan() | holes.isnan())
