"""Which calls are repeated, how long an answer is waited for, and what is loaded once: without a process."""

import os
import threading
import time
from typing import Any

import pytest

from grpo_pipeline.rewards.measure import Measure
from grpo_pipeline.rewards.pool_error import RewardPoolError
from grpo_pipeline.rewards.process import WorkerHungError, WorkerProcess
from grpo_pipeline.rewards.reward_prints import RewardPrints
from grpo_pipeline.rewards.second_calls import SecondCalls, refuse_change

OWN, OTHER, OURS = Measure("tiny_rewards:scripted"), Measure("tiny_rewards:distinct"), Measure("grpo_pipeline.x:f")


def test_four_samples_of_the_first_chunk_and_two_of_each_twentieth_are_repeated() -> None:
    calls = SecondCalls()
    # What raised has no value to compare; what is no number does.
    outcomes = [1.0, "it raised KeyError", 2.0, "it returned nan, which is no score", 3.0, 4.0, 5.0]
    found = [calls.choose(OWN, outcomes) for _ in range(42)]
    again = {number: places for number, (places, _) in enumerate(found) if places}
    # In the other order, so that what a value owes to those before it is seen.
    assert again == {0: [4, 3, 2, 0], 20: [2, 0], 40: [2, 0]}
    assert [number for number, (_, is_first) in enumerate(found) if is_first] == [0]
    assert calls.choose(OTHER, [7.0]) == ([0], True)  # each reward is counted for itself
    assert calls.choose(OURS, outcomes) == ([], False)
    assert calls.choose(Measure("tiny_rewards:scripted", {"k": 1}), ["it raised"]) == ([], True)


@pytest.mark.parametrize(
    ("first", "second", "is_refused"),
    [
        (1.0, 1.0, False),
        (1.0, 1.5, True),
        (1.0, "it returned nan, which is no score", True),
        ("it returned nan, which is no score", "it returned nan, which is no score", False),
        (1.0, "it raised MemoryError", False),  # what failed once is no other value
        ("it raised MemoryError", 1.0, False),
    ],
)
def test_only_two_values_that_differ_are_a_change_of_mind(first: Any, second: Any, is_refused: bool) -> None:
    given = OWN, [("a", ()), ("b", ())], [2.0, first], [2.0, second]
    if is_refused:
        with pytest.raises(RewardPoolError, match="tiny_rewards:scripted"):
            refuse_change(*given)
    else:
        refuse_change(*given)


def test_a_function_is_loaded_once_and_a_refused_one_is_asked_for_again() -> None:
    worker, asked = WorkerProcess.__new__(WorkerProcess), []
    worker._loaded, answers = set(), iter([{"error": "no module"}, {"error": "no module"}, {}, {}])
    worker.ask = lambda request, *, seconds: asked.append((request, seconds)) or next(answers)
    said = [worker.load("mine:f", seconds=3.0) for _ in range(4)]
    assert said == ["no module", "no module", None, None]
    assert worker.load("mine:g", seconds=3.0) is None
    assert asked == [({"load": "mine:f"}, 3.0)] * 3 + [({"load": "mine:g"}, 3.0)]


@pytest.mark.parametrize(("late_seconds", "is_hung"), [(0.0, False), (0.6, True)])
def test_an_answer_is_waited_for_as_long_as_the_call_may_take_however_it_comes(late_seconds: float, is_hung: bool) -> None:
    """In two pieces: both have the time that the whole has."""
    requests, answers = os.pipe(), os.pipe()
    worker = WorkerProcess.__new__(WorkerProcess)
    worker._requests, worker._answers = os.fdopen(requests[1], "wb", buffering=0), os.fdopen(answers[0], "rb", buffering=0)

    def answer() -> None:
        time.sleep(late_seconds / 2)
        os.write(answers[1], b'{"outco')
        time.sleep(late_seconds / 2)
        os.write(answers[1], b'mes": [1.0]}\n')

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        if is_hung:
            with pytest.raises(WorkerHungError):
                worker.ask({"subjects": ["a"]}, seconds=0.4)
        else:
            assert worker.ask({"subjects": ["a"]}, seconds=20.0) == {"outcomes": [1.0]}
        assert os.read(requests[0], 100).startswith(b'{"subjects": ["a"], "seconds": ')
    finally:
        thread.join()
        for file in (worker._requests, worker._answers):
            file.close()
        os.close(requests[0])
        os.close(answers[1])


def test_prints_are_shown_up_to_the_limit_of_all_together(capsys: pytest.CaptureFixture[str]) -> None:
    prints = RewardPrints(limit=6)
    for printed in (b"ab", b"cd\xff", b"efg", b"hi"):
        prints.pass_on(printed)
    assert prints.cut == 4
    prints.close()
    said = capsys.readouterr().err
    assert said.startswith("abcd\ufffde")
    assert "rewards have printed 6 bytes" in said
    assert "[4 bytes that rewards printed were not shown" in said
    assert "f" not in said.partition("\n")[0][6:]
