"""The way from the square model image back to the image's own pixels."""

import itertools
from pathlib import Path

import nibabel
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_pipeline.tasks.attention.data.formats.nifti_heatmap import heatmap_volume, is_nifti
from grpo_pipeline.tasks.attention.data.grey import resize_image
from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder
from grpo_pipeline.tasks.attention.data.square_frame import Frame

SIDES = st.integers(20, 400)


def test_golden_boxes():
    # 200 x 100 in a square of 64: 64 x 32 pixels, 16 rows of padding above and below; scale 200 / 64 = 3.125.
    frame = Frame(height=100, width=200, size=64)
    assert frame.box == (0, 16, 64, 48)
    np.testing.assert_allclose(frame.to_image(np.array([[0.0, 0.25], [1.0, 0.75], [0.5, 0.5]])), [[0, 0], [200, 100], [100, 50]])
    np.testing.assert_allclose(frame.to_image(np.array([0.5, 0.0])), [100, -50])
    # 30 x 61 in 64: height round(30 * 64 / 61) = 31, of the 33 rows left 16 lie above.
    assert Frame(30, 61, 64).box == (0, 16, 64, 47)
    square = np.zeros((32, 32), np.float32)
    square[8:24] = 1.0  # the image alone: nothing of the padding is left
    assert frame.map_to_image(square).min() > 1 - 1e-6


@given(SIDES, SIDES, st.sampled_from([32, 64, 128]), st.floats(0, 1), st.floats(0, 1))
def test_there_and_back(height: int, width: int, size: int, u: float, v: float):
    frame, point = Frame(height, width, size), np.array([u * width, v * height])
    square = frame.to_square(point)
    assert ((square >= -1e-9) & (square <= 1 + 1e-9)).all()
    np.testing.assert_allclose(frame.to_image(square), point, atol=1e-9 * max(height, width))


@pytest.mark.parametrize("shape", [(300, 200), (120, 333), (64, 64), (47, 90)])
def test_a_bright_square_is_covered_by_the_returned_map(shape: tuple[int, int]):
    height, width = shape
    image = np.zeros(shape, np.uint8)
    top, left, side = height // 3, width // 2, min(shape) // 3
    image[top : top + side, left : left + side] = 255
    square = resize_image(image, 64).reshape(32, 2, 32, 2).mean((1, 3)) / 255
    back = Frame(height, width, 64).map_to_image(square)
    assert back.shape == shape
    margin = -(-max(shape) // 32) + 1
    inside = back[top + margin : top + side - margin, left + margin : left + side - margin]
    assert inside.size
    assert (inside > 0.95).all()
    outside = back.copy()
    outside[max(top - margin, 0) : top + side + margin, max(left - margin, 0) : left + side + margin] = 0
    assert outside.max() < 0.05


SHAPE = (5, 6, 7)
ORIENTATIONS = ["RAS", "LPS", "LAS", "ASR", "SPL", "PIR"]


def affine_of(codes: str) -> np.ndarray:
    """An affine with these axes, zooms 0.5, 0.7, 2.0 and an origin of its own."""
    ornt = nibabel.orientations.axcodes2ornt(codes)
    affine = np.zeros((4, 4))
    for axis, (world, sign) in enumerate(ornt):
        affine[int(world), axis] = sign * (0.5, 0.7, 2.0)[axis]
    affine[:, 3] = [11.0, -7.0, 3.0, 1.0]
    return affine


def open_volume(tmp_path: Path, values: np.ndarray, affine: np.ndarray) -> ImageFolder:
    nibabel.Nifti1Image(values, affine).to_filename(tmp_path / "scan.nii.gz")
    return ImageFolder(tmp_path, pd.DataFrame(), tmp_path / "manifest.csv")


@pytest.mark.parametrize(("codes", "axis"), list(itertools.product(ORIENTATIONS, (0, 1, 2))))
def test_a_marked_voxel_keeps_its_place_in_the_world(tmp_path: Path, codes: str, axis: int):
    """Mark one voxel; read the plane that holds it; write that plane as a heatmap: the same voxel, and no other, is marked."""
    affine, marked = affine_of(codes), (3, 1, 4)
    values = np.zeros(SHAPE, np.uint8)
    values[marked] = 200
    raw = open_volume(tmp_path, values, affine)
    paths = [f"scan.nii.gz#axis={axis},take=index,index={i}" for i in range(max(SHAPE))]
    planes = {}
    for path in paths:
        try:
            planes[path] = raw.read_image(path)
        except ValueError:
            break
    path = next(path for path, plane in planes.items() if plane.any())
    image = heatmap_volume(raw, path, planes[path] / 200)
    image.to_filename(tmp_path / "back.nii.gz")
    again = nibabel.load(tmp_path / "back.nii.gz")
    np.testing.assert_array_equal(again.affine, nibabel.load(tmp_path / "scan.nii.gz").affine)
    assert again.shape == SHAPE
    back = again.get_fdata()
    assert np.argwhere(back).tolist() == [list(marked)]
    assert back[marked] == 1.0
    np.testing.assert_allclose(again.affine @ [*marked, 1], affine @ [*marked, 1], atol=1e-6)


def test_a_projection_fills_all_slices_and_a_plane_of_two_axes_stays_one(tmp_path: Path):
    raw = open_volume(tmp_path, np.arange(210, dtype=np.uint8).reshape(SHAPE), affine_of("LPS"))
    plane = raw.read_image("scan.nii.gz#axis=0,take=max_projection") / 255
    back = heatmap_volume(raw, "scan.nii.gz#axis=0,take=max_projection", plane).get_fdata()
    # In an LPS file axis 0 of the canonical array (slices) is the third of the file.
    np.testing.assert_allclose(back, np.repeat(plane.T[:, :, None], SHAPE[2], axis=2), atol=1e-6)
    raw = open_volume(tmp_path, np.arange(30, dtype=np.uint8).reshape(5, 6), affine_of("LPS"))
    image = heatmap_volume(raw, "scan.nii.gz", raw.read_image("scan.nii.gz") / 30)
    assert image.shape == (5, 6)
    np.testing.assert_allclose(np.asarray(image.dataobj), np.arange(30).reshape(5, 6) / 30, atol=1e-6)
    paths = ("a.nii", "a.NII.gz#axis=0,take=middle", "a.mha", "a.png")
    assert [is_nifti(path) for path in paths] == [True, True, False, False]


def test_scaling_and_notes_of_the_input_do_not_come_along(tmp_path: Path):
    source = nibabel.Nifti1Image(np.linspace(-5, 900, 210, dtype=np.float32).reshape(SHAPE), affine_of("RAS"))
    source.set_data_dtype(np.int16)
    source.header["descrip"] = b"Doe, Jane"
    source.header.set_xyzt_units("mm")
    source.to_filename(tmp_path / "scan.nii.gz")
    raw = ImageFolder(tmp_path, pd.DataFrame(), tmp_path / "manifest.csv")
    path = "scan.nii.gz#axis=0,take=middle"
    heatmap_volume(raw, path, np.full(raw.read_image(path).shape, 0.25)).to_filename(tmp_path / "back.nii.gz")
    back = nibabel.load(tmp_path / "back.nii.gz")
    assert (bytes(back.header["descrip"]).rstrip(b"\0"), back.get_data_dtype()) == (b"P(cancer)", np.float32)
    assert back.header.get_xyzt_units()[0] == "mm"
    assert set(np.unique(back.get_fdata())) == {0.0, 0.25}
