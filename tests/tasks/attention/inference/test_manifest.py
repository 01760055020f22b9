"""A manifest without labels is checked like one with them; what is optional may be absent, what is misspelt may not."""

from dataclasses import replace

import numpy as np
import pytest
from tiny_predictor import make_predictor

from grpo_pipeline.tasks.attention.data.preprocessing_params import ModelPreprocessing
from grpo_pipeline.tasks.attention.inference.manifest import CoreRules, check_predict_manifest, find_columns
from grpo_pipeline.tasks.attention.inference.params import PredictParams
from grpo_pipeline.tasks.attention.inference.read_columns import PredictColumns

RULES = CoreRules(
    ModelPreprocessing(intensity="dtype", empty_bag="error", image_size=32, clinical=("age", "psa")), points=3, grid=4
)


def params(**changes) -> PredictParams:
    values = {
        "arm": "grpo", "root": "root", "manifest": "manifest.csv", "on_bad_row": "fail", "seed": 0, "n_samples": 2,
        "abstain": False,
    }  # fmt: skip
    return PredictParams.model_validate(values | changes)


def test_labels_are_not_read_and_an_empty_optional_cell_is_unknown(data_set, data_params):
    for row in data_set.rows:
        row.update(label="nonsense", involvement="many", bag_mask=f"needle/{row['core_id']}.png")
    checked, quarantine, absent = check_predict_manifest(data_set.open(), params(), data_params(), RULES)
    assert checked["core_id"].tolist() == [f"c{i:02d}" for i in range(12)]
    assert (len(quarantine), absent) == (0, ())
    assert not {"label", "involvement", "grade_group"} & set(checked.columns)
    assert checked["age"].tolist() == [60.0 + i for i in range(12)]
    data_set.rows[0].update(region_mask="", bag_mask="", psa="?")
    checked, _, _ = check_predict_manifest(data_set.open(), params(), data_params(), RULES)
    assert checked.loc[0, ["region_mask", "bag_mask"]].tolist() == ["", ""]
    assert checked["psa"].isna().tolist() == [True] + [False] * 11
    assert checked.loc[1, "region_mask"] == "region/c01.png"


def test_an_image_alone_is_enough(data_set, data_params):
    data_set.rows[:] = [{"image": row["image"]} for row in data_set.rows]
    checked, _, absent = check_predict_manifest(data_set.open(), params(), data_params(), RULES)
    assert checked.loc[0, ["core_id", "patient_id", "region_mask", "bag_mask"]].tolist() == ["c00", "", "", ""]
    assert np.isnan(checked[["age", "psa"]].to_numpy()).all()
    assert absent == ("core_id", "patient_id", "region_mask", "bag_mask", "age", "psa")


def test_the_models_own_mask_values_count(data_set, data_params):
    """Zones 1 and 2 of one file: the model knows that 2 is its region; without that knowledge the mask is refused."""
    zones = np.ones((24, 32), np.uint8)
    zones[:, 16:] = 2
    data_set.save("region/c00.png", zones)
    data_set.rows[:] = [{"image": "images/c00.png", "region_mask": "region/c00.png"}]
    predictor = make_predictor(mask_values={"region_mask": [2]})
    checked, _, _ = check_predict_manifest(data_set.open(), params(), data_params(), predictor.rules)
    [row] = checked.to_dict(orient="records")
    points = predictor.predict(data_set.open(), row, seed=0, n_samples=8).points
    assert set(np.unique(points[..., 0])) <= {20.0, 28.0}
    with pytest.raises(ValueError, match="'region/c00.png' must have one value beside 0, got 1, 2"):
        check_predict_manifest(data_set.open(), params(), data_params(), make_predictor().rules)


def test_a_column_that_may_be_misspelt_is_refused_unless_it_is_mapped(data_params):
    usual = PredictColumns.of(data_params().columns)
    for there, message in (
        (["picture"], r"attention.data.columns.image must name a column of the manifest, got 'image'; it has \['picture'\]"),
        (["image", "region_msk"], "attention.data.columns.region_mask .* did you mean 'region_msk'"),
        (["image", "psa_"], "clinical column 'psa' of the model .* did you mean 'psa_'"),
    ):
        with pytest.raises(ValueError, match=message):
            find_columns(there, usual, RULES.preprocessing.clinical)
    columns = PredictColumns(image="mask_0", core_id=None, patient_id=None, region_mask="mask_1", bag_mask=None)
    found = find_columns(["mask_0"], columns, ())
    assert (found.named.image, found.named.region_mask, found.absent) == ("mask_0", None, ("mask_1",))


def spoil(data_set):
    """One fault per row; returns line -> what its reason says."""
    rows = data_set.rows
    (data_set.root / rows[1]["image"]).unlink()
    rows[2]["image"] = "../outside.png"
    data_set.save(rows[3]["region_mask"], np.zeros((24, 32), bool))
    one = np.zeros((24, 32), bool)
    one[12:14, 12:14] = True
    data_set.save(rows[4]["region_mask"], one)
    data_set.save(rows[5]["bag_mask"], np.zeros((24, 32), bool))
    data_set.save(rows[6]["region_mask"], np.ones((32, 24), bool))
    rows[7]["psa"] = "high"
    rows[8]["core_id"] = "c09"
    return {
        3: "must be a file below",
        4: "must be a path below the data root",
        5: "got an empty mask",
        6: "must cover at least 3 cells of the model's 4 x 4 grid, got",
        7: "got an empty mask",
        8: "must have the size of its image",
        9: "column 'psa' must be a number",
        10: "map attention.data.columns.core_id",
        11: "must be unique, got it in lines [10, 11]",
    }


def test_bad_rows_are_listed_with_the_sentences_of_training(data_set, data_params):
    reasons = spoil(data_set)
    checked, quarantine, _ = check_predict_manifest(data_set.open(), params(on_bad_row="quarantine"), data_params(), RULES)
    assert checked["row"].tolist() == [2, 12, 13]
    assert quarantine["row"].tolist() == list(reasons)
    assert [row.row for row in quarantine.itertuples() if reasons[row.row] not in row.reason] == []
    message = r"manifest.csv line 3 \(c01\): .* \(9 of 12 rows are bad: correct them, or set attention.predict.on_bad_row"
    with pytest.raises(ValueError, match=message):
        check_predict_manifest(data_set.open(), params(), data_params(), RULES)
    with pytest.raises(ValueError, match=r"attention.predict.root must be the folder of the dataset attention.predict.raw"):
        check_predict_manifest(data_set.open(), params(root="elsewhere"), data_params(), RULES)


def test_a_region_of_exactly_as_many_cells_as_points_is_enough(data_set, data_params):
    """Rows 8 to 23 and columns 4 to 27 of the square of 32 pixels hold the centres (12, 20) x (4, 12, 20) of cells."""
    checked, _, _ = check_predict_manifest(data_set.open(), params(), data_params(), replace(RULES, points=6))
    assert len(checked) == 12
    with pytest.raises(ValueError, match="must cover at least 7 cells of the model's 4 x 4 grid, got 6"):
        check_predict_manifest(data_set.open(), params(), data_params(), replace(RULES, points=7))


def test_columns_folders_and_spacing_are_those_of_the_training(data_set, data_params):
    data_set.rows[:] = [{"file": row["image"].removeprefix("images/"), "class": "none", "who": "p"} for row in data_set.rows]
    named = {"image": "file", "core_id": None, "patient_id": "who", "region_mask": None, "bag_mask": None, "clinical": []}
    data = data_params(columns=named, folders={"image": "images"}, spacing_mm=(0.5, 0.25))
    checked, _, absent = check_predict_manifest(data_set.open(), params(), data, RULES)
    assert checked.loc[0, ["core_id", "patient_id", "image", "spacing_mm"]].tolist() == ["c00", "p", "images/c00.png", "0.5 0.25"]
    assert absent == ("age", "psa")
