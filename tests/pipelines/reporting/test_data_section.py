"""The page shows the data: one example of each class, as the task draws or writes it."""

import io
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import tiny_attention
import tiny_chemist
import tiny_talk
from PIL import Image

from grpo_pipeline.pipelines.reporting import data_section
from grpo_pipeline.pipelines.reporting.data_section import data_parts, one_of_each
from grpo_pipeline.tasks.spec import TaskSpec


def test_the_first_training_example_of_each_class_is_chosen_and_of_many_classes_six():
    table = pd.DataFrame({"split": ["test", "train", "val", "train", "train"], "label": [0, 1, 0, 1, 0]}, index=[7, 3, 9, 1, 4])
    assert one_of_each(table, "label").tolist() == [4, 1]
    assert one_of_each(table, "none").tolist() == [1]
    pairs = pd.DataFrame({"split": "train", "label": [0, 0, 1, 0, 1, 1]})
    assert one_of_each(pairs, "label", most=5).tolist() == [0, 1, 2, 4]
    assert one_of_each(pairs, "none", most=3).tolist() == [0, 1, 2]
    many = pd.DataFrame({"split": "train", "size": np.repeat(np.arange(2, 13), 2)})  # 11 sizes: every second one
    assert one_of_each(many, "size").tolist() == [0, 4, 8, 12, 16, 20]
    assert one_of_each(many.assign(split="test"), "size").tolist() == [0, 4, 8, 12, 16, 20]


def test_a_core_of_each_label_is_a_picture():
    parts = data_parts(tiny_attention.make_examples(), task="attention", cluster="patient_id")
    with Image.open(io.BytesIO(parts["one_of_each"])) as picture:
        width, height = picture.size
        assert len(picture.convert("RGB").getcolors(10**6)) > 100
    assert width == pytest.approx(2 * 3.0 * 110)
    assert height < width
    assert parts["splits"].heads == ["split", "cores", "patients", "label 0", "label 1"]
    assert parts["class_chart"].startswith(b"<?xml")


def test_a_question_with_its_answer_is_a_table():
    examples = tiny_talk.make_examples()
    needs = ["story" if row % 2 else "persona" for row in range(len(examples.table))]
    several = SimpleNamespace(table=examples.table.assign(needs=needs))
    each = data_parts(several, task="dialogue", cluster="subject_id")["one_of_each"]
    assert each.heads == ["needs", "question", "answer"]
    first = examples.table.query("split == 'train'").iloc[:2]
    assert [row[0].text for row in each.rows] == ["persona", "story"]
    assert [row[1].text for row in each.rows] == first["question"].tolist()
    assert [row[2].text for row in each.rows] == [texts[0] for texts in first["answers"]]


def test_a_molecule_of_each_size_is_a_drawing():
    examples = tiny_chemist.make_examples()
    parts = data_parts(examples, task="molecules", cluster="sample_id")
    sizes = sorted(set(examples.table.query("split == 'train'")["atoms"]))
    assert parts["one_of_each"].count(b"<svg") == 1 + len(sizes) > 2
    assert parts["splits"].heads[:2] == ["split", "molecules"]


def test_a_task_that_says_nothing_of_itself_shows_the_rows_of_its_table(monkeypatch):
    """Examples without a table of splits show nothing."""
    monkeypatch.setattr(data_section, "find_task", lambda name: TaskSpec(name=name, arms=("a",), metrics="m:f", pipelines="m"))
    table = pd.DataFrame({"split": ["train", "train"], "label": [1, 0], "word": ["<b>", "no"]})
    each = data_parts(SimpleNamespace(table=table), task="t", cluster="c")["one_of_each"]
    assert [[cell.text for cell in row] for row in each.rows] == [["train", "0", "no"], ["train", "1", "<b>"]]
    assert set(data_parts([1, 2], task="t", cluster="c").values()) == {None}
