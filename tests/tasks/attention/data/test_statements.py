"""Every row of the table of what image files say of themselves, on files that say it, for all formats that can."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from grpo_pipeline.tasks.attention.data.file_checks import check_files
from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder
from grpo_pipeline.tasks.attention.data.places import Place, moved_axes, shared_axes
from grpo_pipeline.tasks.attention.data.rows import RowError
from grpo_pipeline.tasks.attention.data.statements import STATEMENTS, WARNINGS, describe_statements

ROOT = Path(__file__).resolve().parents[4]
PICTURE = np.random.default_rng(0).integers(10, 200, (6, 8)).astype(np.uint8)
OUTLINE = np.zeros((6, 8), np.uint8)
OUTLINE[:2, :3] = 1
FLIP = {"L": 1.0, "R": -1.0, "P": 1.0, "A": -1.0}


def nifti(path, array, *, rows="P", columns="L", spacing=0.5, origin=(0.0, 0.0, 0.0), header=()):
    """Write a plane whose voxels run to these directions, the first one at an origin in LPS millimetres."""
    nibabel = pytest.importorskip("nibabel")
    lps = np.diag([FLIP[columns] * spacing, FLIP[rows] * spacing, 1.0, 1.0])
    lps[:3, 3] = origin
    image = nibabel.Nifti1Image(array.T[..., None], np.diag([-1.0, -1.0, 1.0, 1.0]) @ lps)
    for name, value in dict(header).items():
        image.header[name] = value
    nibabel.save(image, path)


def metaimage(path, array, *, rows="P", columns="L", spacing=0.5, origin=(0.0, 0.0, 0.0)):
    sitk = pytest.importorskip("SimpleITK")
    image = sitk.GetImageFromArray(array[None])
    image.SetSpacing((spacing, spacing, 1.0))
    image.SetOrigin(origin)
    image.SetDirection((FLIP[columns], 0, 0, 0, FLIP[rows], 0, 0, 0, 1))
    sitk.WriteImage(image, str(path))


def dicom(path, array, *, rows="P", columns="L", spacing=0.5, origin=(0.0, 0.0, 0.0), kind="MONOCHROME2", bits=None, **values):
    pydicom = pytest.importorskip("pydicom")
    dataset = pydicom.Dataset()
    dataset.file_meta = pydicom.dataset.FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = pydicom.uid.UltrasoundImageStorage
    dataset.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    dataset.SOPClassUID, dataset.SOPInstanceUID = pydicom.uid.UltrasoundImageStorage, "1.2.3"
    frames = array.reshape(-1, *array.shape[-2:])
    dataset.NumberOfFrames, dataset.Rows, dataset.Columns = frames.shape
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, kind
    dataset.BitsAllocated = 8 * array.itemsize
    dataset.BitsStored, dataset.HighBit = (bits or 8 * array.itemsize), (bits or 8 * array.itemsize) - 1
    dataset.PixelRepresentation = int(array.dtype.kind == "i")
    dataset.PixelData = array.tobytes()
    dataset.ImageOrientationPatient = [FLIP[columns], 0, 0, 0, FLIP[rows], 0]
    dataset.ImagePositionPatient, dataset.PixelSpacing = list(origin), [spacing, spacing]
    for name, value in values.items():
        setattr(dataset, name, value)
    dataset.save_as(path, enforce_file_format=True)


WRITERS = {"nii": nifti, "nii.gz": nifti, "mha": metaimage, "dcm": dicom}
PAIRS = list(itertools.product(WRITERS, WRITERS))


def pair(root, image, mask, of_image=None, of_mask=None):
    """Write an image and its outline in two formats, each with what it says."""
    WRITERS[image](root / f"i.{image}", PICTURE, **(of_image or {}))
    WRITERS[mask](root / f"m.{mask}", OUTLINE, **(of_mask or {}))
    return f"i.{image}", f"m.{mask}"


def turned(array, orientation):
    """Stored pixels as a viewer shows them: EXIF 2.32, table of the orientation tag, by hand."""
    return {
        2: array[:, ::-1], 3: array[::-1, ::-1], 4: array[::-1], 5: array.T, 6: array.T[:, ::-1], 7: array[::-1, ::-1].T,
        8: array.T[::-1],
    }[orientation]  # fmt: skip


def exif(root, ending, orientation):
    tags = Image.Exif()
    tags[0x0112] = orientation
    for name, array in (("i", PICTURE), ("m", 255 * OUTLINE)):
        options = {"quality": 100} if ending == "jpg" else {}
        file_ending = "png" if name == "m" and ending == "jpg" else ending
        Image.fromarray(array).save(root / f"{name}.{file_ending}", exif=tags, **options)
    return f"i.{ending}", f"m.{'png' if ending == 'jpg' else ending}"


def said(root, image, mask="", intensity="minmax"):
    """The findings of ``check_files`` in a row of an image and an outline."""
    row = {"image": image, "region_mask": "", "bag_mask": "", "lesion_mask": mask, "row": 2}
    params = SimpleNamespace(intensity=intensity, empty_bag="error")
    return check_files(folder(root), row, params).statements


def folder(root):
    return ImageFolder(root, None, root / "m.csv")


@pytest.mark.parametrize(("ending", "orientation"), list(itertools.product(("jpg", "png", "tif"), range(2, 9))))
def test_exif_orientation_turns_images_and_masks(tmp_path, ending, orientation):
    image, mask = exif(tmp_path, ending, orientation)
    read = folder(tmp_path).read_image(image).astype(int)
    assert np.abs(read - turned(PICTURE.astype(int), orientation)).max() <= (2 if ending == "jpg" else 0)
    np.testing.assert_array_equal(folder(tmp_path).read_mask(mask), turned(OUTLINE, orientation) > 0)
    assert said(tmp_path, image, mask) == (("exif_orientation", image), ("exif_orientation", mask))


def test_a_mask_drawn_on_the_stored_pixels_of_a_turned_image_is_told(tmp_path):
    image, _ = exif(tmp_path, "png", 6)
    Image.fromarray(255 * OUTLINE).save(tmp_path / "plain.png")
    with pytest.raises(RowError, match="'plain.png' must have the size .* turned by its EXIF orientation: turn the mask"):
        said(tmp_path, image, "plain.png")


@pytest.mark.parametrize(("image", "mask"), PAIRS)
def test_files_of_one_place_say_nothing(tmp_path, image, mask):
    assert said(tmp_path, *pair(tmp_path, image, mask)) == ()


@pytest.mark.parametrize(("image", "mask"), PAIRS)
def test_a_mask_that_claims_another_place_is_refused(tmp_path, image, mask):
    for turned_axis in ({"columns": "R"}, {"rows": "A"}):
        files = pair(tmp_path, image, mask, of_mask=turned_axis)
        with pytest.raises(RowError, match=rf"'{files[1]}' must lie where its image '{files[0]}' lies"):
            said(tmp_path, *files)


@pytest.mark.parametrize(("image", "mask"), [one for one in PAIRS if "dcm" not in one])
def test_a_mask_that_is_stored_otherwise_in_its_place_is_read_right(tmp_path, image, mask):
    # 8 columns of 0.5 mm: the first of those that run to the right lies where the last of the others does, at 3.5 mm.
    files = pair(tmp_path, image, mask, of_mask={"columns": "R", "origin": (3.5, 0.0, 0.0)})
    assert said(tmp_path, *files) == (("direction", f"{files[0]} with {files[1]}"),)
    np.testing.assert_array_equal(folder(tmp_path).read_mask(files[1]), OUTLINE[:, ::-1] > 0)


@pytest.mark.parametrize(("image", "mask"), PAIRS)
def test_another_spacing_or_origin_is_counted(tmp_path, image, mask):
    for told, name in (({"spacing": 0.52}, "spacing"), ({"origin": (0.0, 0.3, 0.0)}, "origin")):
        files = pair(tmp_path, image, mask, of_mask=told)
        assert said(tmp_path, *files) == ((name, f"{files[0]} with {files[1]}"),)
    for told in ({"spacing": 0.502}, {"origin": (0.0, 0.2, 0.0)}):  # within a hundredth, within half a pixel
        assert said(tmp_path, *pair(tmp_path, image, mask, of_mask=told)) == ()


def test_a_tilted_mask_is_counted(tmp_path):
    files = pair(tmp_path, "dcm", "dcm", of_mask={"ImageOrientationPatient": [1, 0, 0, 0, 0.9998, 0.02]})  # 1.1 degrees
    assert said(tmp_path, *files) == (("direction", "i.dcm with m.dcm"),)


def test_a_mask_without_a_place_beside_a_turned_image_is_counted(tmp_path):
    Image.fromarray(OUTLINE).save(tmp_path / "m.png")
    nifti(tmp_path / "i.nii", PICTURE, rows="A")
    assert said(tmp_path, "i.nii", "m.png") == (("no_place", "i.nii with m.png"),)
    nifti(tmp_path / "i.nii", PICTURE)
    assert said(tmp_path, "i.nii", "m.png") == ()


def test_a_header_that_says_two_places_is_counted(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    image = nibabel.Nifti1Image(PICTURE.T[..., None], np.diag([-0.5, -0.5, 1.0, 1.0]))
    image.set_qform(np.diag([0.5, -0.5, 1.0, 1.0]), code=1)
    nibabel.save(image, tmp_path / "i.nii")
    assert said(tmp_path, "i.nii") == (("two_affines", "i.nii"),)
    image.set_qform(image.affine, code=1)
    nibabel.save(image, tmp_path / "i.nii")
    assert said(tmp_path, "i.nii") == ()


@pytest.mark.parametrize(("wide", "expected"), [(80, ("window",)), (100, ())])
def test_a_window_of_less_than_half_of_the_range_is_counted(tmp_path, wide, expected):
    array = np.tile(np.arange(0, 201, 40, dtype=np.uint8)[:, None], (1, 8))  # 0 to 200, half of it is 100
    dicom(tmp_path / "i.dcm", array, WindowCenter=[70, 9], WindowWidth=[wide, 9])
    nifti(tmp_path / "i.nii", array, header={"cal_min": 20, "cal_max": 20 + wide})
    for image in ("i.dcm", "i.nii"):
        assert said(tmp_path, image) == tuple((name, image) for name in expected)


def test_transparency(tmp_path):
    alpha = np.full((6, 8), 255, np.uint8)
    alpha[0, 0] = 0
    drawn = Image.merge("LA", (Image.fromarray(255 * OUTLINE), Image.fromarray(alpha)))
    image = Image.merge("LA", (Image.fromarray(PICTURE), Image.fromarray(alpha)))
    for ending in ("png", "tif"):
        image.save(tmp_path / f"i.{ending}")
        assert said(tmp_path, f"i.{ending}") == (("transparency", f"i.{ending}"),)
        np.testing.assert_array_equal(folder(tmp_path).read_image(f"i.{ending}"), PICTURE)
        drawn.save(tmp_path / f"m.{ending}")  # its first pixel is drawn and transparent
        with pytest.raises(RowError, match="must show what it marks, got 1 pixels above 0 that are transparent"):
            said(tmp_path, f"i.{ending}", f"m.{ending}")
    indexed = Image.fromarray(OUTLINE, "P")
    indexed.putpalette([0, 0, 0, 255, 0, 0])
    for ending, name in itertools.product(("png", "gif"), ("m", "hidden")):
        indexed.save(tmp_path / f"{name}.{ending}", transparency=int(name == "hidden"))
    for ending in ("png", "gif"):
        np.testing.assert_array_equal(folder(tmp_path).read_mask(f"m.{ending}"), OUTLINE > 0)
        with pytest.raises(RowError, match="got 6 pixels above 0 that are transparent"):
            said(tmp_path, "i.png", f"hidden.{ending}")
    white = Image.merge("LA", (Image.new("L", (8, 6), 255), Image.fromarray(alpha)))
    white.save(tmp_path / "m.png")
    with pytest.raises(RowError, match="got one colour with a drawing in its transparency"):
        said(tmp_path, "i.png", "m.png")


def test_white_is_zero_is_turned_round_in_every_depth(tmp_path):
    # Pillow writes 8 bits turned round for this tag, and 16 bits as they are.
    for array, expected in ((PICTURE, PICTURE), (PICTURE.astype(np.uint16), 65535 - PICTURE.astype(int))):
        Image.fromarray(array).save(tmp_path / "i.tif", tiffinfo={262: 0})
        np.testing.assert_array_equal(folder(tmp_path).read_image("i.tif"), expected)


def test_several_pages_are_refused(tmp_path):
    pages = [Image.fromarray(PICTURE), Image.fromarray(255 - PICTURE)]
    for ending in ("tif", "gif", "png"):
        pages[0].save(tmp_path / f"i.{ending}", save_all=True, append_images=pages[1:])
        with pytest.raises(RowError, match="must hold one picture, got 2 pages or frames"):
            said(tmp_path, f"i.{ending}")


def test_resolution_and_colour_profile_change_nothing(tmp_path):
    info = PngImagePlugin.PngInfo()
    info.add(b"gAMA", (45455).to_bytes(4, "big"))
    Image.fromarray(PICTURE).save(tmp_path / "i.png", dpi=(10, 20), pnginfo=info)
    assert said(tmp_path, "i.png") == ()
    np.testing.assert_array_equal(folder(tmp_path).read_image("i.png"), PICTURE)


def test_webp_is_refused_by_name(tmp_path):
    (tmp_path / "i.png").write_bytes(b"RIFF\x00\x00\x00\x00WEBPVP8 ")
    with pytest.raises(RowError, match="a WebP file; convert it to PNG"):
        said(tmp_path, "i.png")


def test_the_padding_of_a_dicom_file_becomes_its_lowest_value(tmp_path):
    stored = PICTURE.astype(np.int16)
    stored[:, :2] = -2000
    expected = PICTURE.copy()
    expected[:, :2] = PICTURE[:, 2:].min()
    dicom(tmp_path / "i.dcm", stored, PixelPaddingValue=-2000)
    np.testing.assert_array_equal(folder(tmp_path).read_image("i.dcm"), expected)
    stored[0, :2] = -1999  # a range, the ends in any order, scaled afterwards: 2 * value + 5
    dicom(tmp_path / "i.dcm", stored, PixelPaddingValue=-1999, PixelPaddingRangeLimit=-2000, RescaleSlope=2, RescaleIntercept=5)
    np.testing.assert_array_equal(folder(tmp_path).read_image("i.dcm"), 2.0 * expected + 5)
    # Where low is bright the padding is the darkest of the rest, too: 65535 - value.
    inverted = np.where(stored < 0, 0, stored).astype(np.uint16)
    dicom(tmp_path / "i.dcm", inverted, kind="MONOCHROME1", PixelPaddingValue=0)
    rest = 65535 - PICTURE[:, 2:].astype(int)
    found = folder(tmp_path).read_image("i.dcm").astype(int)
    np.testing.assert_array_equal(found[:, 2:], rest)
    assert (found[:, :2] == rest.min()).all()
    # A mask may use the same number for what lies outside, and is read as stored.
    dicom(tmp_path / "m.dcm", OUTLINE, PixelPaddingValue=1)
    np.testing.assert_array_equal(folder(tmp_path).read_mask("m.dcm"), OUTLINE > 0)


def test_slopes_of_the_file_and_of_its_frames_are_applied(tmp_path):
    pydicom = pytest.importorskip("pydicom")

    def group(slope, intercept):
        line, found = pydicom.Dataset(), pydicom.Dataset()
        line.RescaleSlope, line.RescaleIntercept = slope, intercept
        found.PixelValueTransformationSequence = [line]
        return found

    stack = np.stack([PICTURE, PICTURE])
    dicom(tmp_path / "i.dcm", stack, PerFrameFunctionalGroupsSequence=[group(2, 1), group(3, -4)])
    for index, expected in enumerate((2.0 * PICTURE + 1, 3.0 * PICTURE - 4)):
        read = folder(tmp_path).read_image(f"i.dcm#axis=0,take=index,index={index}")
        np.testing.assert_array_equal(read, expected)
    dicom(tmp_path / "i.dcm", PICTURE, SharedFunctionalGroupsSequence=[group(0.5, 7)])
    np.testing.assert_array_equal(folder(tmp_path).read_image("i.dcm"), 0.5 * PICTURE + 7)


def test_monochrome1_turns_an_image_round_and_its_contradiction_is_counted(tmp_path):
    dicom(tmp_path / "i.dcm", PICTURE, kind="MONOCHROME1", PresentationLUTShape="IDENTITY")
    assert said(tmp_path, "i.dcm") == (("presentation", "i.dcm"),)
    np.testing.assert_array_equal(folder(tmp_path).read_image("i.dcm"), 255 - PICTURE)
    for kind, shape, expected in (("MONOCHROME1", "INVERSE", ()), ("MONOCHROME2", "INVERSE", (("presentation", "i.dcm"),))):
        dicom(tmp_path / "i.dcm", PICTURE, kind=kind, PresentationLUTShape=shape)
        assert said(tmp_path, "i.dcm") == expected


def test_frames_and_bits_beyond_what_the_header_says_are_not_read(tmp_path):
    dicom(tmp_path / "i.dcm", np.stack([PICTURE] * 3), NumberOfFrames=1)
    with pytest.raises(RowError, match="must hold the 1 frames that its header says, got 3"):
        said(tmp_path, "i.dcm")
    dicom(tmp_path / "i.dcm", PICTURE.astype(np.uint16) * 100, bits=12)
    np.testing.assert_array_equal(folder(tmp_path).read_image("i.dcm"), PICTURE.astype(int) * 100 % 4096)


TESTED = {
    "exif_orientation": test_exif_orientation_turns_images_and_masks,
    "transparency": test_transparency,
    "white_is_zero": test_white_is_zero_is_turned_round_in_every_depth,
    "pages": test_several_pages_are_refused,
    "resolution": test_resolution_and_colour_profile_change_nothing,
    "colour_profile": test_resolution_and_colour_profile_change_nothing,
    "webp": test_webp_is_refused_by_name,
    "direction": test_a_mask_that_claims_another_place_is_refused,
    "spacing": test_another_spacing_or_origin_is_counted,
    "origin": test_another_spacing_or_origin_is_counted,
    "size": test_a_mask_drawn_on_the_stored_pixels_of_a_turned_image_is_told,
    "no_place": test_a_mask_without_a_place_beside_a_turned_image_is_counted,
    "two_affines": test_a_header_that_says_two_places_is_counted,
    "window": test_a_window_of_less_than_half_of_the_range_is_counted,
    "slope": test_slopes_of_the_file_and_of_its_frames_are_applied,
    "padding": test_the_padding_of_a_dicom_file_becomes_its_lowest_value,
    "monochrome1": test_monochrome1_turns_an_image_round_and_its_contradiction_is_counted,
    "presentation": test_monochrome1_turns_an_image_round_and_its_contradiction_is_counted,
    "frames": test_frames_and_bits_beyond_what_the_header_says_are_not_read,
    "bits": test_frames_and_bits_beyond_what_the_header_says_are_not_read,
    "patient": test_files_of_one_place_say_nothing,
    "checksum": "test_image_formats.py",
    "attributes": "test_hdf5.py",
}


def test_every_statement_has_a_test_and_a_line_in_the_documents():
    assert list(TESTED) == [one.name for one in STATEMENTS]
    lines = [f"| {one.formats} | {one.says} | **{one.treatment}** | {one.how} |" for one in STATEMENTS]
    text = (ROOT / "docs/attention/data.md").read_text(encoding="utf-8")
    assert "\n".join(lines) in text, "\n".join(lines)


def test_statements_are_counted_by_file_in_the_order_of_the_table():
    made = [("origin", "b with c"), ("transparency", "a.png"), ("origin", "d with e"), ("origin", "b with c")]
    assert list(describe_statements(made).items()) == [
        ("transparency", {"files": 1, "example": "a.png"}),
        ("origin", {"files": 2, "example": "b with c"}),
    ]
    assert all(one.warning for one in STATEMENTS if one.treatment == "compared")
    assert set(WARNINGS) <= set(TESTED)


def test_axes_of_one_pixel_tell_nothing_and_half_a_pixel_apart_is_the_same_place():
    one, other = (place((0.0, 0.0, 0.0), (1, 4, 5)), place((9.0, 0.0, 0.0), (1, 4, 5)))
    assert shared_axes(one, other) == [1, 2]
    assert shared_axes(place((0.0,) * 3, (3, 4, 5)), one) == [1, 2]
    assert not moved_axes(one, other)  # nine millimetres along the one slice
    for apart, moved in ((1.0, False), (1.01, True)):  # of two millimetres a pixel
        assert moved_axes(one, place((0.0, 0.0, apart), (1, 4, 5))) == moved


def place(origin: tuple[float, float, float], counts: tuple[int, int, int]) -> Place:
    """Return a place of slices, rows and columns along z, y and x, with pixels of 2 mm; its origin in that order."""
    axes = np.eye(3)[::-1]
    return Place(axes.T @ np.array(origin), axes, np.full(3, 2.0), ("S", "P", "L"), counts)
