"""A request is answered with the numbers of the manifest, however its images arrive, or refused in one sentence."""

import base64
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from tiny_attention import make_examples
from tiny_predictor import make_predictor

from grpo_pipeline.tasks.attention import exported as request
from grpo_pipeline.tasks.attention.exported import answer, encode_file

PREDICTOR, DOUBTING = make_predictor(), make_predictor(knows_inputs=True)
COLUMNS = ["prob", "prob_calibrated", "involvement", "outside", "outside_why", "distance", "points"]


def paths(count: int = 2) -> pd.DataFrame:
    names = [f"c{i:02d}.png" for i in range(count)]
    folders = {"image": "images", "region_mask": "region", "bag_mask": "needle"}
    return pd.DataFrame({column: [f"{folder}/{name}" for name in names] for column, folder in folders.items()})


def ask(table: pd.DataFrame, root: Path, *, n_samples: int = 2, with_heatmap: bool = False) -> pd.DataFrame:
    return answer(PREDICTOR, table, root=root, seed=0, n_samples=n_samples, with_heatmap=with_heatmap)


def expected(data_set, number: int):
    name = f"c{number:02d}.png"
    row = {"core_id": "x", "patient_id": "", "image": f"images/{name}", "region_mask": f"region/{name}",
           "bag_mask": f"needle/{name}", "spacing_mm": ""}  # fmt: skip
    return PREDICTOR.predict(data_set.open(), row, seed=0, n_samples=2)


def test_paths_get_the_numbers_of_the_predictor(data_set):
    table = ask(paths(), data_set.root, with_heatmap=True)
    assert list(table.columns) == [*COLUMNS, "heatmap"]
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(table["heatmap"][0]))))
    # Half a level of 65535, by rounding.
    np.testing.assert_allclose(picture / 65535, expected(data_set, 0).heatmap, atol=0.51 / 65535)
    assert ask(paths(0), data_set.root).columns.tolist() == COLUMNS
    for number in range(2):
        wanted = expected(data_set, number)
        found = table.iloc[number]
        assert (found["prob"], found["involvement"]) == (wanted.prob, wanted.involvement)
        assert found["prob_calibrated"] == wanted.calibrated
        np.testing.assert_array_equal(found["points"], wanted.points)


def test_inline_files_get_the_same_numbers_and_order(data_set, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table = paths(3)
    inline = table.map(lambda name: encode_file(data_set.root / name))
    mixed = table.copy()
    mixed.loc[1] = inline.loc[1]
    wanted = ask(table, data_set.root)
    np.save(tmp_path / "c00.npy", np.asarray(Image.open(data_set.root / "images/c00.png")), allow_pickle=False)
    arrays = table.copy()
    arrays.loc[0, "image"] = encode_file(tmp_path / "c00.npy")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = sorted(tmp_path.iterdir())
    for other in (inline, mixed, arrays):
        pd.testing.assert_frame_equal(ask(other, data_set.root), wanted)
    assert sorted(tmp_path.iterdir()) == before  # nothing of a request stays on disk
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    with pytest.raises(ValueError, match="'a.jpg' must be a PNG or NPY file to be sent"):
        encode_file(tmp_path / "a.jpg")


def test_masks_may_be_left_out_or_unknown(data_set):
    alone = ask(paths()[["image"]], data_set.root)
    assert alone["involvement"].isna().all()
    unknown = paths().assign(region_mask=[None, np.nan], bag_mask="")
    pd.testing.assert_frame_equal(ask(unknown, data_set.root), alone)
    assert alone["points"].tolist() != ask(paths(), data_set.root)["points"].tolist()


PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 40).decode()


def test_a_broken_image_is_refused_with_its_row(data_set):
    table, nothing = paths(3), "row 1 of the request: image must be a path or a base64 text, got nothing"
    for cell, message in (
        (PNG, r"row 1 of the request: 'request-1-image.png' must be .* got"),
        (PNG[:-3] + "=A=", r"row 1 of the request: image must be base64 text, got"),
        ("A" * 2000, r"row 1 of the request: image must be a path or the base64 text of a PNG or NPY file, got 2000 characters"),
        ("images/none.png", r"row 1 of the request: 'images/none.png' must be a file below"),
        ("../c00.png", r"row 1 of the request: '../c00.png' must be a path below the data root"),
        (f"{data_set.root}/images/c00.png", r"'.*c00.png' must be relative to .*, got an absolute path; give it as 'images"),
        ("/etc/hostname", r"row 1 of the request: '/etc/hostname' must be a path below the data root"),
        ("request-../c00.png", r"row 1 of the request: 'request-../c00.png' must be a"),
        ("", nothing),
        (None, nothing),
    ):
        table.loc[1, "image"] = cell
        with pytest.raises(ValueError, match=message):
            ask(table, data_set.root)


def test_a_request_that_asks_for_too_much_or_for_nothing_is_refused(data_set, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(request, "MOST_CHARACTERS", 12_000)
    for change, message in (
        ({"n_samples": 0}, "sets must be from 1 to 256, got 0; correct it"),
        ({"n_samples": 257}, "sets must be from 1 to 256, got 257; correct it"),
        ({"seed": -1}, "seed must be from 0 to 9223372036854775807, got -1; correct it"),
        ({"table": paths(257)}, "the request must have at most 256 rows, got 257; send several requests"),
        ({"table": pd.DataFrame({"image": ["a" * 6001] * 2})},
         "must hold at most 12000 characters of text, got 12002; send several requests, or paths"),
        ({"table": pd.DataFrame({"picture": ["a"]})}, r"the request must have a column 'image', got \['picture'\]"),
        ({"abstain": True}, "abstain must be false for a model that does not know what its training images looked like"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            answer(PREDICTOR, **{"table": paths(), "root": data_set.root, "seed": 0, "n_samples": 1} | change)


def test_an_answer_is_json_without_nan(data_set):
    """Numbers without a value are null; a row that is outside has no probability where it is asked to abstain."""
    known, size = make_examples(), (32, 32)
    ramp = np.add.outer(np.arange(32), np.arange(32)).astype(np.uint8) * 4
    for name, array in {"known": known.images[0], "ramp": ramp, "area": known.region[0].astype(np.uint8) * 255}.items():
        Image.fromarray(array.reshape(size)).save(data_set.root / f"{name}.png")
    table = pd.DataFrame({"image": ["known.png", "ramp.png"], "region_mask": "area.png"})
    for abstain in (False, True):
        found = answer(DOUBTING, table, root=data_set.root, seed=0, n_samples=2, with_heatmap=True, abstain=abstain)
        rows = json.loads(json.dumps(found.to_dict("records"), allow_nan=False))
        odd = rows[1]
        assert odd["outside"] is True
        assert odd["distance"] > 1
        assert "times the limit" in odd["outside_why"]
        assert odd["involvement"] is None
        assert np.shape(odd["points"]) == (2, 3, 2)
        assert [odd[name] is None for name in ("prob", "prob_calibrated", "heatmap")] == [abstain] * 3
        assert rows[0]["prob"] is not None
    unknown = answer(PREDICTOR, table, root=data_set.root, seed=0, n_samples=2).to_dict("records")[1]
    assert [unknown[name] for name in ("outside", "outside_why", "distance")] == [None] * 3


def test_points_that_were_stopped_are_not_sent_and_limits_are_reached(data_set, monkeypatch: pytest.MonkeyPatch):
    prediction = expected(data_set, 0)
    points = prediction.points.copy()
    points[0, 1:], points[1, :] = np.nan, np.nan
    found = request.answer_row(replace(prediction, points=points), with_heatmap=False)["points"]
    assert found == [points[0, :1].tolist(), []]
    monkeypatch.setattr(request, "MOST_ROWS", 2)
    assert len(ask(paths(2), data_set.root)) == 2
    with pytest.raises(ValueError, match="the request must have at most 2 rows, got 3; send several requests"):
        ask(paths(3), data_set.root)
