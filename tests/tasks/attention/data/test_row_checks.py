import math

import numpy as np
import pytest
from PIL import Image

from grpo_pipeline.tasks.attention.data.row_checks import (
    RowError,
    check_columns,
    check_files,
    read_row,
    split_reasons,
)


def first_row(data_set, params, **cells):
    folder = data_set.open()
    return read_row(dict(folder.manifest.iloc[1]) | cells, params)


class TestReadRow:
    def test_canonical_columns(self, data_set, data_params):
        assert first_row(data_set, data_params()) == {
            "core_id": "c01", "patient_id": "p0", "center": "a", "label": 1, "involvement": 0.4, "grade_group": 3.0,
            "age": 61.0, "psa": 5.1, "psa_density": 0.12, "family_history": 0.0, "image": "images/c01.png",
            "region_mask": "region/c01.png", "bag_mask": "needle/c01.png", "lesion_mask": "lesion/c01.png", "split": "",
        }  # fmt: skip

    def test_unmapped_columns_mean_unknown_whole_and_one_center(self, data_set, data_params):
        columns = dict.fromkeys(("core_id", "center", "region_mask", "bag_mask", "lesion_mask", "involvement", "grade_group"))
        row = first_row(data_set, data_params(columns=columns), image="x/core.7.png")
        assert (row["core_id"], row["center"]) == ("core.7", "all")
        assert (row["region_mask"], row["bag_mask"], row["lesion_mask"]) == ("", "", "")
        assert math.isnan(row["involvement"])
        assert math.isnan(row["grade_group"])

    def test_folder_goes_before_the_path(self, data_set, data_params):
        row = first_row(data_set, data_params(folders={"image": "b/mode/"}), image="1.png")
        assert row["image"] == "b/mode/1.png"

    def test_folder_does_not_tame_an_absolute_path(self, data_set, data_params):
        assert first_row(data_set, data_params(folders={"image": "b"}), image="/etc/x.png")["image"] == "/etc/x.png"

    def test_percent(self, data_set, data_params):
        assert first_row(data_set, data_params(involvement_unit="percent"), involvement="40")["involvement"] == 0.4

    @pytest.mark.parametrize("cell", ["", "NaN", "n/a", "NULL", "?"])
    def test_unknown_clinical_value_is_nan(self, data_set, data_params, cell):
        assert math.isnan(first_row(data_set, data_params(), psa=cell)["psa"])

    @pytest.mark.parametrize(
        ("cell", "label"), [("malignant", 1), ("Malignant ", 1), ("benign", 0), ("2", 1), ("2.0", 1), ("0", 0)]
    )
    def test_label_rule(self, data_set, data_params, cell, label):
        params = data_params(label={"positive": ["malignant", 2], "negative": ["benign", 0]})
        assert first_row(data_set, params, label=cell, involvement="0", grade_group="1")["label"] == label

    def test_every_other_value_is_negative_where_none_is_named(self, data_set, data_params):
        cells = {"label": "whatever", "involvement": "", "grade_group": ""}
        assert first_row(data_set, data_params(label={"negative": None}), **cells)["label"] == 0

    @pytest.mark.parametrize(
        ("cells", "message"),
        [
            ({"label": "2"}, r"column 'label' must be one of \['1', '0'\], got '2'"),
            ({"label": ""}, "column 'label' must be one of .*, got ''"),
            ({"involvement": "1.01"}, "'involvement' must be an involvement from 0 to 1, got 1.01"),
            ({"involvement": "-0.1"}, "from 0 to 1, got -0.1"),
            ({"involvement": "40"}, r"attention.data.involvement_unit \(fraction or percent\)"),
            ({"grade_group": "6"}, "must be a grade group 0, 1, 2, 3, 4 or 5, got 6"),
            ({"grade_group": "2.5"}, "must be a grade group"),
            ({"grade_group": "3+4"}, "column 'grade_group' must be a number or empty, got '3\\+4'"),
            ({"psa": "high"}, "column 'psa' must be a number or empty, got 'high'"),
            ({"psa": "inf"}, "column 'psa' must be a number or empty, got 'inf'"),
            ({"patient_id": ""}, "column 'patient_id' must hold the patient_id of every row"),
            ({"center": "nan"}, "column 'center' must hold the center of every row"),
            ({"core_id": ""}, "column 'core_id' must hold the core_id of every row"),
            ({"image": ""}, "column 'image' must hold the path of the image, got an empty cell"),
            ({"bag_mask": ""}, "column 'bag_mask' must hold the path of the bag_mask"),
        ],
    )
    def test_bad_cell_is_refused(self, data_set, data_params, cells, message):
        with pytest.raises(RowError, match=message):
            first_row(data_set, data_params(), **cells)

    @pytest.mark.parametrize(
        ("cells", "message"),
        [
            (
                {"involvement": "0.1", "grade_group": "0"},
                "'involvement' must not tell of cancer .* 'label', is negative, got 0.1",
            ),
            ({"involvement": "", "grade_group": "2"}, "'grade_group' must not tell of cancer .* is negative, got 2; correct"),
            ({"involvement": "0", "grade_group": "5"}, "'grade_group' must not tell of cancer"),
        ],
    )
    def test_a_negative_row_of_cancer_is_refused(self, data_set, data_params, cells, message):
        with pytest.raises(RowError, match=message):
            first_row(data_set, data_params(), label="0", **cells)
        assert first_row(data_set, data_params(), label="1", **cells)["label"] == 1

    def test_a_label_above_a_limit_says_itself_what_is_negative(self, data_set, data_params):
        params = data_params(columns={"label": "grade_group"}, label={"above": 2, "positive": None, "negative": None})
        assert first_row(data_set, params, grade_group="2", involvement="0.4")["label"] == 0

    def test_unknown_label_is_refused_where_every_other_value_is_negative(self, data_set, data_params):
        with pytest.raises(RowError, match="got 'n/a'"):
            first_row(data_set, data_params(label={"negative": None}), label="n/a")

    @pytest.mark.parametrize(("cell", "name"), [("train", "train"), ("Validation", "val"), ("TEST", "test")])
    def test_split_names(self, data_set, data_params, cell, name):
        data_set.rows[1]["fold"] = cell
        for row in data_set.rows:
            row.setdefault("fold", "train")
        assert first_row(data_set, data_params(columns={"split": "fold"}), fold=cell)["split"] == name

    def test_unknown_split_is_refused(self, data_set, data_params):
        with pytest.raises(RowError, match="must be train, val or test, got '3'"):
            first_row(data_set, data_params(columns={"split": "center"}), center="3")


class TestCheckFiles:
    def check(self, data_set, params, **changes):
        folder = data_set.open()
        row = read_row(dict(folder.manifest.iloc[1]) | {"row": 3}, params) | changes
        return check_files(folder, row, params)

    def test_good_row(self, data_set, data_params):
        masks = self.check(data_set, data_params())
        assert (masks.bag_is_empty, masks.has_lesion, masks.shape) == (False, True, (24, 32))

    def test_missing_mask_names_that_file(self, data_set, data_params):
        (data_set.root / "needle/c01.png").unlink()
        with pytest.raises(RowError, match=r"'needle/c01.png' must be a file below") as error:
            self.check(data_set, data_params())
        assert error.value.file == "needle/c01.png"

    @pytest.mark.parametrize("name", ["region", "needle", "lesion"])
    def test_mask_of_another_size(self, data_set, data_params, name):
        data_set.save(f"{name}/c01.png", np.ones((32, 24), bool))
        with pytest.raises(RowError, match=rf"'{name}/c01.png' must have the size of its image, 32 x 24, got 24 x 32"):
            self.check(data_set, data_params())

    def test_empty_region(self, data_set, data_params):
        data_set.save("region/c01.png", np.zeros((24, 32), bool))
        with pytest.raises(RowError, match="'region/c01.png' must mark where points may fall, got an empty mask"):
            self.check(data_set, data_params(empty_bag="region"))

    def test_empty_bag_is_an_error_or_the_region(self, data_set, data_params):
        data_set.save("needle/c01.png", np.zeros((24, 32), bool))
        with pytest.raises(RowError, match="got an empty mask; draw it or set attention.data.empty_bag: region"):
            self.check(data_set, data_params())
        assert self.check(data_set, data_params(empty_bag="region")).bag_is_empty

    @pytest.mark.parametrize("rule", ["error", "region"])
    def test_bag_outside_the_region_is_always_an_error(self, data_set, data_params, rule):
        outside = np.zeros((24, 32), bool)
        outside[:3] = True
        data_set.save("needle/c01.png", outside)
        with pytest.raises(RowError, match="'needle/c01.png' must overlap the region mask, got two masks that share no pixel"):
            self.check(data_set, data_params(empty_bag=rule))

    def test_lesion_outside_the_region_is_no_lesion(self, data_set, data_params):
        outside = np.zeros((24, 32), bool)
        outside[:3] = True
        data_set.save("lesion/c01.png", outside)
        assert not self.check(data_set, data_params()).has_lesion

    def test_nan_in_an_image(self, data_set, data_params):
        data_set.save("images/c01.npy", np.full((24, 32), np.nan))
        with pytest.raises(RowError, match="'images/c01.npy' must hold finite numbers, got 768 NaN or Inf") as error:
            self.check(data_set, data_params(), image="images/c01.npy")
        assert error.value.file == "images/c01.npy"

    @pytest.mark.parametrize("level", [0, 255])
    def test_an_image_of_one_grey_level(self, data_set, data_params, level):
        data_set.save("images/c01.png", np.full((24, 32), level, np.uint8))
        with pytest.raises(RowError, match=f"'images/c01.png' must show something, got the value {level} everywhere") as error:
            self.check(data_set, data_params())
        assert error.value.file == "images/c01.png"

    def test_an_image_that_is_black_in_256_grey_levels(self, data_set, data_params):
        data_set.save("images/c01.npy", np.arange(24 * 32, dtype=np.uint16).reshape(24, 32) % 100)
        with pytest.raises(RowError, match="got values from 0 to 99, which are one of 256 grey levels; .*intensity: minmax"):
            self.check(data_set, data_params(), image="images/c01.npy")
        self.check(data_set, data_params(intensity="minmax"), image="images/c01.npy")

    @pytest.mark.parametrize("kind", ["tiff", "png", "gif"])
    def test_a_picture_of_several_pages_or_frames(self, data_set, data_params, kind):
        pages = [Image.fromarray(np.random.default_rng(n).integers(0, 256, (24, 32), dtype=np.uint8)) for n in range(3)]
        path = data_set.root / f"images/pages.{kind}"
        pages[0].save(path, save_all=True, append_images=pages[1:])
        with pytest.raises(RowError, match=rf"'images/pages.{kind}' must hold one picture, got 3 pages or frames; save the one"):
            self.check(data_set, data_params(), image=f"images/pages.{kind}")
        pages[0].save(path)
        self.check(data_set, data_params(), image=f"images/pages.{kind}")

    def test_image_values_beyond_their_type(self, data_set, data_params):
        data_set.save("images/c01.npy", np.full((24, 32), 7.5))
        with pytest.raises(RowError, match="from 0 to 1 for its type float64, got 7.5 to 7.5; .*intensity: minmax") as error:
            self.check(data_set, data_params(), image="images/c01.npy")
        assert error.value.file == "images/c01.npy"


def test_missing_column_names_the_parameter_and_what_is_there(data_set, data_params):
    folder = data_set.open()
    columns = data_params(columns={"label": "Label", "clinical": ["age", "weight"]}).columns
    message = r"attention.data.columns.label must name a column of the manifest, got 'Label' \(2 mapped .*it has \['core_id',"
    with pytest.raises(ValueError, match=message):
        check_columns(folder.manifest, columns)
    with pytest.raises(ValueError, match=r"attention.data.columns.clinical\[1\] must name .* got 'weight'"):
        check_columns(folder.manifest, data_params(columns={"clinical": ["age", "weight"]}).columns)


def test_every_row_of_a_patient_in_two_splits_is_named():
    rows = [{"patient_id": p, "split": s, "row": n} for n, (p, s) in enumerate([("p", "train"), ("q", "val"), ("p", "test")])]
    reasons = split_reasons(rows)
    assert list(reasons) == [0, 2]
    assert reasons[0].startswith("patient 'p' must be in one split, got ['test', 'train']")
