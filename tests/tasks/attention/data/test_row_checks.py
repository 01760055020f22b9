import math

import pytest

from grpo_pipeline.tasks.attention.data.contradictions import split_reasons
from grpo_pipeline.tasks.attention.data.row_checks import check_columns, read_reader, read_row
from grpo_pipeline.tasks.attention.data.rows import RowError


def first_row(data_set, params, **cells):
    folder = data_set.open()
    return read_row(dict(folder.manifest.iloc[1]) | cells, params)


FINDINGS = {
    "classes": {"cyst": ["cyst", "simple cyst", "both"], "calcified": ["calcified", "both"], "mass": ["mass", 3]},
    "positive": ["mass"],
    "negative": None,
    "several": True,
    "none": ["normal", ""],
}


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

    def test_folders_percent_unknown_values_and_names_of_a_split(self, data_set, data_params):
        for folder, path, joined in (("b/mode/", "1.png", "b/mode/1.png"), ("b", "/etc/x.png", "/etc/x.png")):
            assert first_row(data_set, data_params(folders={"image": folder}), image=path)["image"] == joined
        assert first_row(data_set, data_params(involvement_unit="percent"), involvement="40")["involvement"] == 0.4
        assert first_row(data_set, data_params(involvement_unit="percent"), involvement="100")["involvement"] == 1.0
        assert first_row(data_set, data_params(), involvement="1")["involvement"] == 1.0
        for cell in ("", "NaN", "n/a", "NULL", "?"):
            assert math.isnan(first_row(data_set, data_params(), psa=cell)["psa"])
        for row in data_set.rows:
            row["fold"] = "train"
        for cell, name in (("train", "train"), ("Validation", "val"), ("TEST", "test")):
            assert first_row(data_set, data_params(columns={"split": "fold"}), fold=cell)["split"] == name
        with pytest.raises(RowError, match="must be train, val or test, got '3'"):
            first_row(data_set, data_params(columns={"split": "center"}), center="3")

    def test_label_rules(self, data_set, data_params):
        params = data_params(label={"positive": ["malignant", 2], "negative": ["benign", 0]})
        for cell, label in (("malignant", 1), ("Malignant ", 1), ("benign", 0), ("2", 1), ("2.0", 1), ("0", 0)):
            assert first_row(data_set, params, label=cell, involvement="0", grade_group="1")["label"] == label
        above = data_params(columns={"label": "grade_group"}, label={"above": 2, "positive": None, "negative": None})
        assert first_row(data_set, above, grade_group="2", involvement="0.4")["label"] == 0  # it says itself what is negative
        cells = {"label": "whatever", "involvement": "", "grade_group": ""}
        assert first_row(data_set, data_params(label={"negative": None}), **cells)["label"] == 0
        with pytest.raises(RowError, match="got 'n/a'"):
            first_row(data_set, data_params(label={"negative": None}), label="n/a")

    @pytest.mark.parametrize(("cell", "number", "label"), [("Normal ", 0, 0), ("fibroadenoma", 1, 0), ("3", 2, 1), ("3.0", 2, 1)])
    def test_class_rule(self, data_set, data_params, cell, number, label):
        """A negative class may have an involvement: the class says what is negative."""
        classes = {"normal": ["normal"], "benign": ["cyst", "Fibroadenoma"], "malignant": ["3"]}
        params = data_params(label={"classes": classes, "positive": ["malignant"], "negative": None})
        row = first_row(data_set, params, label=cell)
        assert (row["class"], row["label"]) == (number, label)
        known = r"must be one of \['normal', 'cyst', 'Fibroadenoma', '3'\]"
        for bad, remedy in (("lymphoma", "correct the row or attention.data.label.classes"), ("cyst; 3", "a row has one class")):
            with pytest.raises(RowError, match=f"{known}, got '{bad}'; {remedy}"):
                first_row(data_set, params, label=bad)

    @pytest.mark.parametrize(
        ("cell", "bits", "label"),
        [
            ("cyst", 0b001, 0), ("Cyst ;3.0", 0b101, 1), ("mass; calcified", 0b110, 1), ("calcified;simple cyst;cyst", 0b011, 0),
            ("both", 0b011, 0), ("both; cyst", 0b011, 0), ("Normal", 0, 0), ("", 0, 0),
        ],
    )  # fmt: skip
    def test_findings_rule(self, data_set, data_params, cell, bits, label):
        row = first_row(data_set, data_params(label=FINDINGS), label=cell)
        assert (row["findings"], row["label"]) == (bits, label)
        assert "class" not in row

    @pytest.mark.parametrize(
        ("cell", "message"),
        [
            ("lymphoma", r"one or several of \['cyst', 'simple cyst', 'both', 'calcified', 'mass', '3'\], ';' between them, got"),
            ("cyst; lymphoma", "got 'cyst; lymphoma'; correct the row or attention.data.label.classes"),
            ("cyst;", "a value that means none of them stands alone"),
            ("normal; cyst", "a value that means none of them stands alone"),
            ("Cyst; cyst", "column 'label' must name a value once, got 'Cyst; cyst'; drop the copy"),
            ("?", r"got '\?'; list it in attention.data.label.none if it means that there is none of them"),
        ],
    )
    def test_bad_findings_are_refused(self, data_set, data_params, cell, message):
        with pytest.raises(RowError, match=message):
            first_row(data_set, data_params(label=FINDINGS), label=cell)
        without = {name: value for name, value in FINDINGS.items() if name != "none"}
        with pytest.raises(RowError, match="got ''; list it in attention.data.label.none"):
            first_row(data_set, data_params(label=without), label="")

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

    def test_a_negative_row_of_cancer_is_refused(self, data_set, data_params):
        for involvement, grade, message in (
            ("0.1", "0", "'involvement' must not tell of cancer .* 'label', is negative, got 0.1"),
            ("", "2", "'grade_group' must not tell of cancer .* is negative, got 2; correct"),
            ("0", "5", "'grade_group' must not tell of cancer"),
        ):
            cells = {"involvement": involvement, "grade_group": grade}
            with pytest.raises(RowError, match=message):
                first_row(data_set, data_params(), label="0", **cells)
            assert first_row(data_set, data_params(), label="1", **cells)["label"] == 1


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


def test_a_reader_s_words_are_the_numbers_that_are_said_and_without_words_numbers():
    words = {"low": 1.0, "high": 4.5}
    assert [read_reader({"r": cell}, "r", values=words) for cell in ("Low", "HIGH")] == [1.0, 4.5]
    assert math.isnan(read_reader({"r": "?"}, "r", values=words))
    assert read_reader({"r": "3.5"}, "r") == 3.5
    with pytest.raises(RowError, match=r"column 'r' must be one of \['high', 'low'\] or empty, got '3.5'"):
        read_reader({"r": "3.5"}, "r", values=words)
