"""Medical image formats, each file written by the library of its format and read through the image folder."""

import itertools
import re
import sys

import numpy as np
import pytest
from PIL import Image

from grpo_pipeline.tasks.attention.data.example_building import build_examples
from grpo_pipeline.tasks.attention.data.image_folder import UnreadableFileError
from grpo_pipeline.tasks.attention.data.manifest import check_manifest
from grpo_pipeline.tasks.attention.data.planes import Stack, project, split_address, take_plane, with_address
from grpo_pipeline.tasks.attention.data.row_paths import file_stem
from grpo_pipeline.tasks.attention.data.volume_params import VolumeParams

VOLUME = np.random.default_rng(0).integers(0, 200, (3, 4, 5)).astype(np.uint8)
"""Slice, row, column in the canonical orientation, LPS."""
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
OWN = {"source": "manifest", "cores": 0, "complete": True}


def overwrite(path, at, value):
    """Put bytes in the place of others."""
    content = bytearray(path.read_bytes())
    content[at : at + len(value)] = value
    path.write_bytes(content)


def slices_of(folder, name, *, as_mask=False):
    """Every slice along axis 0, read one by one."""
    return np.stack([folder.read_plane(f"{name}#axis=0,take=index,index={i}", as_mask=as_mask).values for i in range(3)])


def importing(module):
    """A fixture that is the library of a format."""

    def load():
        return pytest.importorskip(module, reason=f"written with {module}: pip install '.[formats]'")

    return pytest.fixture(load)


nibabel, sitk, pydicom = importing("nibabel"), importing("SimpleITK"), importing("pydicom")


def save_nifti(nibabel, path, array, *, unit="mm"):
    """Write voxels [x, y, z] in LPS, a spacing of (0.5, 0.25, 2)."""
    image = nibabel.Nifti1Image(array, LPS_TO_RAS @ np.diag([0.5, 0.25, 2.0, 1.0]))
    image.header.set_xyzt_units(unit)
    nibabel.save(image, path)


@pytest.mark.parametrize("name", ["i.nii", "i.nii.gz", "i.mha", "i.mhd"])
def test_a_turned_volume_gives_the_same_slices_and_spacing(folder, sitk, name):
    image = sitk.GetImageFromArray(VOLUME)
    image.SetSpacing((0.5, 0.25, 2.0))
    for orientation in ("LPS", "RAS", "ASL", "PIR", "SRP"):
        sitk.WriteImage(sitk.DICOMOrient(image, orientation), str(folder.root / name))
        np.testing.assert_array_equal(slices_of(folder, name), VOLUME)
        for axis, spacing in enumerate([(0.25, 0.5), (2.0, 0.5), (2.0, 0.25)]):
            plane = folder.read_plane(f"{name}#axis={axis},take=middle", as_mask=False)
            np.testing.assert_array_equal(plane.values, VOLUME.take(VOLUME.shape[axis] // 2, axis))
            assert plane.spacing_mm == pytest.approx(spacing)
    flat = sitk.GetImageFromArray(VOLUME[0])
    flat.SetSpacing((0.5, 0.25))
    sitk.WriteImage(flat, str(folder.root / "plane.mha"))
    plane = folder.read_plane("plane.mha", as_mask=False)
    np.testing.assert_array_equal(plane.values, VOLUME[0])
    assert (plane.spacing_mm, plane.n_slices) == ((0.25, 0.5), 1)


def test_nifti_spacing_is_in_millimetres(folder, nibabel):
    for unit, factor in (("mm", 1.0), ("meter", 1000.0), ("micron", 0.001), ("unknown", 1.0)):
        save_nifti(nibabel, folder.root / "i.nii", VOLUME.T[..., :1], unit=unit)
        assert folder.read_plane("i.nii", as_mask=False).spacing_mm == pytest.approx((0.25 * factor, 0.5 * factor))


def test_one_nifti_slice_needs_no_parameter_and_is_scaled(folder, nibabel):
    for shape in [(5, 4), (5, 4, 1), (5, 4, 1, 1)]:
        nibabel.save(nibabel.Nifti1Image(VOLUME[1].T.reshape(shape), LPS_TO_RAS), folder.root / "i.nii")
        np.testing.assert_array_equal(folder.read_image("i.nii"), VOLUME[1])
    overwrite(folder.root / "i.nii", 112, np.array([0.5, -3], "<f4").tobytes())  # scl_slope, scl_inter
    np.testing.assert_array_equal(folder.read_image("i.nii"), VOLUME[1] * 0.5 - 3)


def test_a_metaimage_header_that_leads_away_is_refused(folder, sitk, tmp_path_factory):
    header = folder.root / "i.mhd"
    sitk.WriteImage(sitk.GetImageFromArray(VOLUME[0]), str(header))
    (folder.root / "i.raw").rename(outside := tmp_path_factory.mktemp("other") / "data.raw")
    (folder.root / "link.raw").symlink_to(outside)
    text = header.read_text()
    for name, message in (
        ("../data.raw", "must name one data file beside it, got '../data.raw'"),
        ("s%d.raw 1 3 1", "must name one data file beside it"),
        ("gone.raw", "must have its data file 'gone.raw' beside it, got nothing there"),
        ("link.raw", "must name one data file beside it, got 'link.raw'"),
    ):
        header.write_text(text.replace("i.raw", name))
        with pytest.raises(UnreadableFileError, match=message):
            folder.read_image("i.mhd")


def save_dicom(pydicom, path, frames, *, kind="MONOCHROME2", bits=8, **attributes):
    """Write frames [F, H, W] or [F, H, W, 3] as one file without compression."""
    meta = pydicom.dataset.FileMetaDataset()
    meta.MediaStorageSOPClassUID = pydicom.uid.UltrasoundMultiFrameImageStorage
    meta.MediaStorageSOPInstanceUID = "1.2.3"
    meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    dataset = pydicom.Dataset()
    dataset.file_meta = meta
    dataset.SOPClassUID, dataset.SOPInstanceUID = meta.MediaStorageSOPClassUID, "1.2.3"
    dataset.NumberOfFrames, dataset.Rows, dataset.Columns = frames.shape[:3]
    dataset.SamplesPerPixel = frames.shape[3] if frames.ndim == 4 else 1
    if frames.ndim == 4:
        dataset.PlanarConfiguration = 0
    dataset.PhotometricInterpretation = kind
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 8 * frames.itemsize, bits, bits - 1
    dataset.PixelRepresentation = int(frames.dtype.kind == "i")
    dataset.PixelData = frames.tobytes()
    for name, value in attributes.items():
        setattr(dataset, name, value)
    dataset.save_as(path, enforce_file_format=True)


def test_dicom_values(folder, pydicom):
    def read(stored, **options):
        save_dicom(pydicom, folder.root / "i.dcm", stored, **options)
        return folder.read_image("i.dcm")

    # 2 * (4095 - stored) - 5
    stored = np.array([[[0, 1, 4095], [10, 20, 30]]], np.uint16)
    found = read(stored, kind="MONOCHROME1", bits=12, RescaleSlope=2, RescaleIntercept=-5)
    np.testing.assert_array_equal(found, [[8185, 8183, -5], [8165, 8145, 8125]])
    np.testing.assert_array_equal(read(np.array([[[-128, -1, 0, 127]]], np.int8), kind="MONOCHROME1"), [[127, 0, -1, -128]])
    grey = np.full_like(VOLUME[:1], 128)  # YBR is decoded before its luminance
    np.testing.assert_array_equal(read(np.stack([VOLUME[:1], grey, grey], axis=-1), kind="YBR_FULL"), VOLUME[0])
    colours = np.random.default_rng(1).integers(0, 256, (1, 6, 8, 3), dtype=np.uint8)
    expected = np.asarray(Image.fromarray(colours[0]).convert("L")).astype(int)
    # Pillow's weights are sixteen-bit integers: at a tie it may round the other way.
    assert np.abs(read(colours, kind="RGB").astype(int) - expected).max() <= 1


def test_dicom_frames_keep_values_and_type_and_a_mask_is_not_turned_round(folder, pydicom):
    save_dicom(pydicom, folder.root / "i.dcm", VOLUME)
    read = slices_of(folder, "i.dcm")
    np.testing.assert_array_equal(read, VOLUME)
    assert read.dtype == np.uint8
    save_dicom(pydicom, folder.root / "m.dcm", np.array([[[0, 255], [255, 0]]], np.uint8), kind="MONOCHROME1")
    np.testing.assert_array_equal(folder.read_mask("m.dcm"), [[False, True], [True, False]])


def test_spacing_of_a_dicom_file_of_its_frames_and_of_ultrasound_regions(folder, pydicom):
    def nested(**attributes):
        dataset = pydicom.Dataset()
        for name, value in attributes.items():
            setattr(dataset, name, value)
        return dataset

    def spacing(address="", frames=1, **attributes):
        save_dicom(pydicom, folder.root / "i.dcm", VOLUME[:frames], **attributes)
        return folder.read_plane(f"i.dcm{address}", as_mask=False).spacing_mm

    def regions(*values):
        names = ("PhysicalUnitsXDirection", "PhysicalUnitsYDirection", "PhysicalDeltaX", "PhysicalDeltaY")
        sequence = [nested(**dict(zip(names, (unit, unit, x, y), strict=True))) for unit, x, y in values]
        return spacing(SequenceOfUltrasoundRegions=sequence)

    stored = {"frames": 3, "PixelSpacing": [0.3, 0.2], "SpacingBetweenSlices": 1.5}
    assert spacing("#axis=0,take=middle", **stored) == (0.3, 0.2)
    assert spacing("#axis=1,take=middle", **stored) == (1.5, 0.2)
    group = nested(PixelMeasuresSequence=[nested(PixelSpacing=[0.3, 0.2])])
    assert spacing(SharedFunctionalGroupsSequence=[group]) == (0.3, 0.2)
    # Regions in centimetres (unit 3) count where they agree; those of another unit do not.
    for found in (regions((3, 0.02, 0.03)), regions((3, 0.02, 0.03), (4, 1.0, 1.0))):
        assert found == pytest.approx((0.3, 0.2))
    assert [regions((3, 0.02, 0.03), (3, 0.01, 0.01)), regions((4, 1.0, 1.0)), regions()] == [None] * 3


@pytest.mark.parametrize("frames", [VOLUME, np.tile(VOLUME, (1, 9, 9)).astype(np.uint16) * 300])
def test_run_lengths_need_nothing_but_pydicom(folder, pydicom, frames):
    save_dicom(pydicom, folder.root / "i.dcm", frames, bits=8 * frames.itemsize)
    dataset = pydicom.dcmread(folder.root / "i.dcm")
    dataset.compress(pydicom.uid.RLELossless)
    dataset.save_as(folder.root / "i.dcm")
    assert pydicom.dcmread(folder.root / "i.dcm").file_meta.TransferSyntaxUID == pydicom.uid.RLELossless
    np.testing.assert_array_equal(slices_of(folder, "i.dcm"), frames)


def compress(pydicom, path, syntax, pictures):
    dataset = pydicom.dcmread(path)
    dataset.PixelData = pydicom.encaps.encapsulate(pictures)
    dataset["PixelData"].VR = "OB"
    dataset.file_meta.TransferSyntaxUID = syntax
    dataset.save_as(path)


@pytest.mark.parametrize(("syntax", "package"), [
    ("HTJ2KLossless", "pylibjpeg pylibjpeg-openjpeg"),
    ("JPEGLosslessSV1", "python-gdcm"),
    ("JPEGExtended12Bit", "python-gdcm"),
])  # fmt: skip
def test_a_missing_decoder_is_named(folder, pydicom, monkeypatch, syntax, package):
    save_dicom(pydicom, folder.root / "i.dcm", VOLUME[:1].astype(np.uint16), bits=12)
    compress(pydicom, folder.root / "i.dcm", getattr(pydicom.uid, syntax), [b"1234"])
    decoder = pydicom.pixels.get_decoder(getattr(pydicom.uid, syntax))
    monkeypatch.setattr(decoder, "_available", {name: one for name, one in decoder._available.items() if name == "pillow"})
    name = getattr(pydicom.uid, syntax).name
    message = re.escape(f"reading 'i.dcm' needs a decoder of {name} that pydicom finds; install one: pip install {package}")
    with pytest.raises(ModuleNotFoundError, match=f"^{message}$"):
        folder.read_image("i.dcm")


def test_dicom_of_another_kind_is_refused(folder, pydicom):
    save_dicom(pydicom, folder.root / "i.dcm", VOLUME[:1], kind="PALETTE COLOR")
    with pytest.raises(UnreadableFileError, match="'i.dcm' must hold grey levels, RGB or YBR, got PALETTE COLOR; convert it"):
        folder.read_image("i.dcm")
    save_dicom(pydicom, folder.root / "i.dcm", VOLUME[:1])
    compress(pydicom, folder.root / "i.dcm", pydicom.uid.MPEG2MPML, [b"1234"])
    with pytest.raises(UnreadableFileError, match="'i.dcm' must hold still images, got MPEG2 .*; export frames"):
        folder.read_image("i.dcm")


def write(request, path):
    """Write VOLUME, enlarged, in the format of the path."""
    values = np.tile(VOLUME, (1, 9, 9))
    if path.name.endswith((".nii", ".nii.gz")):
        save_nifti(request.getfixturevalue("nibabel"), path, values.T)
    elif path.suffix == ".dcm":
        save_dicom(request.getfixturevalue("pydicom"), path, values)
    else:
        sitk = request.getfixturevalue("sitk")
        sitk.WriteImage(sitk.GetImageFromArray(values), str(path), useCompression=path.name == "z.mha")


DAMAGED = itertools.product(["i.nii", "i.nii.gz", "i.dcm", "i.mha", "z.mha", "i.mhd"], ["half", "last bytes", "text", "empty"])


@pytest.mark.parametrize(("name", "damage"), [*DAMAGED, ("i.nii.gz", "flipped")])  # only a compressed file has a checksum
def test_damaged_file_is_refused_in_one_sentence(folder, request, name, damage):
    path = folder.root / name
    write(request, path)
    slices_of(folder, name)
    path = path.with_suffix(".raw") if name == "i.mhd" and damage in ("half", "last bytes") else path
    content = path.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]
    spoilt = {"half": content[:middle], "last bytes": content[:-20], "flipped": flipped, "text": b"hello\n" * 200, "empty": b""}
    path.write_bytes(spoilt[damage])
    with pytest.raises(UnreadableFileError, match=f"^'{name}' must be a complete .* file, got .*; copy it again$") as error:
        folder.read_image(f"{name}#axis=0,take=middle")
    assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore:.*:UserWarning:pydicom")
@pytest.mark.parametrize("name", ["i.nii", "i.dcm", "i.mha"])
def test_any_spoilt_byte_of_a_header_is_read_or_refused(folder, request, name):
    write(request, folder.root / name)
    good = (folder.root / name).read_bytes()
    rng = np.random.default_rng(0)
    refused = []
    for _ in range(200):
        content = bytearray(good)
        content[rng.integers(0, 350)] = rng.integers(0, 256)
        (folder.root / name).write_bytes(content)
        try:
            assert folder.read_image(f"{name}#axis=0,take=middle").ndim == 2
        except UnreadableFileError as error:
            refused.append(str(error))
    assert 0 < len(refused) < 200
    assert "\n" not in "".join(refused)


def test_nifti_of_another_content_or_an_impossible_header_is_refused(folder, nibabel):
    colours = np.zeros((5, 4, 1), np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")]))
    for array, message in (
        (np.zeros((5, 4, 3, 2), np.uint8), r"one plane or one volume, got shape \(5, 4, 3, 2\)"),
        (colours, "hold real numbers"),
    ):
        nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), folder.root / "i.nii")
        with pytest.raises(UnreadableFileError, match=f"'i.nii' must .*{message}"):
            folder.read_image("i.nii")
    numbers = [(108, np.float32(238).tobytes()), (108, np.float32(1e30).tobytes())]  # offset
    for at, value in [*numbers, (70, b"\xff\x7f"), (42, b"\xff\xff"), (42, b"\xff\x7f" * 3)]:  # type; negative, huge size
        save_nifti(nibabel, folder.root / "i.nii", VOLUME.T)
        overwrite(folder.root / "i.nii", at, value)
        with pytest.raises(UnreadableFileError, match="^'i.nii' must "):
            folder.read_image("i.nii#axis=0,take=middle")


@pytest.mark.parametrize("shape", [(4, 5, 3), (2, 4, 5, 3)], ids=["plane", "volume"])
def test_a_metaimage_of_colours_is_refused(folder, sitk, shape):
    sitk.WriteImage(sitk.GetImageFromArray(np.zeros(shape, np.uint8), isVector=True), str(folder.root / "i.mha"))
    with pytest.raises(UnreadableFileError, match=r"'i.mha' must be one plane or one volume, got shape \(., 4, 5, 3\)"):
        folder.read_image("i.mha#axis=0,take=middle")


@pytest.mark.parametrize(
    ("name", "module"), [("i.nii.gz", "nibabel"), ("i.dcm", "pydicom"), ("i.mha", "SimpleITK"), ("d.h5::a", "h5py")]
)
def test_library_that_is_absent_is_named_with_the_extra(folder, monkeypatch, name, module):
    (folder.root / name.partition("::")[0]).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError) as error:
        folder.read_image(name)
    assert str(error.value) == f"reading '{name}' needs {module}; install the extra: pip install '.[formats]'"


def volume(axis, take, index=None):
    return VolumeParams(axis=axis, take=take, index=index)


def stack(values, spacing=(2.0, 0.25, 0.5)):
    return Stack(np.asarray(values), spacing)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_planes_against_numpy(axis):
    def taken(*what):
        return take_plane(stack(VOLUME), "i.nii", volume(axis, *what), as_mask=False).values

    n = VOLUME.shape[axis]
    np.testing.assert_array_equal(taken("middle"), np.take(VOLUME, n // 2, axis))
    np.testing.assert_array_equal(taken("index", n - 1), np.take(VOLUME, n - 1, axis))
    np.testing.assert_array_equal(taken("max_projection"), VOLUME.max(axis))
    np.testing.assert_array_equal(taken("mean_projection"), np.round(VOLUME.sum(axis, dtype=int) / n))
    assert all(taken(what).dtype == np.uint8 for what in ("middle", "max_projection", "mean_projection"))


def test_floats_are_not_rounded_and_a_mask_is_not_zero_before_it_is_projected():
    # (0.25 + 0.5) / 2
    np.testing.assert_array_equal(project(np.array([[[0.25]], [[0.5]]]), volume(0, "mean_projection")), [[0.375]])
    values = [[[-1, 2, 0], [0, 0, 0]], [[0, -9, 0], [0, 0, 2]]]
    for take in ("max_projection", "mean_projection"):
        plane = take_plane(stack(values), "m.nii", volume(0, take), as_mask=True)
        np.testing.assert_array_equal(plane.values, [[False, True, False], [False, False, True]])


@pytest.mark.parametrize("as_mask", [False, True])
def test_a_plane_that_cannot_be_taken_is_refused_and_its_own_axes_give_its_spacing(as_mask):
    values = (VOLUME.mean() < VOLUME).astype(float)
    values[0, 0, 0] = np.nan
    take_plane(stack(values), "i.nii", volume(0, "index", 1), as_mask=as_mask)  # the NaN is in another slice
    for chosen, message in (
        (None, r"'i.nii' must hold one slice while attention.data.volume is null, got shape"),
        (volume(0, "index", 3), "'i.nii' must have a slice 3 along axis 0, got 3 slices counted from 0"),
        (volume(0, "max_projection"), "must hold finite numbers, got 1 NaN or Inf"),
    ):
        with pytest.raises(UnreadableFileError, match=message):
            take_plane(stack(values), "i.nii", chosen, as_mask=as_mask)
    partly = stack(VOLUME, (None, 0.25, 0.5))
    for axis, expected in ((0, (0.25, 0.5)), (1, None)):
        assert take_plane(partly, "i.dcm", volume(axis, "middle"), as_mask=False).spacing_mm == expected


def test_addresses_and_what_a_core_is_named_after():
    for params in (volume(0, "middle"), volume(2, "mean_projection"), volume(1, "index", 17)):
        assert split_address(with_address("a/scan.NII.gz", params)) == ("a/scan.NII.gz", params)
    for path in ("a#1.png", "i.png#axis=0,take=middle", "i.nii#axis=3,take=middle", "i.nii#axis=0,take=index"):
        assert split_address(path) == (path, None)  # no address: it belongs to the name
    for path in ("i.mha#axis=1,take=index,index=2", "i.png"):
        assert with_address(path, volume(0, "middle")) == path
    stems = {"a/x.nii.gz": "x", "x.1.dcm": "x.1", "x.mha#axis=0,take=middle": "x", "data.h5::bmode/core.01": "core.01"}
    assert {path: file_stem(path) for path in stems} == stems


class TestDataSet:
    """One row whose image and masks are volumes, the others pictures."""

    @pytest.fixture
    def volumes(self, data_set, nibabel):
        rng = np.random.default_rng(3)
        picture = data_set.open()
        for name, path in (("image", "images/c01"), ("region_mask", "region/c01"), ("bag_mask", "needle/c01")):
            plane = picture.read_image(f"{path}.png")
            whole = rng.integers(0, 2, (5, 24, 32)).astype(np.uint8) * 90
            whole[2] = plane
            save_nifti(nibabel, data_set.root / f"{path}.nii.gz", whole.T)
            data_set.rows[1][name] = f"{path}.nii.gz"
        return data_set

    def test_masks_are_taken_at_the_slice_of_the_image(self, volumes, data_params):
        params = data_params(volume={"axis": 0, "take": "middle"})
        raw = volumes.open()
        checked, _, report = check_manifest(raw, OWN, params)
        assert checked["image"].tolist()[:2] == ["images/c00.png", "images/c01.nii.gz#axis=0,take=middle"]
        assert list(checked.columns)[-1] == "spacing_mm"
        assert checked["spacing_mm"].tolist()[:3] == ["", "0.25 0.5", ""]
        splits = {"train": [f"c{i:02d}" for i in range(12)]}
        examples, _ = build_examples(raw, checked, splits, params)
        for name, array in (("images/c01", examples.images), ("region/c01", examples.region), ("needle/c01", examples.bag)):
            np.testing.assert_array_equal(array[1, 4:28] > 0, raw.read_image(f"{name}.png") > 0)
        save_nifti(pytest.importorskip("nibabel"), raw.root / "needle/c01.nii.gz", np.ones((32, 24, 5), np.uint8))
        assert check_manifest(raw, OWN, params)[2]["digests"]["files"] != report["digests"]["files"]

    def test_mask_with_other_slices_is_refused(self, volumes, nibabel, data_params):
        save_nifti(nibabel, volumes.root / "needle/c01.nii.gz", np.ones((32, 24, 7), np.uint8))
        params = data_params(volume={"axis": 0, "take": "middle"}, on_bad_row="quarantine")
        checked, quarantine, _ = check_manifest(volumes.open(), OWN, params)
        assert quarantine["file"].tolist() == ["needle/c01.nii.gz"]
        assert "must have one slice or those of its image, 5, got 7" in quarantine["reason"][0]
        assert "spacing_mm" not in checked.columns  # pictures alone are left
        assert checked["image"].tolist()[0] == "images/c00.png"

    def test_digest_follows_the_data_file_of_a_header(self, data_set, sitk, data_params):
        image = data_set.open().read_image("images/c01.png")
        data_set.rows[1]["image"] = "images/c01.mhd"
        digests = []
        for values in (image, image[::-1]):
            sitk.WriteImage(sitk.GetImageFromArray(values), str(data_set.root / "images/c01.mhd"))
            digests.append(check_manifest(data_set.open(), OWN, data_params())[2]["digests"]["files"])
        assert digests[0] != digests[1]
