import numpy as np
import pandas as pd
import pytest

from grpo_pipeline.tasks.attention.data.grey import fitted_size, model_spacing, with_model_spacing


def test_golden():
    # 400 x 200 stored, 0.1 mm rows and 0.2 mm columns: 40 mm x 40 mm. At 128 the image is 128 x 64 pixels.
    assert model_spacing("0.1 0.2", "400 200", 128) == pytest.approx((40 / 128, 40 / 64))


@pytest.mark.parametrize("size", ["1 1", "3 1000", "512 384", "385 511", "77 76"])
@pytest.mark.parametrize("side", [16, 128, 1024])
def test_the_image_keeps_its_extent_in_millimetres(size, side):
    height, width = map(int, size.split())
    row, column = model_spacing("0.3 0.07", size, side)
    fitted = fitted_size((height, width), side)
    assert (row * fitted[0], column * fitted[1]) == pytest.approx((0.3 * height, 0.07 * width))


def test_unknown_spacing_is_nan_and_a_table_without_any_is_left_alone():
    assert np.isnan(model_spacing("", "4 4", 128)).all()
    table = pd.DataFrame({"core_id": ["a", "b"]})
    assert with_model_spacing(table, 128) is table
    found = with_model_spacing(table.assign(stored_size=["64 128", "9 9"], spacing_mm=["0.5 0.25", ""]), 128)
    assert found["row_mm"].tolist()[0] == 0.5
    assert found["column_mm"].tolist()[0] == 0.25
    assert found[["row_mm", "column_mm"]].iloc[1].isna().all()
