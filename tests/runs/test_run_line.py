"""The line of a whole run: what is left of it, what it says, and what the next run knows of it."""

import json
import os
from types import SimpleNamespace

import pytest

from grpo_pipeline.hooks.run_line import RunLineHooks
from grpo_pipeline.runs import progress_line
from grpo_pipeline.runs.progress import track
from grpo_pipeline.runs.progress_listeners import listeners, within
from grpo_pipeline.runs.progress_words import Moment, readable
from grpo_pipeline.runs.run_line import RunLine, expected_seconds, keep_seconds
from grpo_pipeline.runs.shared_display import SharedDisplay

NODES = {"t-data.read": 10.0, "t-train_a.train": 50.0, "t-train_b.train": 30.0, "t-evaluation.compare": 20.0}


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves only when told to; every line is due."""
    monkeypatch.delenv("GRPO_PROGRESS", raising=False)
    monkeypatch.setattr(progress_line, "PLAIN_INTERVAL_SECONDS", 0.0)
    now = [100.0]
    monkeypatch.setattr(progress_line.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def opened(clock):
    """``opened(nodes)``: the line of a run of these nodes, closed at the end."""
    lines = []

    def open_line(nodes):
        lines.append(RunLine("attention", nodes))
        return lines[-1]

    yield open_line
    for line in lines:
        line.close()
    assert listeners == within == []


def test_what_is_left_is_what_the_last_run_took(opened, clock):
    line = opened(NODES)
    line.begin("t-data.read", "data")
    clock[0] += 4
    assert line.left() == 6 + 50 + 30 + 20
    clock[0] += 20  # longer than the last time
    assert line.left() == 50 + 30 + 20
    line.begin("t-train_a.train", "train", "a")
    assert line.left() == 50 + 30 + 20
    assert line.seconds() == {"t-data.read": 24.0}


def test_a_loop_of_the_node_says_that_more_is_left_than_the_last_time(opened, clock, capsys):
    line = opened(NODES)
    line.begin("t-data.read", "data")
    capsys.readouterr()
    for step, _ in enumerate(track(range(4), "read images")):
        if step == 1:  # after one of four, 30 s: 90 s by its own speed, 0 by the last run
            assert line.left() == 90 + 50 + 30 + 20
        clock[0] += 30
    assert capsys.readouterr().err.splitlines()[1] == "attention: 14%, 30 s, 3 min left, data: read images 1/4"
    line.begin("t-evaluation.compare", "evaluation")
    assert line.left() == 50 + 30 + 20  # the loop is done


def test_trainings_that_run_at_once_are_left_by_their_own_speed_and_counted_once(opened, clock, capsys):
    line = opened(NODES)
    line.begin("t-train_a.train", "train", "a")
    several = SharedDisplay("train t", {"a": 10, "b": 30}, at_once=2)
    several.report("a", Moment("train t.a", 0, 10, {}))
    several.report("b", Moment("train t.b", 0, 30, {}))
    clock[0] += 6
    capsys.readouterr()
    several.report("a", Moment("train t.a", 5, 10, {"reward": 0.5}))
    several.report("b", Moment("train t.b", 10, 30, {}))
    # b: 6 s for a third of it; neither the 30 s of its own node nor the rest of the 50 s is added
    assert line.left() == 12 + 10 + 20
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == "attention: 12%, 6 s, 42 s left, train: a 5/10 reward=0.5, b 10/30"
    several.close()  # the line of the run goes on
    several.report("b", Moment("train t.b", 20, 30, {}))
    assert "b 20/30" in capsys.readouterr().err


def test_a_first_run_shows_no_time_until_its_trainings_have_begun(opened, clock, capsys):
    line = opened(dict.fromkeys(NODES))
    line.begin("t-data.read", "data")
    assert line.left() is None
    assert capsys.readouterr().err == "attention: 0 s, data: read\n"
    clock[0] += 8
    line.begin("t-train_a.train", "train", "a")
    assert line.left() is None
    several = SharedDisplay("train t", {"a": 10}, at_once=1)
    several.report("a", Moment("train t.a", 0, 10, {}))
    assert line.left() is None  # nothing is done yet
    clock[0] += 5
    several.report("a", Moment("train t.a", 5, 10, {}))
    assert line.left() == 5 + 8  # the evaluation is as long as what came before, trainings left out


def test_trainings_go_on_while_what_follows_one_of_them_is_done(opened, clock):
    """In processes of their own: the time that the node takes passes for the other training, too."""
    line = opened(NODES | {"t-train_a.export": 4.0})
    line.begin("t-train_a.train", "train", "a")
    several = SharedDisplay("train t", {"a": 10, "b": 10}, at_once=2)
    several.report("b", Moment("train t.b", 0, 10, {}))
    clock[0] += 10
    several.report("b", Moment("train t.b", 2, 10, {}))  # 40 s left of b, and none of a told
    several.end("a")
    assert line.left() == 40 + 10 + 20 + 4
    line.begin("t-train_a.export", "train", "a")
    clock[0] += 3
    assert line.left() == 37 + 10 + 20 + 1


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (119, "119 s"), (120, "2 min"), (3600, "60 min"), (7200, "2.0 h"), (9000, "2.5 h")]
)
def test_durations_are_read_at_a_glance(seconds, text):
    assert readable(seconds) == text


def test_seconds_are_kept_node_by_node_and_a_damaged_file_is_none(tmp_path):
    file = tmp_path / ".runs/attention.seconds"
    keep_seconds(file, {"a": 1.23456, "b": 2.0})
    keep_seconds(file, {"b": 3.0})
    assert expected_seconds(file) == {"a": 1.235, "b": 3.0}
    for damage in ("", "[1]", "{", '{"a": "x"}', '{"a": null}'):
        file.write_text(damage)
        assert expected_seconds(file) == {}
    assert expected_seconds(tmp_path / "absent") == {}


def test_a_folder_that_cannot_be_written_ends_no_run(tmp_path):
    (tmp_path / "file").write_text("")
    keep_seconds(tmp_path / "file/attention.seconds", {"a": 1.0})
    assert os.listdir(tmp_path) == ["file"]


class Node(SimpleNamespace):
    """A node, as far as the hooks read it."""


def test_a_run_keeps_the_seconds_of_its_nodes_and_one_that_fails_keeps_none(clock, tmp_path, capsys):
    file = tmp_path / "t.seconds"
    hooks = RunLineHooks(SimpleNamespace(folders=[SimpleNamespace(seconds=file)]))
    nodes = [Node(name="t-train_a.train", namespace="t-train_a"), Node(name="t-data.read", namespace="t-data.inner")]
    for error, kept in ((RuntimeError("disk full"), {}), (None, {"t-train_a.train": 7.0, "t-data.read": 7.0})):
        hooks.before_pipeline_run({"pipeline_names": ["t"]}, SimpleNamespace(nodes=nodes))
        for node in nodes:
            hooks.before_node_run(node)  # a node that streams has returned long before it is done
            clock[0] += 7
        if error is None:
            hooks.after_pipeline_run()
        hooks.end(error)
        assert expected_seconds(file) == kept
        assert within == []
    said = capsys.readouterr().err.splitlines()
    assert (said[0], said[-1]) == ("t: 0 s, train a: train", "t: 100%, 14 s, done")
    assert json.loads(file.read_text()) == kept
    hooks.before_pipeline_run({"pipeline_names": None}, SimpleNamespace(nodes=nodes))  # the default one: its task
    hooks.before_node_run(nodes[0])
    assert capsys.readouterr().err == "t: 0%, 0 s, 14 s left, train a: train\n"
    hooks.end(None)


def test_a_muted_run_shows_nothing(clock, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("GRPO_PROGRESS", "off")
    hooks = RunLineHooks(SimpleNamespace(folders=[]))
    node = Node(name="n", namespace=None)
    hooks.before_pipeline_run({"pipeline_names": None}, SimpleNamespace(nodes=[node]))
    hooks.before_node_run(node)
    hooks.after_pipeline_run()
    assert capsys.readouterr().err == ""
