"""HDF5 files, each written by h5py, read by key; and a whole data set of metadata.csv, data.h5 and splits.json."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml
from tiny import CONF, merge

from grpo_pipeline.tasks.attention.data.example_building import build_examples
from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder, UnreadableFileError, read_manifest
from grpo_pipeline.tasks.attention.data.manifest import check_manifest
from grpo_pipeline.tasks.attention.data.params import DataParams
from grpo_pipeline.tasks.attention.data.planes import split_key
from grpo_pipeline.tasks.attention.data.split_params import SplitParams
from grpo_pipeline.tasks.attention.data.splits import split_cores

h5py = pytest.importorskip("h5py", reason="HDF5 files are written with h5py: pip install '.[formats]'")
OWN = {"source": "manifest", "cores": 0, "complete": True}
GREY = np.array([[0, 1, 2], [127, 128, 255]], np.uint8)
VOLUME = np.random.default_rng(0).integers(0, 200, (3, 4, 5)).astype(np.uint8)


def write(path, **datasets):
    with h5py.File(path, "a") as file:
        for name, values in datasets.items():
            file[name.replace("__", "/")] = values


def test_file_and_key():
    keys = {"data.h5::bmode/0001": ("data.h5", "bmode/0001"), "a/b.HDF5::x": ("a/b.HDF5", "x"), "a.h5::b::c": ("a.h5", "b::c")}
    whole = {path: (path, "") for path in ("data.h5", "a::b.png")}
    assert {path: split_key(path) for path in keys | whole} == keys | whole


@pytest.mark.parametrize("array", [GREY, GREY.astype(np.uint16) * 257, GREY / 255.0, GREY > 1])
def test_planes_and_slices_keep_values_and_type(folder, array):
    write(folder.root / "d.h5", bmode__a=array, v=VOLUME)
    read = folder.read_image("d.h5::bmode/a")
    np.testing.assert_array_equal(read, array)
    assert read.dtype == array.dtype
    for axis in range(3):
        plane = folder.read_plane(f"d.h5::v#axis={axis},take=index,index=1", as_mask=False)
        np.testing.assert_array_equal(plane.values, VOLUME.take(1, axis))
        assert (plane.n_slices, plane.spacing_mm) == (VOLUME.shape[axis], None)


def outside(root):
    write(root.parent / f"{root.name}.h5", a=GREY)
    return str(root.parent / f"{root.name}.h5")


def external_link(file, root):
    file["a"] = h5py.ExternalLink(outside(root), "/a")


def soft_link(file, root):
    file["b"], file["a"] = GREY, h5py.SoftLink("/b")


def virtual(file, root):
    layout = h5py.VirtualLayout(shape=(2, 3), dtype=np.uint8)
    layout[:] = h5py.VirtualSource(outside(root), "a", shape=(2, 3))
    file.create_virtual_dataset("a", layout)


def external_storage(file, root):
    raw = root.parent / f"{root.name}.raw"
    raw.write_bytes(GREY.tobytes())
    file.create_dataset("a", shape=(2, 3), dtype=np.uint8, external=[(str(raw), 0, 6)])


def truncated(root):
    write(root / "d.h5", a=np.zeros((64, 64)))
    (root / "d.h5").write_bytes((root / "d.h5").read_bytes()[:-20000])


def spoilt_chunk(root):
    with h5py.File(root / "d.h5", "w") as file:
        dataset = file.create_dataset("a", data=np.arange(4096.0).reshape(64, 64), chunks=(64, 64), compression="gzip")
        place = dataset.id.get_chunk_info(0)
    content = bytearray((root / "d.h5").read_bytes())
    content[place.byte_offset + 20 : place.byte_offset + 60] = bytes(40)
    (root / "d.h5").write_bytes(content)


GONE, BROKEN = "must be a file below .*, got nothing there", "must lie in a complete HDF5 file, got .*"
OTHER_FILE = "must be stored in the file itself, got a "
GROUPS = {f"bmode__c{i}": GREY for i in range(5)}
# What makes the file, or its datasets; the path; the error.
BAD = {
    "no file": (lambda root: None, "d.h5::a", GONE),
    "text": (lambda root: (root / "d.h5").write_text("hello" * 99), "d.h5::a", f"{BROKEN}; copy it"),
    "truncated": (truncated, "d.h5::a", f"{BROKEN}truncated"),
    "spoilt chunk": (spoilt_chunk, "d.h5::a", BROKEN),
    "no group": ({"x__a": GREY}, "d.h5::bmode/a", r"got no 'bmode' in '/', which holds 1 names such as \['x'\]; correct the"),
    "no key": (GROUPS, "d.h5::bmode/c7", r"got no 'c7' in '/bmode', which holds 5 names such as \['c0', 'c1', 'c2'\]"),
    "below a dataset": ({"a": GREY}, "d.h5::a/b", "got a dataset '/a' with nothing below it"),
    "group": ({"a__b": GREY}, "d.h5::a", "got a group; add the name of a dataset"),
    "one axis": ({"a": np.zeros(4)}, "d.h5::a", r"one plane or one volume, got shape \(4,\)"),
    "four axes": ({"a": np.zeros((1, 2, 2, 2))}, "d.h5::a", r"got shape \(1, 2, 2, 2\)"),
    "no pixels": ({"a": np.zeros((0, 2))}, "d.h5::a", r"got shape \(0, 2\)"),
    "scalar": ({"a": 3.0}, "d.h5::a", r"got shape \(\)"),
    "empty": ({"a": h5py.Empty("f")}, "d.h5::a", r"got shape \(\)"),
    "text values": ({"a": np.array([[b"x", b"y"]])}, "d.h5::a", r"must hold real numbers, got type \|S1; save it as uint8 or"),
    "complex": ({"a": np.zeros((2, 2), complex)}, "d.h5::a", "got type complex128"),
    "nan": ({"a": np.array([[0.5, np.nan]])}, "d.h5::a", "finite numbers, got 1 NaN or Inf"),
    "external link": (external_link, "d.h5::a", f"{OTHER_FILE}link"),
    "soft link": (soft_link, "d.h5::a", f"{OTHER_FILE}link"),
    "virtual": (virtual, "d.h5::a", f"{OTHER_FILE}reference to others"),
    "external storage": (external_storage, "d.h5::a", f"{OTHER_FILE}reference to others"),
    "file without a key": ({"a": GREY}, "d.h5", r"got no key; write d.h5::<group>/<name>"),
    "several slices": ({"a": VOLUME}, "d.h5::a", "must hold one slice while attention.data.volume is null"),
    "out of the root": (outside, "../x.h5::a", "must be a path below the data root"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_is_refused_with_file_and_key(folder, case):
    spoil, name, message = BAD[case]
    if isinstance(spoil, dict):
        write(folder.root / "d.h5", **spoil)
    elif spoil in (external_link, soft_link, virtual, external_storage):
        with h5py.File(folder.root / "d.h5", "w") as file:
            spoil(file, folder.root)
    else:
        spoil(folder.root)
    with pytest.raises(UnreadableFileError, match=message) as error:
        folder.read_image(name)
    assert str(error.value).startswith(repr(name.partition("::")[0] if message in (GONE, BAD["out of the root"][2]) else name))
    assert "\n" not in str(error.value)


CORES = 18


class TestDataSet:
    """The published layout: one table, one file of arrays, one file of splits; read with the committed environment."""

    @pytest.fixture
    def root(self, tmp_path):
        root = tmp_path / "hdf5"
        root.mkdir()
        rng = np.random.default_rng(0)
        grades = ["benign", "GG2", "Benign", "gg1", "", "GG5"]
        rows, splits = [], {"train": [], "val": [], "test": []}
        with h5py.File(root / "data.h5", "w") as file:
            for i in range(CORES):
                core, cancer = f"{i:04d}", i % 2
                pixels = rng.integers(0, 256, (24, 32), dtype=np.uint8)
                region, needle = np.zeros((24, 32), np.uint8), np.zeros((24, 32), np.uint8)
                region[4:20, 4:28], needle[10:13, 0:20] = 1, 1
                for group, values in (("bmode", pixels), ("prostate_mask", region), ("needle_mask", needle)):
                    file[f"{group}/{core}"] = values
                facts = {
                    "grade": grades[i % 6],
                    "pct_cancer": 35.0 * cancer,
                    "psa": 4 + i,
                    "age": 60,
                    "family_history": i % 3 == 0,
                }
                rows.append({"core_id": core, "patient_id": f"p{i // 2}", "center": "UVA", **facts})
                splits[("train", "val", "test")[i // 6]].append(core)
        pd.DataFrame(rows).to_csv(root / "metadata.csv", index=False)
        (root / "splits.json").write_text(json.dumps(splits))
        return root

    def params(self, root, **changes):
        files = (CONF / env / "attention/parameters_data.yml" for env in ("base", "hdf5"))
        base, own = (yaml.safe_load(file.read_text())["attention"] for file in files)
        self.split = SplitParams.model_validate(base["split"])
        return DataParams.model_validate(merge(base["data"], own["data"]) | {"root": root.name, "image_size": 32} | changes)

    def open(self, root):
        return ImageFolder(root, read_manifest(root / "metadata.csv"), root / "metadata.csv")

    def test_the_committed_environment_reads_it(self, root):
        raw, params = self.open(root), self.params(root)
        checked, quarantine, report = check_manifest(raw, OWN, params)
        assert quarantine.empty
        first, second = checked.iloc[0], checked.iloc[1]
        assert (first["image"], first["region_mask"]) == ("data.h5::bmode/0000", "data.h5::prostate_mask/0000")
        assert (first["label"], first["involvement"], first["grade_group"], first["family_history"]) == (0, 0.0, 0.0, 1.0)
        assert (second["label"], second["involvement"], second["grade_group"]) == (1, 0.35, 2.0)
        assert np.isnan(checked["grade_group"].iloc[4])
        splits = split_cores(checked, self.split)
        assert splits == json.loads((root / "splits.json").read_text())
        examples, _ = build_examples(raw, checked, splits, params)
        with h5py.File(root / "data.h5") as file:
            for i in range(CORES):
                np.testing.assert_array_equal(examples.images[i, 4:28], file[f"bmode/{i:04d}"])
                np.testing.assert_array_equal(examples.bag[i, 4:28], file[f"needle_mask/{i:04d}"][()] > 0)
        with h5py.File(root / "data.h5", "a") as file:
            file["bmode/0003"][0, 0] = 255 - file["bmode/0003"][0, 0]
        assert check_manifest(raw, OWN, params)[2]["digests"]["files"] != report["digests"]["files"]

    def test_bad_keys_and_cores_without_one_split_are_rows_in_quarantine(self, root):
        with h5py.File(root / "data.h5", "a") as file:
            del file["needle_mask/0003"], file["bmode/0008"]
            file["bmode/0008"] = np.eye(9)
        splits = json.loads((root / "splits.json").read_text())
        splits["val"].remove("0007")
        splits["test"].append(splits["train"].pop())
        (root / "splits.json").write_text(json.dumps(splits))
        _, quarantine, _ = check_manifest(self.open(root), OWN, self.params(root, on_bad_row="quarantine"))
        assert quarantine["core_id"].tolist() == ["0003", "0004", "0005", "0007", "0008"]
        assert quarantine["file"].tolist()[::4] == ["data.h5::needle_mask/0003", "data.h5::prostate_mask/0008"]
        for reason, said in zip(quarantine["reason"], (
            "got no '0003' in '/needle_mask'", "must be in one split", "patient 'p2' must be in one split, got ['test', 'train']",
            "core '0007' must be in a split of 'splits.json', got none; add it there or drop",
            "must have the size of its image, 9 x 9, got 32 x 24",
        ), strict=True):  # fmt: skip
            assert said in reason

    def test_a_bad_splits_file_is_one_sentence(self, root):
        for content, message in (
            ("{", "must be a JSON file of splits, got .*; correct attention.data.splits_file"),
            ("[]", 'must hold lists of core ids named "train", "val" and "test", got list'),
            ('{"train": [], "test": []}', r"got \['test', 'train'\]"),
            ('{"train": ["0000"], "val": ["0000", "0001"], "test": []}', r"name each core once, got 1 twice, such as \['0000'\]"),
            ('{"train": ["c9"], "val": [7], "test": []}',
             r"must name cores of the manifest, got 2 others, such as \['7', 'c9'\]; the manifest has such as \['0000'"),
        ):  # fmt: skip
            (root / "splits.json").write_text(content)
            with pytest.raises(ValueError, match=message) as error:
                check_manifest(self.open(root), OWN, self.params(root))
            assert "splits.json" in str(error.value)
        with pytest.raises(ValueError, match="'other.json' must be a file below"):
            check_manifest(self.open(root), OWN, self.params(root, splits_file="other.json"))

    def test_a_cell_that_no_rule_knows_is_refused(self, root):
        table = pd.read_csv(root / "metadata.csv", dtype=str, keep_default_na=False)
        for column, value, message in (
            ("grade", "GG9", r"column 'grade' must be one of \['0', .*'gg5'\], got 'GG9'; correct attention.data.grade_values"),
            ("pct_cancer", "", "column 'pct_cancer' must be a number to be above 0 or not, got ''; fill it in or drop the row"),
            ("family_history", "perhaps", "column 'family_history' must be a number or empty, got 'perhaps'"),
        ):
            wrong = table.copy()
            wrong.loc[1, column] = value
            wrong.to_csv(root / "metadata.csv", index=False)
            with pytest.raises(ValueError, match=message):
                check_manifest(self.open(root), OWN, self.params(root))
