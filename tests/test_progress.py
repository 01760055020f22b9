"""Progress on a terminal, in a log file and muted."""

import os
import pty
import subprocess
import sys
import time

import pytest

from grpo_pipeline.runs import progress_line as module
from grpo_pipeline.runs.progress import print_line, progress, track
from grpo_pipeline.runs.progress_listeners import reported_to
from grpo_pipeline.runs.progress_words import Moment, plain_line
from grpo_pipeline.runs.shared_display import SharedDisplay


@pytest.fixture
def stderr(monkeypatch, capsys):
    """Return what has been printed since the last call."""
    monkeypatch.delenv("GRPO_PROGRESS", raising=False)
    return lambda: capsys.readouterr().err


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves only when told to."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("done", "total", "seconds", "postfix", "line"),
    [
        (120, 400, 12.0, {}, "work: 120/400 (30%), 12 s, 28 s left"),
        (400, 400, 40.0, {}, "work: 400/400 (100%), 40 s"),
        (0, 400, 1.0, {}, "work: 0/400 (0%), 1 s"),
        (7, None, 3.0, {"reward": 0.123456, "arm": "grpo"}, "work: 7, 3 s, reward=0.1235, arm=grpo"),
        (0, 0, 0.0, {}, "work: 0, 0 s"),
    ],
)
def test_plain_line(done, total, seconds, postfix, line):
    assert plain_line("work", done=done, total=total, seconds=seconds, postfix=postfix) == line


def test_track_yields_every_item_in_order_and_off_prints_nothing(stderr, monkeypatch):
    assert list(track([3, 1, 2], "sorting")) == [3, 1, 2]
    assert stderr() == "sorting: 3/3 (100%), 0 s\n"
    assert list(track((i for i in range(2)), "reading", total=2)) == [0, 1]
    assert "2/2 (100%)" in stderr()
    print_line("one line")
    assert stderr() == "one line\n"
    monkeypatch.setenv("GRPO_PROGRESS", "off")
    print_line("one line")
    assert list(track(range(3), "x")) == [0, 1, 2]
    assert stderr() == ""


def test_a_log_file_gets_a_line_every_ten_seconds(stderr, clock):
    with progress(100, "training") as shown:
        for step in range(100):
            clock[0] += 0.5
            shown.update(1, loss=float(step))
    lines = stderr().splitlines()
    assert lines == [
        "training: 20/100 (20%), 10 s, 40 s left, loss=19",
        "training: 40/100 (40%), 20 s, 30 s left, loss=39",
        "training: 60/100 (60%), 30 s, 20 s left, loss=59",
        "training: 80/100 (80%), 40 s, 10 s left, loss=79",
        "training: 100/100 (100%), 50 s, loss=99",
    ]


def test_a_stopped_loop_says_how_far_it_came(stderr):
    def items():
        yield from range(4)
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        list(track(items(), "training", total=10))
    assert stderr().startswith("training: 4/10 (40%)")


def test_a_terminal_gets_one_bar_that_ends_complete():
    code = (
        "from grpo_pipeline.runs.progress import progress\n"
        "with progress(40, 'Training grpo') as shown:\n"
        "    for i in range(40): shown.update(1, reward=i)\n"
    )
    parent, child = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k != "GRPO_PROGRESS"} | {"COLUMNS": "100"}
    subprocess.run([sys.executable, "-c", code], stderr=child, env=env, check=True, timeout=600)
    os.close(child)
    shown = os.read(parent, 65536).decode()
    os.close(parent)
    last = shown.rstrip("\r\n").split("\r")[-1]
    assert last.startswith("Training grpo: 100%")
    assert all(part in last for part in ("40/40", "reward=39"))
    assert shown.count("\n") == 1


def test_an_update_costs_less_than_50_microseconds(stderr):
    start = time.thread_time()
    with progress(10_000, "x") as shown:
        for step in range(10_000):
            shown.update(1, loss=float(step))
    assert (time.thread_time() - start) / 10_000 < 50e-6


def test_values_stay_until_new_ones_come_and_items_are_counted_by_their_number(stderr, clock):
    with progress(10, "training") as shown:
        shown.update(3, loss=2.0)
        clock[0] += 9.5
        shown.update(0)
        clock[0] += 0.5  # ten seconds
        shown.update(4)
        clock[0] += 9.5
        shown.update(1, loss=1.0)
    assert stderr().splitlines() == [
        "training: 7/10 (70%), 10 s, 4 s left, loss=2",
        "training: 8/10 (80%), 20 s, 5 s left, loss=1",
    ]


def test_what_has_no_length_is_counted_and_nothing_new_is_not_said_twice(stderr, clock):
    assert list(track(iter("ab"), "reading")) == ["a", "b"]
    assert stderr() == "reading: 2, 0 s\n"
    with progress(1, "x") as shown:
        clock[0] += 20
        shown.update(1)
        clock[0] += 1
    assert stderr() == "x: 1/1 (100%), 20 s\n"


@pytest.mark.parametrize("word", ["off", "OFF", "Off"])
def test_every_spelling_of_off_mutes(stderr, monkeypatch, word):
    monkeypatch.setenv("GRPO_PROGRESS", word)
    print_line("one line")
    list(track([1], "x"))
    assert stderr() == ""
    monkeypatch.setenv("GRPO_PROGRESS", "on")
    print_line("one line")
    assert stderr() == "one line\n"


@pytest.fixture
def lines(stderr, clock, monkeypatch):
    """Three loops of unlike length, two at a time, told by hand; a call moves the clock and returns the line that is due."""
    monkeypatch.setattr(module, "PLAIN_INTERVAL_SECONDS", 0.0)
    several = SharedDisplay("train", {"a": 100, "b": 100, "c": 300}, at_once=2)

    def tell(name, seconds, done=None, total=None, **values):
        clock[0] += seconds
        if done is None:
            several.end(name)
        else:
            several.report(name, Moment("x", done, total, values))
        return several.left(), stderr().splitlines()[-1]

    return tell


def test_the_line_of_several_loops_says_what_the_slowest_and_waiting_have_left(lines):
    """a and b begin at 0 s. At 10 s a has done 50 of 100 (20 s in all) and b 20 of 100 (50 s): 70 units took 20 s."""
    assert lines("a", 0.0, 0, 100) == (None, "train: 0 s, 0 of 3 done, a 0/100")
    lines("b", 0.0, 0, 100)
    lines("a", 10.0, 50, 100)
    left, line = lines("b", 0.0, 20, 100, reward=0.25)
    # 10 s of a, 40 s of b, and 300 units of c at 20 s / 70: 85.7 s, which is more than half of all three.
    assert left == pytest.approx(300 * 20 / 70)
    assert line == "train: 10%, 10 s, 86 s left, 0 of 3 done, a 50/100, b 20/100 reward=0.25"
    left, line = lines("a", 10.0)
    # b was told of last at 10 s, and a has taken 20 s for its 100: 120 units took 30 s.
    assert left == pytest.approx(300 * 30 / 120)
    assert line.startswith("train: 21%, 20 s, 75 s left, 1 of 3 done, b 20/100")
    lines("c", 0.0, 0, 300)
    left, _ = lines("c", 30.0, 150, 300)
    assert left == pytest.approx(max(30, 40, (30 + 40) / 2))
    lines("b", 0.0)
    assert lines("c", 30.0) == (0.0, "train: 100%, 80 s, 3 of 3 done")


def test_what_all_take_together_is_shared_out_to_those_at_once(clock):
    several = SharedDisplay("train", {"a": 1, "b": 1, "c": 1, "d": 1}, at_once=2)
    several.report("a", Moment("x", 0, 10, {}))
    clock[0] += 8.0
    several.report("a", Moment("x", 10, 10, {}))
    assert several.left() == pytest.approx(3 * 8 / 2)


def test_the_first_loop_to_end_says_how_long_the_silent_others_take(clock):
    several = SharedDisplay("train", {"a": 1, "b": 1, "c": 1}, at_once=1)
    clock[0] += 8.0
    several.end("a")
    assert several.left() == pytest.approx(2 * 8)


def test_muted_several_print_nothing_and_a_listener_is_told_instead(stderr, clock, monkeypatch):
    seen = []
    with reported_to(seen.append), progress(4, "count") as shown:
        shown.update(1, reward=0.5)
        clock[0] += 1.0
        shown.update(2)
    assert seen == [Moment("count", 0, 4, {}), Moment("count", 3, 4, {"reward": 0.5}), Moment("count", 3, 4, {"reward": 0.5})]
    assert stderr() == ""
    monkeypatch.setenv("GRPO_PROGRESS", "off")
    several = SharedDisplay("train", {"a": 1}, at_once=1)
    several.report("a", seen[1])
    several.close()
    assert stderr() == ""
