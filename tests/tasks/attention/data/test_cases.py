"""Folders of cases and files with frames: which pictures they mean, what is refused, and how frames become one core."""

import json
import tracemalloc
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
from case_folders import FRAMES, HEIGHT, WIDTH, save, write_cases, write_info

from grpo_pipeline.tasks.attention.data.case_folders import list_cases
from grpo_pipeline.tasks.attention.data.checked_table import parse_checked
from grpo_pipeline.tasks.attention.data.core_frames import picture_names
from grpo_pipeline.tasks.attention.data.example_building import build_examples, stream_examples
from grpo_pipeline.tasks.attention.data.manifest import check_manifest
from grpo_pipeline.tasks.attention.data.split_params import SplitParams
from grpo_pipeline.tasks.attention.data.splits import split_cores
from grpo_pipeline.tasks.attention.inference.manifest import CoreRules, check_predict_manifest
from grpo_pipeline.tasks.attention.inference.params import PredictParams

OWN = {"source": "case_folders", "cores": 0, "complete": True}
NOTHING = dict.fromkeys(("region_mask", "bag_mask", "core_id", "center", "involvement", "grade_group", "split"))
FIELDS = {"patient_id": "patient", "label": "diagnosis", "clinical": ["age"]}
FILES = {
    "image": {"image": "image.png", "lesion_mask": "mask*.png"},
    "frames": {"image": "frame_*.png", "lesion_mask": "lesion_*.png"},
    "cine": {"image": "cine.npy", "lesion_mask": "lesion.npy"},
}
CINE = {"axis": 0, "take": "frames", "frames": "all"}
SPLIT = SplitParams(seed=0, fractions={"train": 0.5, "val": 0.25, "test": 0.25}, single_class="allow")


@pytest.fixture
def case_params(data_params):
    """``case_params(layout, columns={}, ...)``: the parameters that read ``write_cases`` of that layout."""

    def make(layout, columns=None, **changes):
        label = {"positive": ["malignant"], "negative": ["benign"]}
        named = NOTHING | FIELDS | FILES[layout] | (columns or {})
        return data_params(source="case_folders", columns=named, label=label, **changes)

    return make


def check(root, params):
    return check_manifest(list_cases(root, "*/info.json"), OWN, params)


def test_masks_of_an_image_are_one_and_fields_are_cells(tmp_path, case_params):
    write_cases(tmp_path / "root", 12, layout="image")
    checked, _, report = check(tmp_path / "root", case_params("image"))
    assert checked["core_id"].tolist() == [f"case{i:02d}" for i in range(12)]
    assert checked["patient_id"].tolist() == [f"P{i // 2}" for i in range(12)]
    assert checked["label"].tolist() == [i // 2 % 2 for i in range(12)]
    assert checked["row"].tolist() == list(range(1, 13))
    assert checked["lesion_mask"][2] == "case02/mask.png;case02/mask2.png"
    assert checked["age"].isna().sum() == 1
    assert "frame" not in checked
    assert (report["rows"], report["lesion_masks"]) == (12, 6)


@pytest.mark.parametrize(
    ("layout", "changes", "frames"),
    [
        ("frames", {}, ["0", "1", "2"]),
        ("cine", {"volume": CINE}, ["0", "1", "2"]),
        ("cine", {"volume": {"axis": 0, "take": "frames", "frames": "every 2"}}, ["0", "2"]),
        ("cine", {"volume": {"axis": 0, "take": "frames", "frames": [2, 1]}}, ["2", "1"]),
    ],
)
def test_every_frame_is_an_example_with_its_own_picture_and_mask(tmp_path, case_params, layout, changes, frames):
    root, params = tmp_path / "root", case_params(layout, **changes)
    write_cases(root, 12, layout=layout)
    checked, _, report = check(root, params)
    assert checked["frame"].tolist() == frames * 12
    assert checked["core_id"].tolist() == [f"case{i // len(frames):02d}" for i in range(12 * len(frames))]
    assert (report["rows"], report["cores"], report["frames"]) == (12 * len(frames), 12, 12 * len(frames))
    assert report["cores_by_label"] == {"0": 6, "1": 6}
    raw = list_cases(root, "*/info.json")
    cine = {case: case for case in checked["core_id"]}
    for row in checked.to_dict("records"):
        number, case = int(row["frame"]), cine[row["core_id"]]
        image, mask = raw.read_image(row["image"]), raw.read_mask(row["lesion_mask"]) if row["lesion_mask"] else None
        if layout == "cine":
            np.testing.assert_array_equal(image, np.load(root / case / "cine.npy")[number])
            np.testing.assert_array_equal(mask, np.load(root / case / "lesion.npy")[number])
        elif mask is not None:
            assert row["lesion_mask"] == f"{case}/lesion_{number}.png"
            assert image[mask].mean() < 80 < image[~mask].mean()
    # A table that was read back as text is the same, splits name a core once, and the examples hold every frame of it.
    read = parse_checked(checked.astype(str).replace("nan", ""), params)
    splits = split_cores(read, SPLIT)
    assert sorted(core for cores in splits.values() for core in cores) == sorted(set(checked["core_id"]))
    examples, _ = build_examples(raw, checked, splits, params)
    assert picture_names(examples.table)[1] == f"case00 / {sorted(frames)[1]}"
    assert examples.table.groupby("patient_id")["split"].nunique().max() == 1


def test_a_frame_behind_the_last_one_is_refused(tmp_path, case_params):
    """Three frames are numbered 0 to 2."""
    write_cases(tmp_path / "root", 12, layout="cine")
    for last, said in (
        (2, ""),
        (3, "must have a frame 3 along axis 0, got 3 counted from 0; correct attention.data.volume.frames"),
    ):
        params = case_params("cine", volume=CINE | {"frames": [0, last]}, on_bad_row="quarantine")
        with pytest.raises(ValueError, match=said) if said else nullcontext():
            assert len(check(tmp_path / "root", params)[0]) == 24


def test_the_axis_of_the_frames_is_stated(data_set, data_params):
    """[H, W, T] in a manifest: one row of the file becomes T rows, a mask of one plane serves all, a picture is one frame."""
    cine = np.random.default_rng(0).integers(0, 255, (24, 32, 4), dtype=np.uint8)
    data_set.save("images/c00.npy", cine)
    data_set.rows[0]["image"] = "images/c00.npy"
    params = data_params(volume={"axis": 2, "take": "frames", "frames": "all"})
    raw = data_set.open()
    checked, _, _ = check_manifest(raw, {"cores": 0}, params)
    assert checked["frame"].tolist() == ["0", "1", "2", "3", *["0"] * 11]
    assert checked["row"].tolist() == [2, 2, 2, 2, *range(3, 14)]
    for number in range(4):
        np.testing.assert_array_equal(raw.read_image(checked["image"][number]), cine[:, :, number])
    assert checked["bag_mask"][:4].tolist() == ["needle/c00.png"] * 4


def test_views_of_a_manifest_may_be_cines(data_set, data_params):
    for i, row in enumerate(data_set.rows):
        row.update(core_id=f"k{i // 4}", patient_id=f"p{i // 4}", center="a", view=f"v{i % 4}", label=str(i // 4 % 2))
        row.update(involvement="", grade_group="")
    data_set.save("images/c01.npy", np.random.default_rng(0).integers(0, 255, (2, 24, 32), dtype=np.uint8))
    data_set.rows[1]["image"] = "images/c01.npy"
    params = data_params(columns={"frame": "view"}, volume=CINE)
    checked, _, report = check_manifest(data_set.open(), {"cores": 0}, params)
    assert checked["frame"].tolist()[:4] == ["v0/0", "v1/0", "v1/1", "v2/0"]
    assert (report["cores"], report["frames"]) == (3, 13)


def test_frames_are_read_one_at_a_time(tmp_path, case_params, monkeypatch):
    """A cine of 60 MB: neither checking it nor building its examples holds more than a few of its frames."""
    root, params = tmp_path / "root", case_params("cine", {"lesion_mask": None}, volume=CINE | {"frames": "every 10"})
    for module in ("checked_rows", "example_building"):
        monkeypatch.setattr(f"grpo_pipeline.tasks.attention.data.{module}.usable_cores", lambda: 1)
    write_cases(root, 6, layout="cine")
    large = np.lib.format.open_memmap(root / "case00/cine.npy", mode="w+", dtype=np.uint8, shape=(240, 500, 500))
    large[:] = np.arange(500, dtype=np.uint16).astype(np.uint8)
    large.flush()
    del large
    tracemalloc.start()
    checked, _, _ = check(root, params)
    assert (checked["core_id"] == "case00").sum() == 24
    splits = {"train": sorted(set(checked["core_id"])), "val": [], "test": []}
    for _ in stream_examples(list_cases(root, "*/info.json"), checked, splits, params):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * 500 * 500


def no_info(folder):
    (folder / "info.json").unlink()


def empty(folder):
    for path in folder.iterdir():
        path.unlink()


def info(**fields):
    def write(folder):
        found = json.loads((folder / "info.json").read_text()) | fields
        write_info(folder, **{name: value for name, value in found.items() if value is not ...})

    return write


def text(content):
    return lambda folder: (folder / "info.json").write_text(content)


def put(name, array):
    return lambda folder: save(folder / name, array)


def rename(old, new):
    return lambda folder: (folder / old).rename(folder / new)


def objects(folder):
    np.save(folder / "cine.npy", np.array([[{}]]), allow_pickle=True)


GREY = np.arange(HEIGHT * WIDTH, dtype=np.uint8).reshape(HEIGHT, WIDTH)
BAD = {
    "an empty folder": ("image", empty, "'case02' must hold 'info.json', got an empty folder; add it or remove the folder"),
    "no info.json": ("image", no_info, "'case02' must hold 'info.json', got 'image.png', 'mask.png', 'mask2.png'; add it"),
    "no JSON": ("image", text("{'age': 3"), "'case02/info.json' must be JSON text in UTF-8, got Expecting property name"),
    "a list": ("image", text("[1]"), "'case02/info.json' must be a JSON object of fields, got a list; write {...}"),
    "a missing field": (
        "image",
        info(diagnosis=...),
        "must have the field 'diagnosis', got ['age', 'birads',",
    ),
    "a field that is a list": ("image", info(age=[3]), "must have text, a number, true, false or null as 'age', got a list"),
    "a field of another kind": ("image", info(age="old"), "column 'age' must be a number or empty, got 'old'; correct"),
    "an unknown label": (
        "image",
        info(diagnosis="cyst"),
        "column 'diagnosis' must be one of ['malignant', 'benign'], got",
    ),
    "no patient": ("image", info(patient=None), "column 'patient' must hold the patient_id of every row, got ''; fill it in"),
    "another name": (
        "image",
        rename("image.png", "img.png"),
        "'case02' must hold the image 'image.png', got 'img.png'",
    ),
    "a mask of another size": ("image", put("mask.png", GREY[:9] > 0), "must have the size of 'case02/mask.png', got"),
    "masks of another size": ("frames", put("lesion_1.png", GREY.T > 0), "'case02/lesion_1.png' must have the size of its image"),
    "a mask of no image": (
        "frames",
        put("lesion_7.png", GREY > 9),
        "'case02/lesion_7.png' must belong to an image of its case, got images ['frame_0.png', 'frame_1.png', 'frame_2.png']",
    ),
    "frames of two sizes": (
        "frames",
        put("frame_3.png", GREY[:-1]),
        f"frames of core 'case02' must have one size, got {WIDTH} x {HEIGHT} ('case02/frame_0.png') and {WIDTH} x {HEIGHT - 1} "
        "('case02/frame_3.png'); crop them alike, or set attention.data.frame_sizes: any",
    ),
    "a cine with pickles": ("cine", objects, "'case02/cine.npy' must be a complete NPY file of numbers, got"),
    "a cine of NaN": ("cine", put("cine.npy", np.full((FRAMES, HEIGHT, WIDTH), np.nan)), "must hold finite numbers, got"),
    "a cine of text": ("cine", put("cine.npy", np.array([["a"]])), "must hold real numbers, got type <U1; save it as uint8"),
    "a cine of another rank": (
        "cine",
        put("cine.npy", np.zeros((2, 2, 2, 2))),
        "must be one grey-level plane [height, width], got",
    ),
    "a cine without the frame": (
        "cine",
        put("cine.npy", GREY[None]),
        "'case02/cine.npy' must have a frame 2 along axis 0, got",
    ),
    "a mask of another cine": (
        "cine",
        put("lesion.npy", np.zeros((4, HEIGHT, WIDTH), bool)),
        "must have one slice or those of its image, 3, got 4; export it again",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_case_is_one_sentence_and_the_others_are_kept(tmp_path, case_params, name):
    layout, spoil, message = BAD[name]
    root, volume = tmp_path / "root", {"volume": CINE | {"frames": [0, 2]}} if layout == "cine" else {}
    write_cases(root, 12, layout=layout)
    spoil(root / "case02")
    with pytest.raises(ValueError, match="root/case02") as error:
        check(root, case_params(layout, **volume))
    assert message in str(error.value)
    checked, quarantine, _ = check(root, case_params(layout, on_bad_row="quarantine", **volume))
    assert set(quarantine["row"]) == {3}
    assert quarantine["reason"].str.contains(message, regex=False).all()
    kept = {f"case{i:02d}" for i in range(12)} - {"case02"}
    # Of several frames each is refused by itself, unless it is their case that is wrong.
    assert set(checked["core_id"]) - {"case02"} == kept


def twice(rows):
    rows[1].update(view="v0")


def labels(rows):
    rows[1].update(label="1")


def patients(rows):
    rows[1].update(patient_id="p9")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (twice, r"line 2 \(k0\): frame 'v0' of core 'k0' must be there once, got it in rows \[2, 3\]; name the frames apart"),
        (labels, r"line 2 \(k0\): core 'k0' must have one label in all its frames, got 0, 1; correct its rows"),
        (patients, r"line 2 \(k0\): core 'k0' must have one patient_id in all its frames, got p0, p9; correct its rows"),
    ],
)
def test_rows_of_a_core_belong_together(data_set, data_params, spoil, message):
    for i, row in enumerate(data_set.rows):
        row.update(core_id=f"k{i // 2}", view=f"v{i % 2}", label=str(i // 2 % 2), involvement="", grade_group="")
    params = data_params(columns={"frame": "view"})
    assert len(check_manifest(data_set.open(), {"cores": 0}, params)[0]) == 12
    spoil(data_set.rows)
    with pytest.raises(ValueError, match=message):
        check_manifest(data_set.open(), {"cores": 0}, params)
    _, quarantine, _ = check_manifest(
        data_set.open(), {"cores": 0}, data_params(columns={"frame": "view"}, on_bad_row="quarantine")
    )
    assert quarantine["row"].tolist() == [2, 3]


def test_sizes_may_differ_where_that_is_said(tmp_path, case_params):
    write_cases(tmp_path / "root", 12)
    save(tmp_path / "root/case02/frame_3.png", GREY[:-1])
    assert len(check(tmp_path / "root", case_params("frames", frame_sizes="any"))[0]) == 12 * FRAMES + 1


def test_a_pattern_that_no_case_has_is_a_missing_column(tmp_path, case_params):
    write_cases(tmp_path / "root", 12)
    params = case_params("frames", {"lesion_mask": "lesoin_*.png"})
    with pytest.raises(ValueError, match=r"lesion_mask must name a column .* got 'lesoin_\*.png'; it has .*'frame_\*.png'"):
        check(tmp_path / "root", params)
    with pytest.raises(ValueError, match=r"must hold a folder for each case, 'scans/\*/info.json', got none"):
        list_cases(tmp_path / "root", "scans/*/info.json")


def test_layout_and_source_must_agree(tmp_path, data_set, data_params, case_params):
    write_cases(tmp_path / "root", 12)
    with pytest.raises(ValueError, match=r"attention_manifest must be the name of a CSV file while .* is manifest"):
        check(tmp_path / "root", data_params())
    with pytest.raises(ValueError, match=r"attention_manifest must be '\*/info.json' while .* is case_folders"):
        check_manifest(data_set.open(), OWN, case_params("frames"))


def test_a_prediction_reads_the_same_folders_without_labels(tmp_path, case_params):
    root = tmp_path / "root"
    write_cases(root, 12, layout="cine")
    for folder in root.iterdir():
        write_info(folder, patient=f"P{folder.name}")
    columns = {"image": "cine.npy", "core_id": None, "patient_id": "patient", "region_mask": "gland.npy", "bag_mask": None}
    data = case_params("cine", columns, volume=CINE)
    rules = CoreRules(data.for_model(image_size=32, clinical=("age",)), 3, 4)
    params = PredictParams(
        arm="grpo", root="root", manifest="*/info.json", on_bad_row="fail", seed=0, n_samples=2, abstain=False
    )  # fmt: skip
    checked, _, absent = check_predict_manifest(list_cases(root, "*/info.json"), params, data, rules)
    assert list(checked.columns[:3]) == ["core_id", "frame", "patient_id"]
    assert checked["frame"].tolist() == ["0", "1", "2"] * 12
    assert absent == ("gland.npy", "age")


def test_a_class_without_a_row_is_said_before_anything_is_divided(data_set, data_params, caplog):
    for row in data_set.rows:
        row.update(involvement="", grade_group="")
    with pytest.raises(ValueError, match=r"no usable positive one \(\('malignant',\)\) while column 'label' holds \['0', '1'\]"):
        check_manifest(data_set.open(), {"cores": 0}, data_params(label={"positive": ["malignant"], "negative": ["0", "1"]}))
    check_manifest(data_set.open(), {"cores": 0}, data_params(label={"positive": ["1", "atypical"], "negative": ["0"]}))
    assert [record.getMessage() for record in caplog.records] == [
        "attention.data.label.positive names ['atypical'], which no row has: column 'label' holds ['0', '1']"
    ]


def test_a_table_without_frames_is_named_by_its_cores():
    assert picture_names(pd.DataFrame({"core_id": ["a", "b"]})).tolist() == ["a", "b"]


def test_folders_that_are_hidden_at_any_depth_are_no_cases(tmp_path):
    for folder in ("a/b", "a/.c", ".d/e", "f/g"):
        (tmp_path / folder).mkdir(parents=True)
    assert list_cases(tmp_path, "*/*/info.json").cases == ("a/b", "f/g")
