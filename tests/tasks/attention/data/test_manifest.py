import io
import json

import numpy as np
import pandas as pd
import pytest

from grpo_pipeline.tasks.attention.data.checked_table import parse_checked
from grpo_pipeline.tasks.attention.data.data_report import describe_spacing
from grpo_pipeline.tasks.attention.data.manifest import check_manifest
from grpo_pipeline.tasks.attention.data.quarantine import failure
from grpo_pipeline.tasks.attention.data.split_params import SplitParams
from grpo_pipeline.tasks.attention.pipelines import nodes

OWN = {"source": "manifest", "cores": 0, "complete": True}
CANONICAL = ["core_id", "patient_id", "center", "label", "involvement", "grade_group", "age", "psa", "psa_density",
             "family_history", "image", "region_mask", "bag_mask", "lesion_mask", "has_lesion_mask", "row"]  # fmt: skip


def test_good_data_set_with_unknown_values_an_empty_bag_and_a_spacing(data_set, data_params):
    checked, quarantine, report = check_manifest(data_set.open(), OWN, data_params())
    assert list(checked.columns) == CANONICAL
    assert checked["core_id"].tolist() == [f"c{i:02d}" for i in range(12)]
    assert checked["row"].tolist() == list(range(2, 14))
    assert checked["has_lesion_mask"].tolist() == [False, True] * 6
    assert quarantine.empty
    assert list(quarantine.columns) == ["row", "core_id", "file", "reason"]
    assert (report["rows"], report["usable"], report["quarantined"], report["patients"]) == (12, 12, 0, 6)
    assert report["cores_by_label"] == {"0": 6, "1": 6}
    assert report["cores_by_center"] == {"a": 6, "b": 6}
    assert report["lesion_masks"] == 6
    assert "spacing_mm" not in checked
    data_set.rows[0]["psa"], data_set.rows[3]["psa"], data_set.rows[3]["age"] = "", "NaN", "nan"
    data_set.save("needle/c07.png", np.zeros((24, 32), bool))
    checked, _, report = check_manifest(data_set.open(), OWN, data_params(empty_bag="region", spacing_mm=[0.1, 0.25]))
    assert report["unknown"] == {"involvement": 0, "grade_group": 0, "age": 1, "psa": 2, "psa_density": 0, "family_history": 0}
    assert np.flatnonzero(checked["psa"].isna()).tolist() == [0, 3]
    assert checked["bag_mask"].tolist()[6:9] == ["needle/c06.png", "", "needle/c08.png"]
    assert report["bags_replaced_by_region"] == 1
    assert checked["spacing_mm"].tolist() == ["0.1 0.25"] * 12
    assert checked["stored_size"].tolist() == ["24 32"] * 12
    assert describe_spacing(checked["spacing_mm"]) == {"spacing": {"known": 12, "unknown": 0}}
    checked.loc[3:5, "spacing_mm"] = ""
    told = describe_spacing(checked["spacing_mm"])["spacing"]
    assert (told["known"], told["unknown"]) == (9, 3)
    assert told["without"] == "distances are unknown"


def spoil(data_set):
    """Three bad rows: line 4 lacks its image, line 7 has an impossible grade, line 9 an empty needle mask."""
    (data_set.root / "images/c02.png").unlink()
    data_set.rows[5]["grade_group"] = "9"
    data_set.save("needle/c07.png", np.zeros((24, 32), bool))


def test_the_first_bad_row_is_named_and_all_are_counted_also_where_nothing_is_left(data_set, data_params):
    spoil(data_set)
    message = (
        r"manifest.csv line 4 \(c02\): 'images/c02.png' must be a file below .* "
        r"\(3 of 12 rows are bad: correct them, or set attention.data.on_bad_row: quarantine to go on without them\)$"
    )
    with pytest.raises(ValueError, match=message):
        check_manifest(data_set.open(), OWN, data_params())
    for row in data_set.rows:
        row["label"] = "unclear"
    with pytest.raises(ValueError, match="all rows are bad, 12 of 12, there is nothing to go on with"):
        check_manifest(data_set.open(), OWN, data_params(on_bad_row="quarantine"))


def test_quarantine_lists_every_bad_row_and_keeps_the_others_on_any_number_of_cores(data_set, data_params, monkeypatch):
    spoil(data_set)
    found = []
    for n in (1, 2, 5):
        monkeypatch.setattr("grpo_pipeline.tasks.attention.data.checked_rows.usable_cores", lambda n=n: n)
        found.append(check_manifest(data_set.open(), OWN, data_params(on_bad_row="quarantine")))
    checked, quarantine, report = found[0]
    assert checked["row"].tolist() == [2, 3, 5, 6, 8, 10, 11, 12, 13]
    assert quarantine["row"].tolist() == [4, 7, 9]
    assert quarantine["core_id"].tolist() == ["c02", "c05", "c07"]
    assert quarantine["file"].tolist() == ["images/c02.png", "", "needle/c07.png"]
    assert quarantine["reason"].str.contains("must be").sum() == 2
    assert (report["usable"], report["quarantined"]) == (9, 3)
    for tables in found[1:]:
        for one, other in zip(found[0][:2], tables[:2], strict=True):
            pd.testing.assert_frame_equal(one, other)
        assert tables[2] == report


def test_both_rows_of_a_duplicated_core_are_refused(data_set, data_params):
    data_set.rows[4]["core_id"] = "c01"
    with pytest.raises(ValueError, match=r"line 3 \(c01\): core id 'c01' must be unique, got it in lines \[3, 6\].*\(2 of 12"):
        check_manifest(data_set.open(), OWN, data_params())
    checked, quarantine, _ = check_manifest(data_set.open(), OWN, data_params(on_bad_row="quarantine"))
    assert quarantine["row"].tolist() == [3, 6]
    assert "c01" not in set(checked["core_id"])


def test_masks_that_look_inverted_or_smeared_are_said_and_counted_in_the_report(data_set, data_params, caplog):
    inside = np.zeros((24, 32), np.uint8)
    inside[8:14, 6:12] = np.linspace(60, 250, 36, dtype=np.uint8).reshape(6, 6)  # as a JPEG file leaves it
    data_set.save("lesion/c01.png", inside)
    inverted = np.ones((24, 32), bool)
    inverted[8:14, 6:12] = False
    data_set.save("lesion/c03.png", inverted)
    _, _, report = check_manifest(data_set.open(), OWN, data_params())
    smeared = float((inside >= 125).mean())
    shares = {"lowest_share": round(smeared, 4), "median_share": round(36 / 768, 4), "highest_share": round(1 - 36 / 768, 4)}
    counts = {"files": 6, "empty": 0, "more_than_half": 1, "smeared": 1, "shared": 0, "unnamed": 0}
    assert report["masks"]["lesion_mask"] == shares | counts
    said = [record.getMessage() for record in caplog.records]
    assert any("1 of 6 masks of lesion_mask cover more than half of their image" in line for line in said)
    assert any("1 of 6 masks of lesion_mask have more than 16 values" in line for line in said)
    assert not any("region_mask" in line for line in said)  # a region may cover most of it


def test_values_of_masks_are_named_for_every_file_of_a_row(data_set, data_params):
    zones = np.zeros((24, 32), np.uint8)
    zones[8:14, 6:12], zones[4:6, 6:12] = 1, 2
    data_set.save("lesion/c01.png", zones)
    data_set.save("lesion/c01b.png", np.roll(zones, 8, axis=1))
    data_set.rows[1]["lesion_mask"] = "lesion/c01.png; lesion/c01b.png"
    data_set.save("lesion/c03.png", 2 * zones.clip(0, 1))
    with pytest.raises(ValueError, match=r"line 3 \(c01\): 'lesion/c01.png' must have one value beside 0, got 1, 2; say which"):
        check_manifest(data_set.open(), OWN, data_params())
    raw, params = data_set.open(), data_params(mask_values={"lesion_mask": [2, 255]})
    checked, _, report = check_manifest(raw, OWN, params)
    assert checked["lesion_mask"][1] == "lesion/c01.png#values=2,255;lesion/c01b.png#values=2,255"
    np.testing.assert_array_equal(raw.read_mask(checked["lesion_mask"][1]), (zones == 2) | (np.roll(zones, 8, axis=1) == 2))
    assert report["masks"]["lesion_mask"]["lowest_share"] == round(24 / 768, 4)
    data_set.save("lesion/c01b.png", zones)
    assert check_manifest(data_set.open(), OWN, params)[2]["digests"]["files"] != report["digests"]["files"]


def test_masks_without_the_named_values_and_empty_ones_are_said(data_set, data_params, caplog):
    def said(**changes):
        caplog.clear()
        found = check_manifest(data_set.open(), OWN, data_params(**changes))[2]["masks"]["lesion_mask"]
        return [line for line in caplog.messages if "of lesion_mask" in line], found.get("missed")

    assert said(mask_values={"lesion_mask": [255]}) == ([], None)
    outline = np.zeros((24, 32), np.uint8)
    outline[8:14, 6:12] = 1
    data_set.save("lesion/c01.png", outline)
    for value, count in ((1, 5), (7, 6)):
        [line], missed = said(mask_values={"lesion_mask": [value]})
        assert line.startswith(
            f"{count} of 6 masks of lesion_mask hold none of the values that attention.data.mask_values.lesion"
        )
        assert missed == count
    for row in data_set.rows[3::2]:
        data_set.save(row["lesion_mask"], np.zeros((24, 32), bool))
    assert said() == said(mask_values={"lesion_mask": [1]}) == ([], None)  # images without a lesion
    data_set.save("lesion/c01.png", 0 * outline)
    [line], missed = said(mask_values={"lesion_mask": [1]})
    assert line.startswith("All 6 masks of lesion_mask are empty: is the outline drawn where it is read")
    assert missed is None


def test_images_of_12_bits_in_16_are_said(data_set, data_params, caplog):
    def said(**changes):
        caplog.clear()
        check_manifest(data_set.open(), OWN, data_params(**changes))
        return [line for line in caplog.messages if "16 bits" in line]

    levels = np.linspace(0, 4095, 768).reshape(24, 32).astype(np.uint16)
    for core in ("c02", "c05"):
        data_set.save(f"images/{core}.png", levels)
    [line] = said()
    assert line.startswith("All 2 images of 16 bits use less than a sixteenth of their range")
    assert said(intensity="minmax") == []
    data_set.save("images/c05.png", levels + 1)  # one that uses more
    assert said() == []


def test_outlines_of_other_images_are_said(data_set, data_params, caplog):
    data_set.rows[3]["lesion_mask"] = data_set.rows[5]["lesion_mask"]  # c03 has the outline of c05, and its own is unread
    (data_set.root / "lesion/notes.txt").write_text("no mask")
    data_set.save("lesion/none.png", np.zeros((24, 32), bool))
    for row in data_set.rows[::2]:
        row["lesion_mask"] = "lesion/none.png"  # one empty file for all that have none is no fault
    for row in data_set.rows:
        row["region_mask"] = "region/c00.png"  # nor is one region for all
    _, _, report = check_manifest(data_set.open(), OWN, data_params())
    found = {name: (one["shared"], one["unnamed"]) for name, one in report["masks"].items()}
    assert found == {"region_mask": (1, 11), "bag_mask": (0, 0), "lesion_mask": (1, 1)}
    said = [record.getMessage() for record in caplog.records]
    [line] = [line for line in said if line.startswith("1 files beside those of lesion_mask belong to no row")]
    assert "'lesion/c03.png'" in line
    assert any(line.startswith("1 files of lesion_mask mark something in several images") for line in said)
    assert not any("of region_mask mark" in line for line in said)


def test_a_readers_score_stands_in_the_table_and_unknown_ones_are_counted(data_set, data_params):
    cells = ["4a", "2", "?", "4B", "", "5", "1", "3", "2", "4b", "5", "0"]
    for row, cell in zip(data_set.rows, cells, strict=True):
        row["birads"] = cell
    values = {"0": -1, "1": 1, "2": 2, "3": 3, "4A": 4.1, "4b": 4.2, "5": 5}
    params = data_params(columns={"reader_score": "birads"}, reader_values=values)
    checked, _, report = check_manifest(data_set.open(), OWN, params)
    read = parse_checked(pd.read_csv(io.StringIO(checked.to_csv(index=False)), dtype=str, keep_default_na=False), params)
    np.testing.assert_array_equal(read["reader_score"], [4.1, 2, np.nan, 4.2, np.nan, 5, 1, 3, 2, 4.2, 5, -1])
    assert report["unknown"]["reader_score"] == 2
    with pytest.raises(ValueError, match="column 'birads' must be a number or empty, got '4a'"):
        check_manifest(data_set.open(), OWN, data_params(columns={"reader_score": "birads"}))
    del values["4A"]
    with pytest.raises(ValueError, match="column 'birads' must be one of .* or empty, got '4a'; correct .*data.reader_values"):
        check_manifest(data_set.open(), OWN, data_params(columns={"reader_score": "birads"}, reader_values=values))
    with pytest.raises(ValueError, match="reader_score must not be among the clinical columns, which the model sees, got 'psa'"):
        data_params(columns={"reader_score": "psa"})


def test_data_of_another_root_or_source_are_refused(data_set, data_params):
    for root in ("../root", "./root"):
        assert len(check_manifest(data_set.open(), OWN, data_params(root=root))[0]) == 12
    with pytest.raises(ValueError, match=r"attention.data.root must be the folder of the dataset attention.raw"):
        check_manifest(data_set.open(), OWN, data_params(root="elsewhere"))
    written = {"source": "phantom", "cores": 1042, "complete": True}
    with pytest.raises(ValueError, match="1042 generated cores while .* got 12 rows; set attention.data.source: manifest"):
        check_manifest(data_set.open(), written, data_params(source="phantom"))


def test_digest_follows_the_content_not_the_order(data_set, data_params):
    digests = [check_manifest(data_set.open(), OWN, data_params())[2]["digests"]]
    data_set.rows.reverse()
    digests.append(check_manifest(data_set.open(), OWN, data_params())[2]["digests"])
    data_set.save("needle/c03.png", np.ones((24, 32), bool))
    digests.append(check_manifest(data_set.open(), OWN, data_params())[2]["digests"])
    assert digests[0]["files"] == digests[1]["files"] != digests[2]["files"]
    assert digests[0]["manifest"] != digests[1]["manifest"] == digests[2]["manifest"]


def test_checked_rows_survive_a_csv_file(data_set, data_params):
    for number, row in enumerate(data_set.rows):
        row["core_id"], row["center"], row["psa"] = f"00{number:02d}", "north, 1", ("", "0.1", "1e-7")[number % 3]
    params = data_params()
    checked = check_manifest(data_set.open(), OWN, params)[0]
    text = pd.read_csv(io.StringIO(checked.to_csv(index=False)), dtype=str, keep_default_na=False)
    pd.testing.assert_frame_equal(parse_checked(text, params), checked, check_dtype=True)
    pd.testing.assert_frame_equal(parse_checked(checked, params), checked)


CLASSES = {"classes": {"none": ["0"], "some": ["1"], "much": ["2"]}, "positive": ["some", "much"], "negative": None}


def test_classes_are_numbered_and_counted(data_set, data_params):
    for number in (3, 7, 11):
        data_set.rows[number]["label"] = "2.0"
    params = data_params(label=CLASSES)
    checked, _, report = check_manifest(data_set.open(), OWN, params)
    assert list(checked.columns) == [*CANONICAL, "class"]
    assert checked["class"].tolist() == [0, 1, 0, 2, 0, 1, 0, 2, 0, 1, 0, 2]
    assert checked["label"].tolist() == [0, 1] * 6
    assert report["classes"] == {
        "none": {"label": 0, "cores": 6, "patients": 6},
        "some": {"label": 1, "cores": 3, "patients": 3},
        "much": {"label": 1, "cores": 3, "patients": 3},
    }
    text = pd.read_csv(io.StringIO(checked.to_csv(index=False)), dtype=str, keep_default_na=False)
    assert parse_checked(text, params)["class"].tolist() == checked["class"].tolist()


def test_findings_are_kept_as_bits_and_counted(data_set, data_params, caplog):
    cells = ["normal", "some", "some; much", "much", "some", "normal; some", "some", "some", "some", "some", "some", ""]
    for row, cell in zip(data_set.rows, cells, strict=True):
        row["label"] = cell
    lists = {"some": ["some"], "much": ["much", "lots"]}
    params = data_params(
        label={"classes": lists, "positive": ["much"], "negative": None, "several": True, "none": ["normal", ""]},
        on_bad_row="quarantine",
    )
    checked, refused, report = check_manifest(data_set.open(), OWN, params)
    assert list(checked.columns) == [*CANONICAL, "findings"]
    assert checked["findings"].tolist() == [0, 1, 3, 2, 1, 1, 1, 1, 1, 1, 0]
    assert refused["core_id"].tolist() == ["c05"]
    assert checked["label"].tolist() == [0, 0, 1, 1] + [0] * 7
    counts = report["classes"]
    assert {name: (one["label"], one["cores"]) for name, one in counts.items()} == {"some": (0, 8), "much": (1, 2)}
    assert report["findings_per_core"] == {"0": 2, "1": 8, "2": 1}
    text = pd.read_csv(io.StringIO(checked.to_csv(index=False)), dtype=str, keep_default_na=False)
    assert parse_checked(text, params)["findings"].tolist() == checked["findings"].tolist()
    (told,) = [record.getMessage() for record in caplog.records if "which no row has" in record.getMessage()]
    assert "classes.much names ['lots']" in told
    data_set.rows[2]["label"] = data_set.rows[3]["label"] = "some"
    with pytest.raises(ValueError, match=r"must leave each class a row, got no usable classes.much one \(\('much', 'lots'\)\)"):
        check_manifest(data_set.open(), OWN, params)


def test_a_class_without_a_usable_row_is_refused(data_set, data_params):
    message = (
        r"label must leave each class a row, got no usable classes.much one .* column 'label' holds \['0', '1'.*manifest.csv$"
    )
    with pytest.raises(ValueError, match=message):
        check_manifest(data_set.open(), OWN, data_params(label=CLASSES))
    data_set.rows[3]["label"] = "2"
    (data_set.root / "images/c03.png").unlink()
    with pytest.raises(ValueError, match=message):
        check_manifest(data_set.open(), OWN, data_params(label=CLASSES, on_bad_row="quarantine"))


def test_bad_rows_are_listed_before_the_run_stops(data_set, data_params):
    split = SplitParams.model_validate({"seed": 0, "fractions": {"train": 0.6, "val": 0.2, "test": 0.2}, "single_class": "error"})
    for number in (3, 5):
        data_set.rows[number]["involvement"] = "7"
    raw = data_set.open()
    for rule, said in (
        ("fail", r"manifest.csv line 5 \(c03\): .* \(2 of 12 rows are bad: correct them"),
        ("quarantine", r"^2 of 12 rows were refused, the first at .*manifest.csv line 5 \(c03\): .* With the others: split "),
    ):
        params = data_params(on_bad_row=rule)
        checked, quarantine, report = nodes.check_manifest(params, raw, OWN)
        assert (len(checked), list(quarantine["row"]), report["quarantined"]) == (10, [5, 7], 2)
        alike = checked.assign(label=0) if rule == "quarantine" else checked
        with pytest.raises(ValueError, match=said):
            nodes.split_cores(split, params, raw, alike, quarantine)


def test_refused_rows_stand_in_the_order_of_the_manifest_whatever_their_names(data_set, data_params):
    spoil(data_set)
    for row, name in ((2, "z"), (5, "y"), (7, "x"), (9, "x")):
        data_set.rows[row]["core_id"] = name
    _, quarantine, _ = check_manifest(data_set.open(), OWN, data_params(on_bad_row="quarantine"))
    assert quarantine["row"].tolist() == [4, 7, 9]
    assert quarantine["core_id"].tolist() == ["z", "y", "x"]


def test_a_patient_in_two_splits_of_the_manifest_is_refused_with_all_rows(data_set, data_params):
    for place, row in enumerate(data_set.rows):
        row["split"] = ("train", "train", "val", "val", "test", "test")[place // 2]
    data_set.rows[3]["split"] = "test"
    params = data_params(columns={"split": "split"}, on_bad_row="quarantine")
    checked, quarantine, _ = check_manifest(data_set.open(), OWN, params)
    assert quarantine["row"].tolist() == [4, 5]
    assert set(quarantine["reason"]) == {"patient 'p1' must be in one split, got ['test', 'train']; move all its rows to one"}
    assert checked["row"].tolist() == [2, 3, *range(6, 14)]


def test_where_nothing_is_left_all_rows_are_called_bad_though_fewer_are_listed(data_set):
    refused = [{"row": 3, "core_id": "c01", "reason": "it is bad"}]
    said = failure(data_set.open(), refused, n_rows=2, n_left=0)
    assert said.endswith("line 3 (c01): it is bad (all rows are bad, 2 of 2, there is nothing to go on with)")
    assert "(1 of 2 rows are bad: correct them" in failure(data_set.open(), refused, n_rows=2, n_left=1)


def test_a_core_that_the_file_of_splits_does_not_name_is_refused(data_set, data_params):
    names = [f"c{i:02d}" for i in range(12)]
    splits = {"train": names[:6], "val": names[6:8], "test": names[8:11]}
    (data_set.root / "splits.json").write_text(json.dumps(splits))
    checked, quarantine, _ = check_manifest(data_set.open(), OWN, data_params(splits_file="splits.json", on_bad_row="quarantine"))
    assert quarantine["reason"].tolist() == [
        "core 'c11' must be in a split of 'splits.json', got none; add it there or drop the row"
    ]
    assert checked["split"].tolist() == ["train"] * 6 + ["val"] * 2 + ["test"] * 3
