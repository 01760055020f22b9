"""The writer keeps order, never blocks training, and gives up once."""

import logging
import signal
import threading
import time

import pytest

from grpo_pipeline.tracking.writer import Writer


@pytest.fixture
def lost():
    return []


@pytest.fixture
def writer(lost):
    made = Writer(on_lost=lost.append, flush=lambda: None, is_refusal=lambda error: isinstance(error, ValueError))
    yield made
    made.close(timeout=120)


def test_work_is_done_in_order_and_results_come_back(writer):
    done = []
    for number in range(100):
        writer.post(lambda number=number: done.append(number))
    assert writer.post(lambda: len(done)).result(120) == 100
    assert done == list(range(100))


def test_posting_does_not_wait(writer):
    gate = threading.Event()
    writer.post(lambda: gate.wait(600))
    start = time.perf_counter()
    for _ in range(1000):
        writer.post(lambda: None)
    # One post that waited would take the ten minutes of the gate; a machine that stalls is no wait.
    assert time.perf_counter() - start < 200
    gate.set()


def test_a_store_that_is_gone_ends_tracking_once(writer, lost):
    done = []

    def fail():
        raise OSError("gone")

    for work in (fail, fail, lambda: done.append(1)):
        writer.post(work)
    assert writer.post(lambda: 1).result(120) is None
    assert [str(error) for error in lost] == ["gone"]
    assert done == []


def test_a_refused_entry_is_skipped_and_announced_three_times(writer, lost):
    def refuse():
        raise ValueError("bad name\nand a stack")

    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logger = logging.getLogger("grpo_pipeline.tracking.writer")
    logger.addHandler(handler)
    try:
        for _ in range(5):
            writer.post(refuse)
        assert writer.post(lambda: 1).result(120) == 1
    finally:
        logger.removeHandler(handler)
    assert lost == []
    assert messages == ["MLflow refused one entry, which is skipped: bad name"] * 3


def test_close_finishes_what_was_posted(lost):
    done, flushed = [], []
    writer = Writer(on_lost=lost.append, flush=lambda: flushed.append(1), is_refusal=lambda error: False)
    for number in range(50):
        writer.post(lambda number=number: done.append(number))
    assert writer.close(timeout=120)
    assert done == list(range(50))
    assert flushed


def test_close_does_not_wait_for_ever(lost):
    gate = threading.Event()
    writer = Writer(on_lost=lost.append, flush=lambda: None, is_refusal=lambda error: False)
    writer.post(lambda: gate.wait(600))
    start = time.perf_counter()
    assert not writer.close(timeout=0.1)
    assert time.perf_counter() - start < 200
    assert len(lost) == 1
    gate.set()


def test_a_second_ctrl_c_gives_up_what_is_left(lost):
    gate = threading.Event()
    writer = Writer(on_lost=lost.append, flush=lambda: None, is_refusal=lambda error: False)
    writer.post(lambda: gate.wait(600))
    main = threading.main_thread().ident  # which the kernel interrupts when a key is pressed
    threading.Timer(0.2, signal.pthread_kill, [main, signal.SIGINT]).start()
    start = time.perf_counter()
    assert not writer.close(timeout=600)
    assert time.perf_counter() - start < 200
    assert [str(error) for error in lost] == ["not all was written before Ctrl-C"]
    gate.set()


def test_a_slow_store_is_waited_for_as_long_as_it_takes_entries(lost, monkeypatch):
    """Twenty entries of 0.05 s: the limit of 0.4 s is that of one entry, and all of them arrive."""
    monkeypatch.setattr("grpo_pipeline.tracking.writer.ENTRY_SECONDS", 0.4)
    monkeypatch.setattr("grpo_pipeline.tracking.writer.SAY_AFTER_SECONDS", 0.05)
    done = []
    writer = Writer(on_lost=lost.append, flush=lambda: None, is_refusal=lambda error: False)
    for number in range(20):
        writer.post(lambda number=number: (time.sleep(0.05), done.append(number)))
    assert writer.close(timeout=None)
    assert (done, lost) == (list(range(20)), [])


def test_a_store_that_takes_no_entry_any_more_is_left(lost, monkeypatch):
    monkeypatch.setattr("grpo_pipeline.tracking.writer.ENTRY_SECONDS", 0.2)
    monkeypatch.setattr("grpo_pipeline.tracking.writer.SAY_AFTER_SECONDS", 0.05)
    gate = threading.Event()
    writer = Writer(on_lost=lost.append, flush=lambda: None, is_refusal=lambda error: False)
    writer.post(lambda: gate.wait(600))
    assert not writer.close(timeout=None)
    assert [str(error) for error in lost] == ["no entry was taken within 0 s"]
    gate.set()


def test_with_a_limit_how_the_run_ended_is_sent_before_all_else(lost):
    """Of a hundred entries of 0.1 s few fit into a second; the two that say how it ended are sent all the same."""
    done = []
    writer = Writer(on_lost=lost.append, flush=lambda: None, is_refusal=lambda error: False)
    for number in range(100):
        writer.post(lambda number=number: (time.sleep(0.1), done.append(number)))
    ends = [writer.post(lambda word=word: done.append(word), is_last=True) for word in ("child", "parent")]
    assert not writer.close(timeout=1.0)
    for end in ends:
        end.result(120)
    assert done[-2:] == ["child", "parent"]
    assert len(done) < 60
    assert [str(error) for error in lost] == ["not all was written within 1 s"]


def test_it_flushes_while_nothing_is_posted(lost, monkeypatch):
    monkeypatch.setattr("grpo_pipeline.tracking.writer.FLUSH_SECONDS", 0.02)
    flushed = threading.Event()
    writer = Writer(on_lost=lost.append, flush=flushed.set, is_refusal=lambda error: False)
    assert flushed.wait(120)
    writer.close(timeout=120)
