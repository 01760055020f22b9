"""The dialogue data under Kedro's own loader, validator, catalogue and runner, with the committed configuration."""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from kedro.io import DataCatalog, DatasetError

Run = Callable[..., DataCatalog]


@pytest.fixture
def run(run_data: Run) -> Run:
    return partial(run_data, "dialogue")


def test_generated_data_from_nothing_to_model_input(run: Run, data_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(os.sep)
    catalog = run("smoke")
    examples, splits = catalog.load("dialogue.examples"), catalog.load("dialogue.splits")
    report, found = catalog.load("dialogue.data_report"), catalog.load("dialogue.retrieval_report")
    table = examples.table
    assert (len(table), len(examples.stories), report["refused"]) == (80, 25, 0)
    assert {name: sorted(part["example_id"]) for name, part in table.groupby("split")} | {"left_out": []} == splits
    assert (table.groupby("persona_id")["split"].nunique() == 1).all()
    assert found["by_split"]["all"]["recall_at_1"] == 1.0
    assert report["bytes"]["question"]["max"] <= 160
    assert report["shortened"]["questions"] == 0
    told = {story_id for ids in table["story_ids"] for story_id in ids}
    assert told <= set(examples.stories["story_id"])
    written = json.loads((data_project / "data/01_raw/dialogue_smoke/generated.json").read_text())
    assert written["examples"] == 80


def test_rows_of_ones_own(run: Run, data_project: Path, tmp_path: Path) -> None:
    root = tmp_path / "mine"
    root.mkdir()
    rows = [
        {"question": f"persona: i am {name}. context: hi", "answers": [f"i am {name}"]} for name in ("ann", "bob", "cleo", "dan")
    ]
    stories = [{"id": name, "title": "", "text": f"{name} was here"} for name in ("ann", "bob", "eve")]
    (root / "rows.jsonl").write_text("\n".join(map(json.dumps, [*rows, {"answers": ["?"]}])))
    (root / "tales.jsonl").write_text("\n".join(map(json.dumps, stories)))
    with (data_project / "conf/base/globals.yml").open("a") as file:
        file.write("dialogue_examples: rows.jsonl\ndialogue_stories: tales.jsonl\n")
    data = {"root": str(root), "source": "jsonl", "on_bad_row": "quarantine"}
    catalog = run("smoke", {"data": data, "retrieval": {"top_n": 1}})
    table = catalog.load("dialogue.examples").table.set_index("persona")
    assert table["story_ids"]["i am bob."] == ["bob"]
    assert table["split"].nunique() == 3
    quarantine = catalog.load("dialogue.quarantine")
    assert (quarantine["row"].tolist(), quarantine["file"].tolist()) == (["5"], [str(root / "rows.jsonl")])
    assert not (data_project / "data/01_raw/dialogue_smoke/personas").exists()


def test_a_folder_that_is_not_there_is_named(run: Run) -> None:
    with pytest.raises(DatasetError, match="must be an existing folder, got nothing at .*nowhere; set dialogue_root"):
        run("smoke", {"data": {"root": "nowhere", "source": "jsonl"}})


def test_synthetic_persona_chat(run: Run, data_project: Path, shared_data: Callable[[str], Path]) -> None:
    root = shared_data("persona_chat")
    (data_project.parent / "shared" / "data").mkdir(parents=True)
    (data_project.parent / "shared" / "data" / "persona_chat").symlink_to(root)
    catalog = run("persona_chat", {"data": {"conversations": {"every": 5}}})
    report, examples, splits = (catalog.load(f"dialogue.{name}") for name in ("data_report", "examples", "splits"))
    table = examples.table
    assert report["rows"] == 1000
    # Three conversations write their speakers' names in another way.
    assert len(catalog.load("dialogue.quarantine")) == report["refused"] == 3
    assert len(table) + len(splits["left_out"]) == report["examples"]
    involved = {name: {*part["persona_id"], *part["partner_id"]} for name, part in table.groupby("split")}
    assert sum(map(len, involved.values())) == len(set().union(*involved.values()))
    owner = dict(zip(examples.stories["story_id"], examples.stories["persona_id"], strict=True))
    rows = zip(table["story_ids"], table["persona_id"], table["partner_id"], strict=True)
    assert not [ids for ids, own, other in rows if {own, other} & {owner[story] for story in ids}]
    conversations = table.assign(talk=table["example_id"].str.rsplit("-", n=1).str[0]).groupby("talk")["split"].nunique()
    assert (conversations == 1).all()
    assert table["question"].str.encode("utf-8").str.len().max() <= 384
