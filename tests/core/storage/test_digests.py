"""Each part of a content changes its digest, the same content in another form does not, and large files are read to their end."""

import hashlib
import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from grpo_pipeline.core.agreement import differences, digest_of, summary
from grpo_pipeline.core.storage import tensor_folder
from grpo_pipeline.core.storage.content_digest import content_digest
from grpo_pipeline.core.storage.replacement import find_complete, put_in_place, remove_partials
from grpo_pipeline.core.storage.tensor_folder import checksum, read_header, seal_of
from grpo_pipeline.core.storage.weights import digest_of_tensors

LARGE = bytes(range(256)) * 4096 * 2 + b"the end"  # more than two reads of 1 MiB


def test_a_file_longer_than_one_read_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(LARGE)
    assert content_digest(path) == hashlib.sha256(LARGE).hexdigest()[:16]
    assert checksum(path) == f"{zlib.crc32(LARGE):08x}"
    before = content_digest(path), checksum(path)
    for place in (0, 2**20, len(LARGE) - 1):
        path.write_bytes(LARGE[:place] + b"\xfe" + LARGE[place + 1 :])
        assert content_digest(path) != before[0]
        assert checksum(path) != before[1]
    path.write_bytes(b"")
    assert checksum(path) == "00000000"


def folder(root: Path) -> Path:
    for name, text in {"a.txt": "12", "deep/b.txt": "3", "deep/c.txt": ""}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_folder_is_digested_with_names_and_sizes_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = hashlib.sha256(b"a.txt\x002\x0012deep/b.txt\x001\x003deep/c.txt\x000\x00").hexdigest()[:16]
    assert content_digest(folder(tmp_path)) == expected
    found = Path.rglob
    # As another disk lists them.
    monkeypatch.setattr(Path, "rglob", lambda self, pattern: sorted(found(self, pattern), reverse=True))
    assert content_digest(tmp_path) == expected


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (lambda root: (root / "a.txt").write_text("21"), True),
        (lambda root: (root / "a.txt").rename(root / "z.txt"), True),
        (lambda root: (root / "deep/b.txt").rename(root / "b.txt"), True),
        (lambda root: (root / "deep/c.txt").unlink(), True),
        (lambda root: (root / "new.txt").write_text(""), True),
        (lambda root: (root / "nothing").mkdir(), False),
        (lambda root: (root / "a.txt").touch(), False),
    ],
)
def test_each_change_of_a_folder_changes_its_digest(tmp_path: Path, change: Callable[[Path], object], differs: bool) -> None:
    before = content_digest(folder(tmp_path / "x"))
    change(tmp_path / "x")
    assert (content_digest(tmp_path / "x") != before) is differs
    moved = (tmp_path / "x").rename(tmp_path / "elsewhere")
    assert (content_digest(moved) != before) is differs


@pytest.mark.parametrize("header", ["checkpoint.json", "model.json", "meta.json"])
def test_a_folder_with_a_header_is_digested_by_it_alone(tmp_path: Path, header: str) -> None:
    (folder(tmp_path) / header).write_text("{}")
    before = content_digest(tmp_path)
    assert before == hashlib.sha256(f"{header}\0002\0{{}}".encode()).hexdigest()[:16]
    (tmp_path / "a.txt").write_text("another")
    assert content_digest(tmp_path) == before
    (tmp_path / header).write_text("[]")
    assert content_digest(tmp_path) != before


def test_a_header_is_sealed_whatever_its_layout(tmp_path: Path) -> None:
    values = {"crc32": {"a": "1", "b": "2"}, "step": 3}
    seal = seal_of(values)
    assert seal == hashlib.sha256(b'{"crc32":{"a":"1","b":"2"},"step":3}').hexdigest()
    assert seal_of({"step": 3, "crc32": {"b": "2", "a": "1"}, "sha256": "old"}) == seal
    path = tmp_path / "x.json"
    for text in (json.dumps({**values, "sha256": seal}, indent=7), json.dumps({"sha256": seal, **values})):
        path.write_text(text)
        assert read_header(path)["step"] == 3
    for changed in ({"step": 4}, {"crc32": {"a": "1"}}, {"more": 0}):
        path.write_text(json.dumps({**values, "sha256": seal} | changed))
        with pytest.raises(tensor_folder.CorruptFolderError, match="must be as it was written, got another check sum"):
            read_header(path)


BASE = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}


@pytest.mark.parametrize(
    "changed",
    [
        {"w": BASE["w"], "c": BASE["b"]},
        {"w": BASE["w"]},
        {"w": BASE["w"] + torch.eye(2, 3) * 1e-6, "b": BASE["b"]},
        {"w": BASE["w"], "b": BASE["b"].int()},
        {"w": BASE["w"].T.contiguous().reshape(2, 3), "b": BASE["b"]},
        {"b": BASE["w"], "w": BASE["b"]},
    ],
    ids=["name", "missing", "value", "type", "order of values", "exchanged"],
)
def test_each_part_of_named_tensors_changes_their_digest(changed: dict[str, torch.Tensor]) -> None:
    assert digest_of_tensors(changed) != digest_of_tensors(BASE)


def test_the_same_tensors_in_another_form_have_the_same_digest() -> None:
    turned = {"b": BASE["b"], "w": BASE["w"].T.contiguous().T.requires_grad_()}
    assert not turned["w"].is_contiguous()
    assert digest_of_tensors(turned) == digest_of_tensors(BASE)


def test_a_digest_of_parameters_has_no_order_of_keys_and_every_value() -> None:
    values = {"a": {"x": 1, "y": [1, 2]}, "b": None}
    base = digest_of(values)
    assert base == hashlib.sha256(b'{"a": {"x": 1, "y": [1, 2]}, "b": null}').hexdigest()
    assert digest_of({"b": None, "a": {"y": [1, 2], "x": 1}}) == base
    others = [{"a": {"x": 1, "y": [2, 1]}, "b": None}, {"a": {"x": 1, "y": [1, 2]}}, {"a": {"x": 1.5, "y": [1, 2]}, "b": None}]
    assert len({base, *map(digest_of, others)}) == 4


def test_differences_are_named_by_their_sections_and_null_is_a_value() -> None:
    here = {"training": {"a": 1, "same": 2, "gone": None}, "seed": 0, "text": "x" * 70, "empty": {}}
    there = {"training": {"a": 2, "same": 2}, "seed": 0, "text": "y" * 64, "empty": {"now": 1}}
    assert differences(here, there, names={"training": "t.training"}) == [
        "empty: {} here, nothing in the checkpoint",
        "empty.now: nothing here, 1 in the checkpoint",
        "t.training.a: 1 here, 2 in the checkpoint",
        "t.training.gone: null here, nothing in the checkpoint",
        f"text: {'x' * 60}… here, {'y' * 12}… in the checkpoint",
    ]
    assert summary([*"abcde"]) == "a; b; c; d; e"
    assert summary([*"abcdefg"]) == "a; b; c; d; e and 2 more"


def test_of_a_folder_that_was_being_replaced_the_last_complete_one_is_found(tmp_path: Path) -> None:
    place, previous = tmp_path / "x", tmp_path / "x.previous"
    assert find_complete(place) is None
    previous.mkdir()
    assert find_complete(place) == previous
    place.mkdir()
    assert find_complete(place) == place


def test_a_ready_folder_takes_the_place_of_the_old_one_as_a_whole(tmp_path: Path) -> None:
    ready, place = folder(tmp_path / "ready"), tmp_path / "deep/place"
    place.mkdir(parents=True)
    (place / "old.txt").write_text("old")
    expected = content_digest(ready)
    put_in_place(ready, place)
    assert content_digest(place) == expected
    assert [path.name for path in place.parent.iterdir()] == ["place"]
    file = tmp_path / "ready.txt"
    file.write_text("new")
    (tmp_path / "deep/file.txt").write_text("old")
    put_in_place(file, tmp_path / "deep/file.txt")
    assert (tmp_path / "deep/file.txt").read_text() == "new"
    assert sorted(path.name for path in place.parent.iterdir()) == ["file.txt", "place"]


def test_only_what_writers_left_is_removed(tmp_path: Path) -> None:
    place = tmp_path / "table"
    left = ["table.partial-7", ".table.partial-8", "table/v1/table.partial-9", "table/v2/.table.partial-3"]
    kept = ["table/v1/table", "other.partial-7", "table/v1/other.partial-2"]
    for name in (*left, *kept):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("half")
    (tmp_path / "table.partial-5").mkdir()
    remove_partials(place)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == sorted(kept)
    assert not (tmp_path / "table.partial-5").exists()
