import itertools
import random
import threading
import time

import pytest
import torch

from grpo_pipeline.runs.lookahead import THREAD_NAME, map_ahead, usable_cores


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith(THREAD_NAME)]


def slow_square(number):
    time.sleep(random.Random(number).uniform(0, 0.003))
    return number * number


@pytest.mark.parametrize(("workers", "ahead"), [(1, 0), (1, 1), (4, 1), (4, 9), (2, 100)])
def test_results_come_in_the_order_of_the_items(workers, ahead):
    assert list(map_ahead(slow_square, range(30), workers=workers, ahead=ahead)) == [number**2 for number in range(30)]
    assert threads() == []


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_only_so_many_items_are_begun_before_they_are_asked_for(ahead):
    begun = []
    results = map_ahead(lambda item: begun.append(item) or item, range(20), workers=2, ahead=ahead)
    for asked in range(1, 6):
        next(results)
        deadline = time.monotonic() + 120
        while len(begun) < asked + max(0, ahead) and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.01)
        assert len(begun) == asked + ahead
    results.close()


def fail_at_three(number):
    if number == 3:
        raise ValueError("the third is bad")
    return number


@pytest.mark.parametrize("ahead", [0, 4])
def test_an_error_comes_in_its_place(ahead):
    results = map_ahead(fail_at_three, range(10), workers=3, ahead=ahead)
    seen = list(itertools.islice(results, 3))
    with pytest.raises(ValueError, match="the third is bad"):
        next(results)
    assert seen == [0, 1, 2]
    assert threads() == []


@pytest.mark.parametrize("stop", ["close", "interrupt"])
def test_a_reader_that_stops_leaves_no_thread_and_no_queue(stop):
    begun = []

    def work(number):
        begun.append(number)
        time.sleep(0.005)
        return number

    results = map_ahead(work, range(1000), workers=2, ahead=50)
    next(results)
    if stop == "close":
        results.close()
    else:
        with pytest.raises(KeyboardInterrupt):
            results.throw(KeyboardInterrupt())
    assert threads() == []
    assert len(begun) < 20


def test_several_workers_run_at_once_and_cores_are_at_least_one_and_bounded():
    meeting = threading.Barrier(3, timeout=600)
    assert sorted(map_ahead(lambda item: (meeting.wait(), item)[1], range(3), workers=3, ahead=3)) == [0, 1, 2]
    assert usable_cores(1) == 1
    assert 1 <= usable_cores() <= 8


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def number_of_threads(number):
    torch.ones(2**20).exp_()  # shared out, if the thread may
    return torch.get_num_threads()


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize(("workers", "ahead"), [(1, 0), (1, 1), (2, 4)])
def test_what_is_made_ahead_is_computed_on_one_core_and_all_else_as_before(workers, ahead):
    """A second team of OpenMP threads would make every operation of the first begin by waking them."""
    found = map_ahead(number_of_threads, range(6), workers=workers, ahead=ahead)
    assert [(next(found), number_of_threads(0)) for _ in range(6)] == [(1, 3)] * 6


@pytest.mark.usefixtures("three_threads")
def test_who_makes_a_result_does_not_round_it_otherwise():
    numbers = torch.rand(2**20, generator=torch.Generator().manual_seed(0))

    def total(factor):
        return float((numbers * factor).sum())

    at_once, before = (list(map_ahead(total, [0.1, 0.3, 0.7], workers=1, ahead=ahead)) for ahead in (0, 2))
    assert at_once == before
