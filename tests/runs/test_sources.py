"""The record of a run: the sources of every artefact of a graph with branches and memory, worked out by hand.

raw, seed -> split -> splits, rows (memory)       rows, splits, rate, resume -> fit -> model (versions), log (memory)
rows, width -> other                              model, other, log, all parameters -> join -> page
free (not stored), beam -> lone                   cache (keyed), seed -> look -> looked, kept (keyed)
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from kedro.io import DataCatalog
from kedro.pipeline import Node, Pipeline
from pydantic import BaseModel

from grpo_pipeline.core.storage.content_digest import content_digest
from grpo_pipeline.datasets.json_lines import JsonLinesDataset
from grpo_pipeline.runs.artefact_records import Entry, ProvenanceError, Record, load_record, save_record
from grpo_pipeline.runs.provenance import Provenance
from grpo_pipeline.runs.recorded_versions import pin_recorded
from grpo_pipeline.runs.sources import closure, parameter_digest, sources_of
from grpo_pipeline.runs.stored_datasets import content_path, is_versioned

JSON = "json.JSONDataset"
PARAMETERS = {"seed": 3, "rate": {"b": 2, "a": [1, None]}, "width": 0, "beam": "x", "resume": "never"}
NEAREST = {
    "splits": {"raw", "params:seed"},
    "rows": {"raw", "params:seed"},
    "model": {"raw", "params:seed", "splits", "params:rate"},
    "log": {"raw", "params:seed", "splits", "params:rate"},
    "other": {"raw", "params:seed", "params:width"},
    "page": {"model", "other", "raw", "params:seed", "splits", "params:rate"},
    "lone": {"params:beam"},
    "looked": {"params:seed"},
    "kept": {"params:seed"},
}
# With all that those were made from; what is kept by a key is neither a source nor written down.
ALL = NEAREST | {"page": NEAREST["page"] | {"params:width"}}
ALL = {name: names for name, names in ALL.items() if name not in ("rows", "log", "kept")}


class KeyedDataset(JsonLinesDataset):
    is_keyed = True


def nothing(*_: Any) -> Any:
    return None


def pipeline() -> Pipeline:
    return Pipeline(
        [
            Node(nothing, ["model", "other", "log", "parameters"], "page", name="join"),
            Node(nothing, ["rows", "splits", "params:rate", "params:resume"], ["model", "log"], name="fit"),
            Node(nothing, ["rows", "params:width"], "other", name="branch"),
            Node(nothing, ["raw", "params:seed"], ["splits", "rows"], name="split"),
            Node(nothing, ["free", "params:beam"], "lone", name="alone"),
            Node(nothing, ["cache", "params:seed"], ["looked", "kept"], name="look"),
        ]
    )


def catalog_of(data: Path, *, save: str | None = "v1", load: dict[str, str] | None = None) -> DataCatalog:
    layers = {"raw": "02_raw/u", "model": "06_models/t", "lone": "03_primary/w"}
    names = ["raw", "splits", "model", "other", "page", "lone", "looked"]
    entries: dict[str, Any] = {
        name: {"type": JSON, "filepath": str(data / layers.get(name, "03_primary/t") / f"{name}.json")} for name in names
    }
    entries["model"]["versioned"] = True
    for name in ("cache", "kept"):
        entries[name] = {"type": KeyedDataset, "filepath": str(data / f"04_feature/t/{name}.jsonl")}
    catalog = DataCatalog.from_config(entries, save_version=save, load_versions=load)
    for name, value in PARAMETERS.items():
        catalog[f"params:{name}"] = value
    catalog["parameters"] = PARAMETERS
    return catalog


class Run:
    """A run of some nodes, played by hand."""

    def __init__(self, data: Path, run: str, *nodes: str, save: str = "v1", chosen: tuple[str, ...] = (), **load: str) -> None:
        self.catalog = catalog_of(data, save=save, load=load)
        part = pipeline().filter(node_names=nodes) if nodes else pipeline()
        self.record = Provenance(run=run, since="noon", data=data, pipeline=part, catalog=self.catalog)
        self.record.begin(chosen=chosen, stages=True)

    def put(self, name: str, value: Any) -> None:
        self.record.saving(name, value)
        self.catalog.save(name, value)
        self.record.saved(name, value)

    def get(self, name: str) -> Any:
        value = self.catalog.load(name)
        self.record.loaded(name, value)
        return value

    def file(self, name: str) -> Path:
        return content_path(self.catalog.get(name))

    def finish(self, *names: str) -> None:
        for name in names:
            self.put(name, {"made": name})
        self.record.commit()
        self.record.end()


MADE = ("splits", "model", "other", "page", "lone", "looked")


def start(data: Path) -> Path:
    """Write what nobody has made."""
    (data / "02_raw/u").mkdir(parents=True)
    (data / "02_raw/u/raw.json").write_text('"raw"')
    return data


def entries(data: Path) -> dict[str, Entry]:
    """Return what is written down in both folders: of each artefact in its own."""
    records = [load_record(data / f".runs/{folder}.json") or Record() for folder in ("t", "w")]
    assert [record.moves for record in records] == [(), ()]
    assert "lone" not in records[0].entries
    assert records[1].entries.keys() <= {"lone"}
    return {**records[0].entries, **records[1].entries}


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def test_the_nearest_sources_of_every_dataset() -> None:
    stored = {"raw", "splits", "model", "other", "page", "lone", "looked"}
    assert sources_of(pipeline(), stored=stored) == NEAREST
    # What is stored hides what it was made from; what is in memory does not.
    assert sources_of(pipeline(), stored=stored | {"log"})["page"] == {"model", "other", "log"}
    assert sources_of(pipeline(), stored={"rows"})["other"] == {"rows", "params:width"}


def test_a_run_writes_down_every_artefact_with_all_its_sources(tmp_path: Path) -> None:
    run = Run(start(tmp_path), "first")
    run.put("kept", pd.DataFrame({"x": [1]}))
    run.finish(*MADE)
    found = entries(tmp_path)
    assert {name: set(entry.sources) for name, entry in found.items()} == {n: names - {"raw"} for n, names in ALL.items()}
    digests = {f"params:{name}": sha(json.dumps(value, sort_keys=True)) for name, value in PARAMETERS.items()}
    digests |= {name: sha((tmp_path / f"03_primary/t/{name}.json").read_text()) for name in MADE if name not in ("model", "lone")}
    digests["lone"] = sha((tmp_path / "03_primary/w/lone.json").read_text())
    digests["model"] = sha((tmp_path / "06_models/t/model.json/v1/model.json").read_text())
    assert {name: entry.digest for name, entry in found.items()} == {name: digests[name] for name in MADE}
    for name, entry in found.items():
        assert entry.sources == {source: digests[source] for source in ALL[name] - {"raw"}}
        assert list(entry.sources) == sorted(entry.sources)
        assert (entry.run, entry.since, entry.version) == ("first", "noon", "v1" if name == "model" else "")


def test_a_later_run_of_one_node_hands_on_the_sources_and_leaves_the_others(tmp_path: Path) -> None:
    Run(start(tmp_path), "first").finish(*MADE)
    before = entries(tmp_path)
    Run(tmp_path, "second", "join", save="v2").finish("page")
    found = entries(tmp_path)
    assert {name: entry for name, entry in found.items() if name != "page"} == {n: e for n, e in before.items() if n != "page"}
    assert found["page"].run == "second"
    # Without the node that makes the log, its sources are those of the model and of the other branch.
    assert dict(found["page"].sources) == dict(before["page"].sources)


def test_the_sources_of_an_input_of_another_folder_are_handed_on(tmp_path: Path) -> None:
    raw = Entry("earlier", "dawn", content_digest(start(tmp_path) / "02_raw/u/raw.json"), "", {"params:size": "5" * 16})
    save_record(tmp_path / ".runs/u.json", Record({"raw": raw}))
    run = Run(tmp_path, "first")
    assert run.get("raw") == "raw"
    run.finish(*MADE)
    found = entries(tmp_path)
    for name in ("splits", "model", "other", "page"):
        assert found[name].sources["raw"] == raw.digest
        assert found[name].sources["params:size"] == "5" * 16
    assert found["lone"].sources.keys() == {"params:beam"}
    assert load_record(tmp_path / ".runs/u.json") == Record({"raw": raw})


def test_an_artefact_that_was_not_made_is_not_written_down(tmp_path: Path) -> None:
    run = Run(start(tmp_path), "first")
    run.finish("splits", "other")
    assert entries(tmp_path).keys() == {"splits", "other"}
    assert entries(tmp_path)["other"].sources.keys() == {"params:seed", "params:width"}


class Rate(BaseModel):
    rate: float
    steps: int


def test_a_parameter_has_one_digest_in_every_form() -> None:
    base = parameter_digest({"rate": 0.5, "steps": 3})
    assert base == sha('{"rate": 0.5, "steps": 3}')
    assert parameter_digest({"steps": 3, "rate": 0.5}) == base
    assert parameter_digest(Rate(rate=0.5, steps=3)) == base
    assert parameter_digest({"a": {"y": 1, "x": 2}}) == parameter_digest({"a": {"x": 2, "y": 1}})


def test_each_part_of_a_parameter_changes_its_digest() -> None:
    base = {"rate": 0.5, "steps": 3}
    changed = [{"rate": 0.5, "step": 3}, base | {"rate": 0.25}, {"rate": 0.5}, base | {"steps": None}, base | {"more": 0}]
    models = [Rate(rate=1, steps=2), Rate(rate=2, steps=1)]
    values = [base, *changed, *models, 0, None, False, "", [], {}, [1, 2], [2, 1], "0", 0.5, Path("a"), Path("b")]
    digests = [parameter_digest(value) for value in values]
    assert len(set(digests)) == len(values)


def test_a_closure_holds_the_nearest_and_what_those_were_made_from() -> None:
    digests, sources = {"a": "1", "b": "2", "far": "9"}, {"a": {"z": "5", "b": "old"}, "b": {"y": "6"}, "far": {"q": "7"}}
    found = closure(["b", "a", "unknown"], digests, sources)
    assert list(found.items()) == [("a", "1"), ("b", "2"), ("y", "6"), ("z", "5")]


@pytest.mark.parametrize("moment", ["before the run", "after its start", "after it was read once"])
@pytest.mark.parametrize("name", ["splits", "model", "raw"])
def test_an_input_that_is_exchanged_is_refused(tmp_path: Path, name: str, moment: str) -> None:
    """A file that waited for the end of its run, one with versions, and one of another folder."""
    raw = Entry("first", "noon", content_digest(start(tmp_path) / "02_raw/u/raw.json"), "")
    save_record(tmp_path / ".runs/u.json", Record({"raw": raw}))
    Run(tmp_path, "first").finish(*MADE)
    node = {"splits": "fit", "model": "join", "raw": "split"}[name]
    file = Run(tmp_path, "look", node, save="v2").file(name)

    def exchange() -> None:
        file.write_text(file.read_text()[:-1] + " }") if name != "raw" else file.write_text('"row"')

    said = rf"{name} must be what run first \(since noon\) saved, got other content in "
    if moment == "before the run":
        exchange()
        with pytest.raises(ProvenanceError, match=said):
            Run(tmp_path, "second", node, save="v2")
        return
    run = Run(tmp_path, "second", node, save="v2")
    if moment == "after it was read once":
        run.get(name)
    exchange()
    with pytest.raises(ProvenanceError, match=said):
        run.get(name)


@pytest.mark.parametrize("name", ["splits", "model", "other"])
def test_what_a_run_made_itself_is_read_as_it_was_saved(tmp_path: Path, name: str) -> None:
    run = Run(start(tmp_path), "mine")
    run.put(name, {"made": 1})
    assert run.get(name) == {"made": 1}
    if name != "model":  # a version is written once
        run.put(name, {"made": 2})
        assert run.get(name) == {"made": 2}
    run.file(name).write_text('{"made": 3}')
    with pytest.raises(ProvenanceError, match=rf"{name} must be what this run mine saved, got other content in "):
        run.get(name)
    if name != "model":
        run.record.saving(name, {"made": 4})  # and not done yet: what it holds is not known before it is asked for
        run.catalog.save(name, {"made": 4})
        assert run.get(name) == {"made": 4}


def test_what_waits_lies_below_the_notes_and_what_is_elsewhere_is_written_at_once(tmp_path: Path) -> None:
    data = start(tmp_path / "data")
    catalog = catalog_of(data)
    outside = {"type": JSON, "filepath": str(tmp_path / "mine/other.json")}
    shared = {"type": JSON, "filepath": str(data / "03_primary/t/splits.json")}
    extra = DataCatalog.from_config({"other": outside, "lone": shared})
    for name in ("other", "lone"):
        catalog[name] = extra[name]
    record = Provenance(run="a", since="noon", data=data, pipeline=pipeline(), catalog=catalog)
    record.begin(chosen=(), stages=True)
    places = {name: content_path(catalog.get(name)) for name in ("page", "other", "splits", "lone")}
    assert places == {
        "page": data / ".runs/t.staged/03_primary/t/page.json",
        "other": tmp_path / "mine/other.json",
        "splits": data / "03_primary/t/splits.json",  # two entries have this file: who reads the other one must see it
        "lone": data / "03_primary/t/splits.json",
    }


def test_without_waiting_everything_is_written_at_once(tmp_path: Path) -> None:
    catalog = catalog_of(start(tmp_path))
    record = Provenance(run="a", since="noon", data=tmp_path, pipeline=pipeline(), catalog=catalog)
    record.begin(chosen=(), stages=False)
    assert content_path(catalog.get("page")) == tmp_path / "03_primary/t/page.json"


def test_after_the_end_the_catalogue_reads_from_the_final_place(tmp_path: Path) -> None:
    run = Run(start(tmp_path), "first")
    run.finish(*MADE)
    assert run.file("page") == tmp_path / "03_primary/t/page.json"
    assert run.catalog.load("page") == {"made": "page"}


def test_a_run_begins_by_clearing_up_after_a_killed_one(tmp_path: Path) -> None:
    """Completed results are put in place, and others are removed."""
    Run(start(tmp_path), "first").finish(*MADE)
    staged = tmp_path / ".runs/t.staged"
    ready, new, half = (staged / f"{name}.json" for name in ("ready", "new", "half"))
    staged.mkdir()
    ready.write_text('{"made": "completed"}')
    new.write_text('"first of its kind"')
    half.write_text("{")
    found = {**load_record(tmp_path / ".runs/t.json").entries, "page": Entry("killed", "dusk", sha('{"made": "completed"}'))}
    primary = tmp_path / "03_primary/t"
    ends = {ready: primary / "page.json", new: primary / "new.json", staged / "done.json": primary / "splits.json"}
    save_record(tmp_path / ".runs/t.json", Record(found, [(str(place), str(end)) for place, end in ends.items()]))
    Run(tmp_path, "second", "branch", "split", save="v2")
    assert json.loads((tmp_path / "03_primary/t/page.json").read_text()) == {"made": "completed"}
    assert json.loads((primary / "new.json").read_text()) == "first of its kind"
    assert json.loads((primary / "splits.json").read_text()) == {"made": "splits"}  # it was in its place already
    assert not half.exists()
    assert entries(tmp_path)["page"].run == "killed"


def test_a_version_that_the_user_names_is_read_and_not_judged(tmp_path: Path) -> None:
    for save in ("v1", "v2"):
        run = Run(start(tmp_path) if save == "v1" else tmp_path, f"run {save}", save=save)
        run.put("model", save)
        run.finish("splits", "other", "page")
    old = tmp_path / "06_models/t/model.json/v1/model.json"
    old.write_text('"mine"')
    run = Run(tmp_path, "third", "join", save="v3", chosen=("model",), model="v1")
    assert run.get("model") == "mine"
    assert Run(tmp_path, "fourth", "join", save="v3").get("model") == "v2"


def test_where_no_run_has_written_anything_down_the_newest_is_read(tmp_path: Path, monkeypatch) -> None:
    Run(start(tmp_path), "first").finish(*MADE)
    (tmp_path / ".runs/t.json").unlink()
    said: list[str] = []
    monkeypatch.setattr("grpo_pipeline.runs.provenance.logger.warning", lambda text, *given: said.append(text % given))
    assert Run(tmp_path, "second", "join", save="v2").get("model") == {"made": "model"}
    assert said == ["No run has written down who made model: taken as found, the newest of each"]


def test_outside_of_a_run_a_record_speaks_of_its_own_folder_alone(tmp_path: Path) -> None:
    for save in ("v1", "v2"):
        run = Run(start(tmp_path) if save == "v1" else tmp_path, f"run {save}", save=save)
        run.finish(*MADE)
    other = dict.fromkeys(("model", "page", "gone"), Entry("aa", "noon", "d", "v1"))
    save_record(tmp_path / ".runs/a.json", Record(other))
    save_record(tmp_path / ".runs/z.json", Record(other))
    catalog = catalog_of(tmp_path, save=None)
    pin_recorded(catalog, tmp_path)
    assert content_path(catalog.get("model")).parent.name == "v2"
    assert not is_versioned(catalog.get("page"))


def test_an_empty_value_is_saved_and_no_rows_or_no_checkpoint_are_not(tmp_path: Path) -> None:
    run = Run(start(tmp_path), "first")
    run.put("splits", {})
    for name, nothing_new in (("other", []), ("page", False)):
        run.record.saving(name, nothing_new)
        run.record.saved(name, nothing_new)
    written = run.file("splits").read_text()
    run.file("splits").write_text('{"another": 1}')
    with pytest.raises(ProvenanceError, match="splits must be what this run first saved"):
        run.get("splits")
    run.file("splits").write_text(written)
    run.finish()
    assert entries(tmp_path).keys() == {"splits"}


def test_what_was_saved_without_a_digest_has_one_at_the_end(tmp_path: Path) -> None:
    """As a folder without a header: it is read once, when all is there."""
    run = Run(start(tmp_path), "first")
    run.record.saving("other", {"made": 1})
    run.catalog.save("other", {"made": 1})
    run.finish()
    assert entries(tmp_path)["other"].digest == sha((tmp_path / "03_primary/t/other.json").read_text())


def test_an_empty_record_refuses_nothing(tmp_path: Path) -> None:
    Run(start(tmp_path), "first").finish(*MADE)
    save_record(tmp_path / ".runs/t.json", Record())
    assert Run(tmp_path, "second", "join", save="v2").get("model") == {"made": "model"}


def test_what_is_written_in_place_is_unfinished_from_its_first_rows_on(tmp_path: Path) -> None:
    kind = "grpo_pipeline.datasets.metric_stream.MetricStreamDataset"
    catalog = DataCatalog.from_config({"rows": {"type": kind, "filepath": str(tmp_path / "07_out/t/rows.jsonl")}})
    catalog["params:seed"] = 3
    part = Pipeline([Node(nothing, "params:seed", "rows", name="train")])
    record = Provenance(run="a", since="noon", data=tmp_path, pipeline=part, catalog=catalog)
    record.begin(chosen=(), stages=True)
    record.saving("rows", [])
    assert load_record(tmp_path / ".runs/t.json") is None
    record.saving("rows", [{"step": 0}])
    assert load_record(tmp_path / ".runs/t.json") == Record({"rows": Entry("a", "noon")})
    catalog.save("rows", [{"step": 0}])
    record.commit()
    assert entries(tmp_path)["rows"].sources == {"params:seed": sha("3")}
