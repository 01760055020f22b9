"""The datasets of the dialogue task read what they wrote, and nothing of it is a pickle."""

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from kedro.io import DatasetError

from grpo_pipeline.datasets.examples import ExamplesDataset
from grpo_pipeline.datasets.json_lines import JsonLinesDataset
from grpo_pipeline.tasks.dialogue.data.dataset_folder import DatasetFolder
from grpo_pipeline.tasks.dialogue.data.examples import DialogueExamples, content_digest
from grpo_pipeline.tasks.dialogue.data.params import RetrievalParams, TfidfEncoder
from grpo_pipeline.tasks.dialogue.data.story_index import StoryIndex, index_stories
from grpo_pipeline.tasks.dialogue.pipelines.folder_dataset import DialogueFolderDataset
from grpo_pipeline.tasks.dialogue.pipelines.story_index_dataset import StoryIndexDataset

TABLE = pd.DataFrame({"id": ["0012", "NA"], "text": ["é\u2028x\ny", ""], "answers": [["a", "b"], ["c"]], "row": [1, 2]})
STORIES = pd.DataFrame({"story_id": ["1", "2"], "title": ["Cat", ""], "text": ["cats nap", "dogs run"], "persona_id": ["p", ""]})
open_examples = partial(ExamplesDataset, holds="grpo_pipeline.tasks.dialogue.data.examples:DialogueExamples")
TFIDF = RetrievalParams(top_n=1, query="persona", encoder=TfidfEncoder(kind="tfidf"))


def test_a_table_stays_what_it_is(tmp_path: Path) -> None:
    dataset = JsonLinesDataset(filepath=str(tmp_path / "a" / "table.jsonl"))
    for table in (TABLE, TABLE.iloc[:0]):
        dataset.save(table)
        assert dataset.load().to_dict(orient="list") == table.to_dict(orient="list")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["table.jsonl"]


def test_an_index_searches_as_before(tmp_path: Path) -> None:
    dataset, index = StoryIndexDataset(filepath=str(tmp_path / "index")), index_stories(STORIES, TFIDF)
    dataset.save(index)
    loaded = dataset.load()
    assert (loaded.story_ids, loaded.owners, loaded.vocabulary) == (index.story_ids, index.owners, index.vocabulary)
    queries = ["my cats nap", "dogs", "birds"]
    before, after = ((part.encode(queries, TFIDF) @ part.matrix.T).toarray() for part in (index, loaded))
    np.testing.assert_array_equal(before, after)
    assert before[0, 0] > before[0, 1]
    assert sorted(path.name for path in (tmp_path / "index").iterdir()) == ["index.json", "matrix.safetensors"]


def test_a_dense_index_stays_dense(tmp_path: Path) -> None:
    dataset = StoryIndexDataset(filepath=str(tmp_path / "index"))
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3).T
    dataset.save(StoryIndex("dense", ("1", "2", "3"), ("", "", ""), matrix, {}, np.empty(0)))
    np.testing.assert_array_equal(dataset.load().matrix, matrix)


def test_examples_stay_what_they_are_and_a_change_is_noticed(tmp_path: Path) -> None:
    dataset = open_examples(filepath=str(tmp_path / "examples"))
    dataset.save(DialogueExamples(TABLE, STORIES, content_digest(TABLE, STORIES)))
    loaded = dataset.load()
    assert loaded.table.to_dict(orient="list") == TABLE.to_dict(orient="list")
    assert loaded.stories.to_dict(orient="list") == STORIES.to_dict(orient="list")
    file = tmp_path / "examples" / "stories.jsonl"
    file.write_text(file.read_text().replace("cats", "bats"))
    with pytest.raises(DatasetError, match="must hold what was saved, got another digest"):
        dataset.load()


def test_a_raw_folder(tmp_path: Path) -> None:
    dataset = DialogueFolderDataset(filepath=str(tmp_path / "raw"), examples="a.csv", stories="s.jsonl")
    dataset.save({})
    with pytest.raises(DatasetError, match="the data root must be an existing folder"):
        dataset.load()
    dataset.save({"a.csv": b"\xff\r\n"})
    files = dataset.load()
    assert (files.examples.open().read(), files.stories) == (b"\xff\r\n", None)
    dataset.save({"a.csv": b"x", "s.jsonl": b"{}"})
    assert dataset.load().stories.open().read() == b"{}"
    (tmp_path / "raw" / "set").mkdir()
    folder = DialogueFolderDataset(filepath=str(tmp_path / "raw"), examples="set").load().examples
    assert (type(folder), folder.path) == (DatasetFolder, str(tmp_path / "raw" / "set"))
    missing = DialogueFolderDataset(filepath=str(tmp_path / "raw"))
    with pytest.raises(DatasetError, match=r"examples.jsonl must hold the examples, got \['a.csv', 's.jsonl'\] in that folder"):
        missing.load()


@pytest.mark.parametrize("kind", [JsonLinesDataset, StoryIndexDataset, open_examples])
def test_what_was_not_written_is_named(kind: type, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="got nothing there; run the "):
        kind(filepath=str(tmp_path / "none")).load()
