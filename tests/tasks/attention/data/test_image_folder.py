"""Names that users choose become files that every file system keeps apart."""

import contextlib
import re
import threading
import time
import tracemalloc
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from grpo_pipeline.tasks.attention.data import image_folder
from grpo_pipeline.tasks.attention.data.file_naming import file_names
from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder, UnreadableFileError, read_manifest
from grpo_pipeline.tasks.attention.data.image_formats import read_npy
from grpo_pipeline.tasks.attention.data.planes import with_values
from grpo_pipeline.tasks.csv_records import csv_records
from grpo_pipeline.tasks.text_lines import TextFile


def picture(folder, name, array, **options):
    (folder.root / name).parent.mkdir(exist_ok=True)
    Image.fromarray(array).save(folder.root / name, **options)


GREY = np.array([[0, 1, 2], [127, 128, 255]], np.uint8)


class TestReadImage:
    def test_values_and_type_are_kept_and_colours_become_luminance(self, folder, tmp_path_factory):
        for array in (GREY, GREY.astype(np.uint16) * 257):
            picture(folder, "i.png", array)
            read = folder.read_image("i.png")
            np.testing.assert_array_equal(read, array)
            assert read.dtype == array.dtype
        for array in (GREY, GREY / 255.0, (GREY / 255.0).astype(np.float32), GREY > 1, GREY.astype(np.int32)):
            np.save(folder.root / "i.npy", array, allow_pickle=False)
            read = folder.read_image("i.npy")
            np.testing.assert_array_equal(read, array)
            assert read.dtype == array.dtype
        picture(folder, "i.png", np.stack([GREY] * 3, axis=-1))
        link = tmp_path_factory.mktemp("links") / "root"  # a folder may be reached through a link
        link.symlink_to(folder.root)
        for reader in (folder, ImageFolder(link, folder.manifest, link / "m.csv")):
            np.testing.assert_array_equal(reader.read_image("i.png"), GREY)


class TestNpySlices:
    """An NPY file with an address is mapped, and only what is taken is read."""

    VOLUME = np.random.default_rng(0).integers(0, 200, (3, 4, 5)).astype(np.int16)

    @pytest.mark.parametrize("order", ["C", "F"])
    def test_slices(self, folder, order):
        np.save(folder.root / "v.npy", np.asarray(self.VOLUME, order=order), allow_pickle=False)
        for axis, length in enumerate(self.VOLUME.shape):
            for index in range(length):
                plane = folder.read_plane(f"v.npy#axis={axis},take=index,index={index}", as_mask=False)
                np.testing.assert_array_equal(plane.values, self.VOLUME.take(index, axis))
        np.testing.assert_array_equal(folder.read_image("v.npy#axis=0,take=max_projection"), self.VOLUME.max(0))

    def test_only_the_slice_is_read(self, folder):
        np.lib.format.open_memmap(folder.root / "big.npy", mode="w+", dtype=np.uint8, shape=(4000, 512, 512))  # 1 GB, sparse
        tracemalloc.start()
        try:
            assert folder.read_image("big.npy#axis=0,take=index,index=3999").shape == (512, 512)
            assert tracemalloc.get_traced_memory()[1] < 5_000_000
        finally:
            tracemalloc.stop()

    def test_bad_stacks_are_refused(self, folder):
        for array, message in (
            (np.zeros((2, 2, 2, 2)), r"must be one plane or one volume, got shape \(2, 2, 2, 2\)"),
            (np.zeros((2, 0, 2)), r"got shape \(2, 0, 2\)"),
            (np.zeros((2, 2, 2), complex), "must hold real numbers, got type complex128"),
            (np.full((2, 2, 2), np.nan), "must hold finite numbers, got 4 NaN or Inf"),
            (np.array([[{}]]), "must be a complete NPY file of numbers"),
        ):
            np.save(folder.root / "v.npy", array)
            with pytest.raises(UnreadableFileError, match=message):
                folder.read_image("v.npy#axis=0,take=middle")


class TestReadMask:
    def test_several_values_are_refused_until_those_inside_are_named(self, folder):
        mask = np.array([[0, -1, 2], [0, 0, 3]], np.int8)
        np.save(folder.root / "m.npy", mask, allow_pickle=False)
        np.testing.assert_array_equal(folder.read_image("m.npy#axis=2,take=middle"), mask)  # a plane is that plane
        picture(folder, "m.png", mask.clip(0).astype(np.uint8))
        for name in ("m.npy", "m.npy#axis=0,take=middle", "m.png"):
            with pytest.raises(UnreadableFileError, match=r"one value beside 0, got 2, 3; say which .* lesion_mask: \[2\]"):
                folder.read_mask(name)
            np.testing.assert_array_equal(folder.read_mask(f"{name}#values=3"), mask == 3)
            np.testing.assert_array_equal(folder.read_mask(with_values(name, (2, 3.0))), mask > 0)

    def test_several_files_are_one_mask_and_must_have_one_size(self, folder):
        for name, values in (("a", [[0, 1], [0, 0]]), ("b", [[0, 2], [3, 0]]), ("c", [[1, 0, 0]])):
            picture(folder, f"{name}.png", np.array(values, np.uint8))
        named = with_values("a.png;b.png", (1, 3))
        assert named == "a.png#values=1,3;b.png#values=1,3"
        np.testing.assert_array_equal(folder.read_mask(named), [[False, True], [True, False]])
        with pytest.raises(UnreadableFileError, match=r"'c.png' must have the size of 'a.png', got \(1, 3\) beside \(2, 2\)"):
            folder.read_mask("a.png;c.png")

    def test_a_mask_of_many_values_is_inside_from_half_of_the_highest_on(self, folder):
        soft = np.repeat(np.arange(0, 200, 10, dtype=np.uint8), [200, *[1] * 18, 200])  # 0 outside, 18 grey levels, 190 inside
        picture(folder, "m.png", soft[None])
        plane = folder.read_mask_plane("m.png")
        np.testing.assert_array_equal(plane.values[0], soft >= 95)
        assert plane.is_smeared
        assert not folder.read_mask_plane("m.png#values=10,20").is_smeared

    @pytest.mark.parametrize(("grey", "is_refused"), [(12, True), (11, False)])
    def test_an_outline_that_is_drawn_over_the_image_is_no_mask(self, folder, grey, is_refused):
        """A tenth of grey levels makes a picture; edges that are as grey, of masks that are as large, hold fewer."""
        over = np.zeros((20, 6), np.uint8)
        over.flat[:grey] = np.arange(100, 100 + 4 * grey, 4)
        over[-1, :] = [255, 255, 250, 245, 240, 235]  # the outline: within an eighth of the highest
        over.flat[60:65] = np.arange(1, 6)  # nearly black
        picture(folder, "m.png", over)
        if is_refused:
            with pytest.raises(UnreadableFileError, match="'m.png' must be a mask, got a picture, 10% of it in grey levels"):
                folder.read_mask("m.png")
        else:
            assert folder.read_mask("m.png").any()
        assert not folder.read_mask("m.png#values=99").any()

    @pytest.mark.parametrize("mode", ["LA", "RGBA"])
    def test_a_mask_that_is_drawn_in_its_transparency_alone_is_refused(self, folder, mode):
        for alpha, name in (([[0, 255]], "drawn.png"), ([[255, 255]], "empty.png")):
            mask = Image.new(mode, (2, 1))
            mask.putalpha(Image.fromarray(np.array(alpha, np.uint8)))
            mask.save(folder.root / name)
        with pytest.raises(UnreadableFileError, match="'drawn.png' must be drawn in grey levels or colours, got black with a"):
            folder.read_mask("drawn.png")
        assert not folder.read_mask("empty.png").any()
        assert not folder.read_image("drawn.png").any()

    def test_palette_index_counts_not_its_colour(self, folder):
        mask = Image.fromarray(np.array([[0, 1], [1, 0]], np.uint8), mode="P")
        mask.putpalette([255, 255, 255, 0, 0, 0])  # index 0 white, index 1 black
        mask.save(folder.root / "m.png")
        np.testing.assert_array_equal(folder.read_mask("m.png"), [[False, True], [True, False]])


def bad_png(root, cut=0, flip=False):
    """Write a picture without its last bytes, or with one that is turned round."""
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40), dtype=np.uint8)).save(root / "bad.png")
    content = bytearray((root / "bad.png").read_bytes())
    content[len(content) // 2] ^= 255 * flip
    (root / "bad.png").write_bytes(content[: len(content) - cut])


def half_npy(root):
    np.save(root / "bad.npy", np.zeros((30, 30)))
    content = (root / "bad.npy").read_bytes()
    (root / "bad.npy").write_bytes(content[: len(content) // 2])


def link_out(root):
    outside = root.parent / f"{root.name}-outside.png"
    Image.fromarray(GREY).save(outside)
    (root / "bad.png").symlink_to(outside)


INCOMPLETE, BELOW = "must be a complete NPY file", "must be a path below the data root"
# What makes the file, or the array of an NPY file; the path; the error.
BAD_FILES = {
    "missing": (lambda root: None, "bad.png", "got nothing there; add the file or correct the manifest"),
    "folder": (lambda root: (root / "bad.png").mkdir(), "bad.png", "got nothing there"),
    "text": (lambda root: (root / "bad.png").write_text("hello"), "bad.png", "got a file of another kind; convert it"),
    "webp": (lambda root: (root / "bad.png").write_bytes(b"RIFF\0\0\0\0WEBPVP8 "), "bad.png", "or NPY image, .* got a WebP file"),
    "dicom": (lambda root: (root / "bad").write_bytes(b"\0" * 128 + b"DICM"), "bad", r"got a DICOM file .*end with \.dcm"),
    "empty": (lambda root: (root / "bad.png").write_bytes(b""), "bad.png", "got a file of another kind"),
    "half a png": (lambda root: bad_png(root, 800), "bad.png", "must be a complete image file"),
    "png without its last 12 bytes": (lambda root: bad_png(root, 12), "bad.png", "got a PNG without its end"),
    "flipped byte": (lambda root: bad_png(root, flip=True), "bad.png", "must be a complete image file"),
    "half an npy": (half_npy, "bad.npy", INCOMPLETE),
    "text npy": (lambda root: (root / "bad.npy").write_text("hello"), "bad.npy", INCOMPLETE),
    "pickled npy": (np.array([[{}]]), "bad.npy", INCOMPLETE),
    "nan": (np.array([[0.5, np.nan]]), "bad.npy", "finite numbers, got 1 NaN or Inf"),
    "inf": (np.array([[np.inf, -np.inf]]), "bad.npy", "finite numbers, got 2 NaN or Inf"),
    "volume": (np.zeros((2, 3, 4)), "bad.npy", r"got shape \(2, 3, 4\); save one plane"),
    "no pixels": (np.zeros((0, 4)), "bad.npy", r"got shape \(0, 4\)"),
    "complex": (np.zeros((2, 2), complex), "bad.npy", "real numbers, got type complex128"),
    "absolute": (bad_png, "/etc/hostname", BELOW),
    "parent": (lambda root: (root.parent / "x.png").write_bytes(b""), "../x.png", BELOW),
    "parent inside": (bad_png, "a/../bad.png", BELOW),
    "link out": (link_out, "bad.png", "got a link that leaves it"),
    "linked folder out": (lambda root: (root / "sub").symlink_to("/"), "sub/etc/hostname", "got a link that leaves it"),
}


@pytest.mark.parametrize("reader", ["read_image", "read_mask"])
@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_file_is_refused_in_one_sentence(folder, case, reader):
    spoil, name, message = BAD_FILES[case]
    np.save(folder.root / "bad.npy", spoil) if isinstance(spoil, np.ndarray) else spoil(folder.root)
    with pytest.raises(UnreadableFileError, match=message) as error:
        getattr(folder, reader)(name)
    assert str(error.value).startswith(repr(name))
    assert "\n" not in str(error.value)


def test_threads_that_open_pictures_leave_the_warning_filters_alone(folder, monkeypatch):
    """Two pictures are opened at a time: without the lock each would restore the other's filters."""
    picture(folder, "i.png", GREY)
    meeting, plain = threading.Barrier(2), Image.open

    def meet(*args, **options):
        with contextlib.suppress(threading.BrokenBarrierError):
            if meeting.wait(0.2) == 1:
                time.sleep(0.05)  # the one that came last leaves last, and would restore what the first had set
        return plain(*args, **options)

    monkeypatch.setattr(Image, "open", meet)
    before = list(warnings.filters)
    readers = [threading.Thread(target=folder.read_image, args=("i.png",)) for _ in range(2)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert warnings.filters == before


class TestReadManifest:
    def test_cells_stay_text_and_lines_are_those_of_the_file(self, tmp_path):
        path = tmp_path / "m.csv"
        path.write_bytes('\ufeffid,center,x\r\n0012,NA,1.50\r\n\r\n"a,b"\r\n'.encode())
        table = read_manifest(path)
        assert table.to_dict("records") == [{"id": "0012", "center": "NA", "x": "1.50"}, {"id": "a,b", "center": "", "x": ""}]
        assert list(table.index) == [2, 4]

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "must hold a header and at least one row, got an empty file"),
            (b"a,b\n", "must hold a header and at least one row, got only a header"),
            (b"a,b\n\n,\n", "got only a header"),
            (b"a,b,a\n1,2,3\n", r"must name each column once, got \['a'\] more than once"),
            (b"a,b\n1,2\n1,2,3\n", "line 3 must have 2 cells as the header has, got 3"),
            (b"a,b\n\xff\xfe,1\n", "must be a table in UTF-8"),
            (b'a,b\n1,2\n3,"4\n5,6\n', "m.csv line 3 must be a row of a CSV table, got a quote that is never closed; look for"),
            (b"a,b\n1," + b"x" * 200_000 + b"\n", "m.csv line 2 must be a row of .*, got a cell of more than 131072 characters"),
        ],
    )
    def test_bad_manifest_is_refused(self, tmp_path, content, message):
        (tmp_path / "m.csv").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_manifest(tmp_path / "m.csv")


def test_plain_names_stay_and_unsafe_ones_are_told_apart():
    assert file_names(["P0001-1", "S01.3", "a_b"]) == ["P0001-1", "S01.3", "a_b"]
    # First 10 digits of sha256("../etc/passwd"), computed with sha256sum.
    names = file_names(["../etc/passwd", ".._etc_passwd", "a/b", "a:b", "", "CON", "con.png", "x" * 300, "ü", "é", "end."])
    assert names[0] == "___etc_passwd-7fef78f534"
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,80}", name) for name in names)


@settings(max_examples=20)
@given(st.lists(st.text(max_size=30), unique=True))
def test_different_names_stay_different_whatever_they_are(texts: list[str]):
    names = [name.casefold() for name in file_names(texts)]
    assert len(set(names)) == len(texts)
    assert not [name for name in names if not re.fullmatch(r"[a-z0-9_][a-z0-9._-]{0,90}", name) or name.endswith(".")]


NAMES = {"composed": "M\u00fc/bild \u00e9.png", "decomposed": "Mu\u0308/bild e\u0301.png"}


@pytest.mark.parametrize(("written", "named"), [("composed", "decomposed"), ("decomposed", "composed"), ("decomposed",) * 2])
def test_a_file_is_found_in_either_unicode_form_of_its_name(folder, written, named):
    picture(folder, NAMES[written], np.full((2, 3), 7, np.uint8))
    np.testing.assert_array_equal(folder.read_image(NAMES[named]), np.full((2, 3), 7))


def test_a_file_that_differs_in_case_is_named_and_one_of_two_is_not_guessed(folder):
    picture(folder, "Bild.PNG", np.zeros((2, 3), np.uint8))
    with pytest.raises(UnreadableFileError, match="got one whose name differs in case, 'Bild.PNG'; write it as it is"):
        folder.read_image("bild.png")
    picture(folder, "BILD.PNG", np.zeros((2, 3), np.uint8))
    with pytest.raises(UnreadableFileError, match="got nothing there"):
        folder.read_image("bild.png")


def test_cells_of_a_manifest_have_one_unicode_form(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("id,Gro\u0308\u00dfe\nMu\u0308,1\nM\u00fc,2\n", encoding="utf-8")
    manifest = read_manifest(path)
    assert (list(manifest.columns), list(manifest["id"])) == (["id", "Gr\u00f6\u00dfe"], ["M\u00fc", "M\u00fc"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"sep=;\nid;label\n1;2\n", "must begin with the names of its columns, got 'sep=;'"),
        ("id,label\n1,2\n".encode("utf-16"), "must be UTF-8 text, got UTF-16"),
        ("id,label\n1,2\n".encode("utf-16-be"), "must be UTF-8 text, got bytes of 0"),
        ("id,label\n\u00e9,2\n".encode("latin-1"), "export the table again, as CSV in UTF-8"),
    ],
)
def test_another_first_line_or_encoding_is_refused_by_name(tmp_path, content, message):
    (tmp_path / "m.csv").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_manifest(tmp_path / "m.csv")
    if "export" not in message:  # bytes of one cell are judged with their row
        with pytest.raises(ValueError, match=message):
            list(csv_records(TextFile("m.csv", content), ["id"], section="s"))


@pytest.mark.parametrize(
    ("content", "columns", "cells"),
    [
        ("id;label\n1;2,5\n", ["id", "label"], ["1", "2,5"]),
        ("id\tlabel\n1\t2;5\n", ["id", "label"], ["1", "2;5"]),
        ("id|label\n1|2;5\n", ["id", "label"], ["1", "2;5"]),
        ('"id, of all";label\n"1;1";2\n', ["id, of all", "label"], ["1;1", "2"]),
        ("id,a;b\n1,2;5\n", ["id", "a;b"], ["1", "2;5"]),
        ("id\n1;2\n", ["id"], ["1;2"]),
    ],
)
def test_the_first_line_says_what_stands_between_columns(tmp_path, content, columns, cells):
    (tmp_path / "m.csv").write_text(content)
    manifest = read_manifest(tmp_path / "m.csv")
    assert (list(manifest.columns), list(manifest.iloc[0])) == (columns, cells)
    [(_, row)] = csv_records(TextFile("m.csv", content.encode()), ["id"] if columns[0] == "id" else [], section="s")
    assert (list(row), list(row.values())) == (columns, cells)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_table_is_read_with_every_line_end_and_a_byte_order_mark(tmp_path, end):
    (tmp_path / "m.csv").write_bytes(b"\xef\xbb\xbf" + f"id,label{end}a,1{end}b,2{end}".encode())
    manifest = read_manifest(tmp_path / "m.csv")
    assert (list(manifest.columns), list(manifest["label"])) == (["id", "label"], ["1", "2"])


def test_a_picture_of_exactly_as_many_pixels_as_allowed_is_read(folder, monkeypatch: pytest.MonkeyPatch):
    Image.fromarray(np.zeros((4, 6), np.uint8)).save(folder.root / "a.png")
    monkeypatch.setattr(image_folder, "MAX_PIXELS", 24)
    assert folder.read_image("a.png").shape == (4, 6)
    monkeypatch.setattr(image_folder, "MAX_PIXELS", 23)
    with pytest.raises(UnreadableFileError, match="'a.png' must have at most 23 pixels, got 6 x 4; shrink it"):
        folder.read_image("a.png")


def test_one_header_of_an_npy_file_is_parsed_at_a_time(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", np.zeros((2, 3), np.uint8))
    parsing, most, load = [], [], np.load

    def watched(*args, **kwargs):
        parsing.append(1)
        most.append(len(parsing))
        time.sleep(0.01)
        parsing.pop()
        return load(*args, **kwargs)

    monkeypatch.setattr(np, "load", watched)
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(lambda _: read_npy(tmp_path / "a.npy", "a.npy"), range(8)))
    assert [array.shape for array in read] == [(2, 3)] * 8
    assert max(most) == 1
