"""A folder of results, its lock, its notes: where a dataset belongs, and what is written down of it."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.pipeline import Node, Pipeline

from grpo_pipeline.datasets.json_lines import JsonLinesDataset
from grpo_pipeline.runs.artefact_records import (
    Entry,
    ProvenanceError,
    Record,
    finish_moves,
    load_record,
    refuse_mixture,
    save_record,
)
from grpo_pipeline.runs.result_folders import LOOKS_UP, ResultFolder, folder_of, remedies, saved_names, written_folders
from grpo_pipeline.runs.stored_datasets import arguments, content_path, is_in_place, is_keyed, is_versioned, pin, place_of

JSON = "json.JSONDataset"


def dataset(path: object, **entry: object):
    return DataCatalog.from_config({"x": {"type": JSON, "filepath": str(path), **entry}}, save_version="now")["x"]


@pytest.mark.parametrize(
    ("path", "metadata", "name"),
    [
        ("06_models/t/grpo/model", {}, "t"),
        ("03_primary/other/splits.json", {"kedro-viz": {"layer": "03_primary"}}, "other"),
        ("02_intermediate/t/cache/features", {"owner": "cache"}, "t.cache"),
        ("02_intermediate/t/x.json", None, "t"),
    ],
)
def test_a_dataset_belongs_to_the_folder_below_its_layer(tmp_path: Path, path: str, metadata: object, name: str) -> None:
    results = folder_of(dataset(tmp_path / path, **({} if metadata is None else {"metadata": metadata})), tmp_path)
    assert results == ResultFolder(name, tmp_path / ".runs")
    assert [results.lock, results.record, results.staged] == [
        tmp_path / f".runs/{name}.{kind}" for kind in ("lock", "json", "staged")
    ]


def test_what_lies_elsewhere_has_an_area_for_each_folder(tmp_path: Path) -> None:
    """Outside of the data, and beside the folders of a layer: two files of one folder belong together."""
    data, outside = tmp_path / "data", tmp_path / "mine"
    places = [outside / "a.json", outside / "b.json", outside / "deep/a.json", data / "03_primary/lonely.json", data / "a.json"]
    names = [folder_of(dataset(place), data).name for place in places]
    assert names[0] == names[1]
    assert len(set(names)) == 4
    assert all(name.startswith("outside-") and len(name) == 20 for name in names)
    assert folder_of(MemoryDataset(), data) is None
    assert folder_of(stored("s3://bucket/a/b/c.json"), data) is None


def test_a_relative_place_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert place_of(dataset("data/03_primary/t/x.json")) == tmp_path / "data/03_primary/t/x.json"


def stored(path: str) -> SimpleNamespace:
    return SimpleNamespace(_init_args={"kwargs": {"kwargs": {"filepath": path, "rows": 3}}})


def test_the_arguments_of_a_class_that_inherits_are_found_deeper() -> None:
    assert arguments(stored("x")) == {"filepath": "x", "rows": 3}
    assert arguments(object()) == {}


@pytest.mark.parametrize(
    ("marks", "in_place", "keyed"),
    [({}, False, False), ({"in_place": True}, True, False), ({"is_keyed": True}, True, True)],
)
def test_a_dataset_says_how_it_is_kept(tmp_path: Path, marks: dict[str, bool], in_place: bool, keyed: bool) -> None:
    kind = type("Marked", (JsonLinesDataset,), marks)
    made = kind(filepath=str(tmp_path / "x.jsonl"))
    assert (is_in_place(made), is_keyed(made), is_versioned(made)) == (in_place, keyed, False)
    versioned = dataset(tmp_path / "x", versioned=True)
    assert (is_in_place(versioned), is_keyed(versioned), is_versioned(versioned)) == (True, False, True)


def test_a_pinned_version_is_read_whatever_lies_beside_it(tmp_path: Path) -> None:
    for version in ("v1", "v2", "v3"):
        (tmp_path / "x.json" / version).mkdir(parents=True)
        (tmp_path / "x.json" / version / "x.json").write_text(json.dumps(version))
    versioned = dataset(tmp_path / "x.json", versioned=True)
    assert versioned.load() == "v3"  # the newest name
    pin(versioned, load="v2")
    assert versioned.load() == "v2"
    assert content_path(versioned) == tmp_path / "x.json/v2/x.json"
    assert versioned.resolve_save_version() == "now"
    assert content_path(dataset(tmp_path / "y.json")) == tmp_path / "y.json"
    with pytest.raises(ValueError, match="a stored dataset must have a filepath"):
        content_path(MemoryDataset())


def test_locks_are_asked_for_in_one_order_and_of_outputs_alone(tmp_path: Path) -> None:
    entries = {name: {"type": JSON, "filepath": str(tmp_path / f"03_primary/{name}/x.json")} for name in ("b", "c", "a", "read")}
    catalog = DataCatalog.from_config(entries)
    nodes = [Node(lambda x: x, "read", out, name=out) for out in ("b", "c", "a", "memory")]
    assert [results.name for results in written_folders(Pipeline(nodes), catalog, tmp_path)] == ["a", "b", "c"]


def test_another_folder_is_named_by_every_parameter_that_gives_one(tmp_path: Path) -> None:
    names = {"attention_folder": "t", "mine": "t", "dialogue_folder": "d"}
    expected = ["--params attention_folder=t_2", "--params mine=t_2"]
    assert (
        list(remedies(ResultFolder("t", tmp_path), names)) == list(remedies(ResultFolder("t.cache", tmp_path), names)) == expected
    )
    assert list(remedies(ResultFolder("outside-1", tmp_path), names)) == ["--params data=<another folder>"]


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    entry = Entry("aa", "noon", "d1", "v1", {"params:seed": "0"})
    record = Record({"x": entry, "y": Entry("bb", "one")}, (("from", "to"), ("here", "there")))
    save_record(tmp_path / "deep/t.json", record)
    assert load_record(tmp_path / "deep/t.json") == record
    assert json.loads((tmp_path / "deep/t.json").read_text())["entries"]["x"] == {
        "run": "aa", "since": "noon", "digest": "d1", "version": "v1", "sources": {"params:seed": "0"},
    }  # fmt: skip
    assert load_record(tmp_path / "none.json") is None


@pytest.mark.parametrize(
    "text",
    [
        *("[]", '{"moves": []}', '{"entries": {}}', '{"entries": [], "moves": []}', '{"entries": {"x": 3}, "moves": []}', "\x00"),
        *('{"entries": {"x": {"run": "a"}}, "moves": []}', '{"entries": {}, "moves": [["a"]]}', '{"entries": {}, "moves": 3}'),
    ],
)
def test_a_record_of_another_shape_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(ProvenanceError, match=r"t\.json must be what runs wrote down of their results, got .*; remove it and"):
        load_record(tmp_path / "t.json")


def test_only_a_record_with_moves_is_written_again(tmp_path: Path) -> None:
    finish_moves(tmp_path / "none.json")
    assert not (tmp_path / "none.json").exists()
    save_record(tmp_path / "t.json", Record({"x": Entry("aa", "noon", "d1")}))
    written = json.dumps(json.loads((tmp_path / "t.json").read_text()), indent=7)
    (tmp_path / "t.json").write_text(written)
    finish_moves(tmp_path / "t.json")
    assert (tmp_path / "t.json").read_text() == written


def made(sources: dict[str, str], digest: str = "d") -> Entry:
    return Entry("aa", "noon", digest, "", sources)


SAME, ONE, TWO = made({}), made({"params:a": "1"}), made({"params:a": "2"})
OLD = made({"x": "older"})  # made from another x than that of digest d


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        # Each of three pairs is looked at, the last as well.
        ({"x": ONE, "y": SAME, "z": TWO}, "x and z must be made from the same params:a, got x"),
        ({"x": SAME, "y": ONE, "z": TWO}, "y and z must be made from the same params:a, got y"),
        # One was made from an earlier version of the other, whichever comes first.
        ({"x": SAME, "y": OLD}, "x and y must be made from the same x, got x"),
        ({"y": OLD, "x": SAME}, "y and x must be made from the same x, got y"),
        # Parameters come before what follows from them, and only three are named.
        ({"x": made({"a": "1", "params:z": "1"}), "y": made({"a": "2", "params:z": "2"})}, "from the same params:z, got"),
        ({"x": made(dict.fromkeys("edcb", "1")), "y": made(dict.fromkeys("edcb", "2"))}, "from the same b, c, d …, got"),
        ({"x": made(dict.fromkeys("dcb", "1")), "y": made(dict.fromkeys("dcb", "2"))}, "from the same b, c, d, got"),
    ],
)
def test_each_pair_of_inputs_that_differs_is_named(entries: dict[str, Entry], said: str) -> None:
    with pytest.raises(ProvenanceError, match=said):
        refuse_mixture(entries)


def test_a_node_that_looks_up_saves_nothing(tmp_path: Path) -> None:
    catalog = DataCatalog({"raw": dataset(tmp_path / "01_raw/t/raw.json"), "model": dataset(tmp_path / "06_models/u/model.json")})
    find = Node(lambda: False, None, "raw", name="find", tags=[LOOKS_UP])
    pipeline = Pipeline([find, Node(lambda raw: raw, "raw", "model", name="train")])
    assert saved_names(pipeline) == {"model"}
    assert [results.name for results in written_folders(pipeline, catalog, tmp_path)] == ["u"]
