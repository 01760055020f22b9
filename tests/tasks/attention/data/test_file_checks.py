import numpy as np
import pytest
from PIL import Image

from grpo_pipeline.tasks.attention.data.file_checks import check_files
from grpo_pipeline.tasks.attention.data.mask_summary import describe_masks
from grpo_pipeline.tasks.attention.data.row_checks import read_row
from grpo_pipeline.tasks.attention.data.rows import RowError


def first_row(data_set, params, **cells):
    folder = data_set.open()
    return read_row(dict(folder.manifest.iloc[1]) | cells, params)


def checked_files(data_set, params, **changes):
    folder = data_set.open()
    return check_files(folder, read_row(dict(folder.manifest.iloc[1]) | {"row": 3}, params) | changes, params)


NOTHING, TOP = np.zeros((24, 32), bool), np.arange(24)[:, None].repeat(32, 1) < 3  # the region begins in row 4
REGION = {"empty_bag": "region"}
BAD_FILES = {
    # file -> what is there instead, None for nothing; changes of the parameters; the error
    "no mask": ("needle/c01.png", None, {}, "must be a file below"),
    "region of another size": ("region/c01.png", NOTHING.T, {}, "must have the size of its image, 32 x 24, got 24 x 32"),
    "needle of another size": ("needle/c01.png", NOTHING.T, {}, "must have the size of its image, 32 x 24, got 24 x 32"),
    "lesion of another size": ("lesion/c01.png", NOTHING.T, {}, "must have the size of its image, 32 x 24, got 24 x 32"),
    "empty region": ("region/c01.png", NOTHING, REGION, "must mark where points may fall, got an empty mask"),
    "empty bag": ("needle/c01.png", NOTHING, {}, "got an empty mask; draw it or set attention.data.empty_bag: region"),
    "bag outside": ("needle/c01.png", TOP, {}, "must overlap the region mask, got two masks that share no pixel"),
    "bag outside, whatever the rule": ("needle/c01.png", TOP, REGION, "must overlap the region mask"),
    "nan": ("images/c01.npy", np.full((24, 32), np.nan), {}, "must hold finite numbers, got 768 NaN or Inf"),
    "black": ("images/c01.png", NOTHING, {}, "must show something, got the value 0 everywhere"),
    "white": ("images/c01.png", ~NOTHING, {}, "must show something, got the value 255 everywhere"),
    "black in 256 grey levels": (
        "images/c01.npy", np.arange(768, dtype=np.uint16).reshape(24, 32) % 100, {},
        "got values from 0 to 99, which are one of 256 grey levels; .*intensity: minmax",
    ),
    "beyond its type": (
        "images/c01.npy", np.full((24, 32), 7.5), {}, "from 0 to 1 for its type float64, got 7.5 to 7.5; .*intensity: minmax",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "array", "changes", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_bad_files_are_refused(data_set, data_params, name, array, changes, message):
    (data_set.root / name).unlink() if array is None else data_set.save(name, array)
    image = {"image": name} if name.startswith("images") else {}
    with pytest.raises(RowError, match=f"'{name}' .*{message}|'{name}' {message}") as error:
        checked_files(data_set, data_params(**changes), **image)
    assert error.value.file == name


def test_good_files(data_set, data_params):
    masks = checked_files(data_set, data_params())
    assert (masks.bag_is_empty, masks.has_lesion, masks.shape) == (False, True, (24, 32))
    data_set.save("lesion/c01.png", TOP)
    assert not checked_files(data_set, data_params()).has_lesion  # outside the region
    data_set.save("needle/c01.png", NOTHING)
    assert checked_files(data_set, data_params(**REGION)).bag_is_empty
    data_set.save("images/c01.npy", np.arange(768, dtype=np.uint16).reshape(24, 32) % 100)
    checked_files(data_set, data_params(intensity="minmax", **REGION), image="images/c01.npy")


@pytest.mark.parametrize("kind", ["tiff", "png", "gif"])
def test_a_picture_of_several_pages_or_frames_is_refused(data_set, data_params, kind):
    pages = [Image.fromarray(np.random.default_rng(n).integers(0, 256, (24, 32), dtype=np.uint8)) for n in range(3)]
    path = data_set.root / f"images/pages.{kind}"
    pages[0].save(path, save_all=True, append_images=pages[1:])
    with pytest.raises(RowError, match=rf"'images/pages.{kind}' must hold one picture, got 3 pages or frames; save the one"):
        checked_files(data_set, data_params(), image=f"images/pages.{kind}")
    pages[0].save(path)
    checked_files(data_set, data_params(), image=f"images/pages.{kind}")


def test_a_mask_of_exactly_half_of_its_image_is_not_more_than_half():
    found = describe_masks([0.0, 0.5, 0.5000001, 0.2], smeared=0, shared=0, missed=0)
    assert (found["files"], found["empty"], found["more_than_half"]) == (4, 1, 1)
