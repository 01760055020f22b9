import gc
import importlib.util
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
import types
from contextlib import suppress
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from processes import are_gone, end_soon

from grpo_pipeline.rewards.late_calls import LATE, LateCalls
from grpo_pipeline.rewards.measure import Measure
from grpo_pipeline.rewards.params import PoolParams
from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.rewards.pool_error import RewardPoolError
from grpo_pipeline.rewards.process import WorkerHungError, WorkerProcess
from grpo_pipeline.rewards.reward_prints import LIMIT_BYTES

SCRIPTED = Measure("tiny_rewards:scripted")


def params(**changes):
    values = {"workers": 1, "timeout_seconds": 20.0, "chunk_size": 3, "cache_size": 100}
    return PoolParams(**(values | changes))


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "reward worker"]


def test_processes_give_the_values_of_this_process_in_order():
    texts = ["ab", "raise", "a" * 9, "nan", "dye", "inf", "ab", "exit", "text", "abc", "short", "x"]
    answers = [["x"] * (1 + place % 3) for place in range(len(texts))]
    with RewardPool(params(workers=0)) as here, RewardPool(params(workers=2)) as there:
        own = here.submit(SCRIPTED, texts, answers).result()
        got = there.submit(SCRIPTED, texts, answers).result(timeout=600)
        assert len(there.pids) == 2
        assert here.pids == []
    np.testing.assert_array_equal(got.values, own.values)
    assert got.causes == own.causes
    is_scored = [text in ("ab", "a" * 9, "dye", "abc", "x") for text in texts]
    assert [not math.isnan(value) for value in own.values] == is_scored == [cause is None for cause in own.causes]
    want = [len(text) + len(row) / 7 for text, row in zip(texts, answers, strict=True)]
    np.testing.assert_array_equal(own.values[is_scored], np.asarray(want)[is_scored])


def test_known_and_repeated_samples_are_measured_once():
    with RewardPool(params(workers=0, cache_size=3)) as pool:
        for texts, answers, values, counts in [
            (["a", "bb", "a"], "xxx", [1 + 1 / 7, 2 + 1 / 7, 1 + 1 / 7], (1, 2)),
            (["bb", "a", "a"], ["x", "x", "xy"], [2 + 1 / 7, 1 + 1 / 7, 1 + 2 / 7], (3, 3)),  # other answers, another sample
            (["c"], "x", [1 + 1 / 7], (3, 4)),  # forgets bb, the one not asked for the longest
            (["bb"], "x", [2 + 1 / 7], (3, 5)),
        ]:
            assert pool.submit(SCRIPTED, texts, [list(row) for row in answers]).result().values.tolist() == values
            assert (pool.counts.hits, pool.counts.measured) == counts
    with RewardPool(params(workers=0)) as pool:  # what failed is counted, and tried again
        for _ in range(2):
            assert pool.submit(SCRIPTED, ["raise", "a", "raise"]).result().causes[0] == "it raised KeyError: 'raise'"
        assert (pool.counts.failed, pool.counts.measured, pool.counts.hits) == (2, 3, 3)
        for seconds in (0, 0.0001):  # another reward, or other options
            pool.submit(Measure("tiny_rewards:slow", {"seconds": seconds}), ["a"])
        assert pool.counts.measured == 5


def test_columns_are_part_of_a_sample_in_this_process_and_in_others():
    levels, cells = Measure("tiny_rewards:levels"), ['{"level": 1}', '{"level": null}', '{"level": 1}', '{"level": 2}']
    given = levels, ["a"] * 4, [["x"]] * 4, ["p"] * 4, cells
    with RewardPool(params(workers=0)) as here, RewardPool(params(workers=1)) as there:
        for pool in (here, there):
            assert pool.submit(*given).result(timeout=600).values.tolist() == [1111.0, 111.0, 1111.0, 2111.0]
            assert pool.counts.measured == 3
            assert pool.submit(SCRIPTED, *given[1:]).result(timeout=600).values.tolist() == [1 + 1 / 7] * 4
            assert pool.counts.measured == 4  # it does not read them


def test_submit_does_not_wait_and_nothing_is_measured_at_once():
    with RewardPool(params()) as pool:
        assert pool.submit(SCRIPTED, []).result(timeout=0).values.shape == (0,)
        assert pool.pids == []
        with pytest.raises(ValueError, match="references must have one row per sample, got 1 for 2"):
            pool.submit(SCRIPTED, ["a", "b"], [["x"]])
        future = pool.submit(Measure("tiny_rewards:slow", {"seconds": 0.3}), ["a"])
        assert [future.done(), future.cancel()] == [False, False]
        assert future.result(timeout=600).values.tolist() == [1.0]


@pytest.mark.parametrize(
    ("word", "cause"),
    [("hang", "it took longer than 2 s, in its chunk and alone"), ("die", "its process ended with exit status 3")],
)
def test_who_hangs_or_ends_its_process_has_no_value_and_its_neighbours_have(word, cause):
    with RewardPool(params(chunk_size=2, timeout_seconds=2.0)) as pool:
        pool.submit(SCRIPTED, ["warm"]).result(timeout=600)
        (first,) = pool.pids
        got = pool.submit(SCRIPTED, ["a", word, "bb", "ccc"]).result(timeout=600)
        np.testing.assert_array_equal(got.values, [1.0, math.nan, 2.0, 3.0])  # "a" was not to blame and is tried again, alone
        assert got.causes == (None, cause, None, None)
        assert pool.pids != [first]
        assert are_gone([first])
        assert pool.counts.replaced == 2


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_killed_or_paused_from_outside_costs_no_sample(how):
    with RewardPool(params(timeout_seconds=2.0)) as pool:
        pool.submit(SCRIPTED, ["warm"]).result(timeout=600)
        os.kill(pool.pids[0], how)
        assert pool.submit(SCRIPTED, ["a", "bb"]).result(timeout=600).values.tolist() == [1.0, 2.0]
        assert pool.counts.replaced == 1


F1, ROUGE = "grpo_pipeline.tasks.dialogue.scores.f1:f1", "grpo_pipeline.tasks.dialogue.scores.rouge:rouge_l"


def test_a_slow_import_costs_no_time_of_a_chunk(tmp_path, monkeypatch):
    """Parts of the project's own have their values however long a library of theirs takes to import."""
    texts, answers = ["so it is", "it was not so", "so"], [["so it was"], ["it was so", "no"], ["so"]]
    with RewardPool(params(workers=0)) as here:
        own = here.submit(Measure(ROUGE), texts, answers).result()
    there = Path(importlib.util.find_spec("rouge_score").origin).parent
    package = tmp_path / "rouge_score"
    package.mkdir()
    (package / "__init__.py").write_text(
        f"import time\ntime.sleep(2.0)\n__path__ = [{str(there)!r}]\nexec(open({str(there / '__init__.py')!r}).read())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with RewardPool(params(timeout_seconds=1.0)) as pool:
        got = pool.submit(Measure(ROUGE), texts, answers).result(timeout=600)
        np.testing.assert_array_equal(got.values, own.values)
        assert not np.isnan(got.values).any()
        assert pool.counts.replaced == 0


def test_a_part_of_the_projects_own_has_a_value_although_every_process_hangs(monkeypatch):
    """A machine that is too busy for any chunk changes no value: what hangs twice is measured here, without a limit."""

    def hang(worker, request, *, seconds):
        raise WorkerHungError

    with RewardPool(params()) as pool:
        f1 = Measure(F1)
        pool.submit(f1, ["warm"], [["warm"]]).result(timeout=600)
        monkeypatch.setattr(WorkerProcess, "ask", hang)
        monkeypatch.setattr(WorkerProcess, "load", lambda worker, function, *, seconds: None)
        assert pool.submit(f1, ["so it is"], [["so it is"]]).result(timeout=600).values.tolist() == [1.0]
        assert math.isnan(pool.submit(SCRIPTED, ["a"]).result(timeout=600).values[0])


@pytest.mark.parametrize(
    ("workers", "kind"), [*product([0, 1], ["clock", "draw", "company", "count", "nan"]), (1, "hash"), (0, "late")]
)
def test_a_reward_that_changes_its_mind_is_refused_by_name(workers, kind):
    changes = {"cache_size": 0, "chunk_size": 1} if kind == "late" else {}
    with RewardPool(params(workers=workers, **changes)) as pool:
        texts = [str(number) for number in range(41)] if kind == "late" else ["ab", "c", "def"]
        future = pool.submit(Measure("tiny_rewards:changing", {"kind": kind}), texts)
        with pytest.raises(RewardPoolError, match="'tiny_rewards:changing' must give one value for one input, got .* and .* for"):
            future.result(timeout=600)


@pytest.mark.parametrize("workers", [0, 1])
def test_prints_are_passed_on_up_to_a_limit(workers, capsys):
    with RewardPool(params(workers=workers)) as pool:
        loud = Measure("tiny_rewards:loud", {"lines": 100_000})
        assert pool.submit(loud, ["a", "b"]).result(timeout=600).values.tolist() == [1.0, 1.0]
    said = capsys.readouterr().err
    assert said.startswith("reward prints reward prints")
    assert len(said) < LIMIT_BYTES + 400
    cut = int(re.search(r"\[(\d+) bytes that rewards printed were not shown", said)[1])
    assert cut + LIMIT_BYTES == len("reward prints ") * 100_000 * 2  # two calls


@pytest.mark.parametrize("workers", [0, 1])
def test_a_reward_that_cannot_be_imported_is_no_samples_fault(workers, monkeypatch):
    module = types.ModuleType("only_here")
    module.f = lambda replies, answers: [0.0]
    monkeypatch.setitem(sys.modules, "only_here", module)
    measure = Measure("only_here:f")
    _ = measure.digest  # it could be imported when the parameters were read
    monkeypatch.delitem(sys.modules, "only_here")
    with RewardPool(params(workers=workers)) as pool:
        future = pool.submit(measure, ["a"])
        with pytest.raises(RewardPoolError, match="'only_here:f' must be importable, got ModuleNotFoundError"):
            future.result(timeout=600)
        assert pool.submit(SCRIPTED, ["a"]).result(timeout=600).values.tolist() == [1.0]


def test_a_called_function_keeps_what_it_knows_in_its_lane_until_the_pool_is_closed():
    with RewardPool(params(workers=2, timeout_seconds=600.0)) as pool:
        said = [pool.call(lane, "tiny_rewards:keep", {"word": word}) for lane, word in ((0, "a"), (1, "b"), (2, "c"), (3, "d"))]
        assert said == [["a"], ["b"], ["a", "c"], ["b", "d"]]
        assert len(pids := pool.pids) == 2
    assert are_gone(pids)
    with pytest.raises(RewardPoolError, match="must be open"):
        pool.call(0, "tiny_rewards:keep", {"word": "e"})


def test_an_error_leaves_no_process_and_no_thread(tmp_path):
    is_running = tmp_path / "pid of a child"
    pool = RewardPool(params(workers=2, chunk_size=1, timeout_seconds=600.0))
    pool.submit(SCRIPTED, ["a", "b"]).result(timeout=600)
    assert len(threads()) == 2
    begin = time.monotonic()
    with suppress(ZeroDivisionError), pool:
        waiting = pool.submit(SCRIPTED, [f"children {is_running}", "hang", "never begun"])
        pids = pool.pids
        while not is_running.exists():
            time.sleep(0.01)
        _ = 1 / 0
    assert time.monotonic() - begin < 300  # it did not wait for the time limit
    assert are_gone(pids)
    assert (pool.pids, threads()) == ([], [])
    with pytest.raises(RewardPoolError, match="must be open, got one that was closed"):
        waiting.result(timeout=0)
    with pytest.raises(RewardPoolError, match="must be open"):
        pool.submit(SCRIPTED, ["a"])
    pool.close()


def test_a_pool_that_nobody_holds_ends_its_processes():
    pool = RewardPool(params())
    pool.submit(SCRIPTED, ["a"]).result(timeout=600)
    pids = pool.pids
    del pool
    gc.collect()
    limit = time.monotonic() + 120  # the thread that answered may be the last to let go of it
    while not are_gone(pids) and time.monotonic() < limit:
        time.sleep(0.01)
    assert are_gone(pids)


@pytest.mark.parametrize("end", ["raise KeyError", "pool.submit(scripted, ['hang']); os.kill(os.getpid(), 9)"])
def test_no_process_is_left_when_the_program_ends(end):
    program = f"""
import os
from grpo_pipeline.rewards.measure import Measure
from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.rewards.params import PoolParams
pool = RewardPool(PoolParams(workers=1, timeout_seconds=60, chunk_size=1, cache_size=0))
scripted = Measure("tiny_rewards:scripted")
pool.submit(scripted, ["a"]).result()
print(*pool.pids, flush=True)
{end}
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    (pid,) = map(int, done.stdout.split())
    # A program that ends by itself has waited for its processes; one that was killed could not.
    assert end_soon(pid) if "kill" in end else are_gone([pid])
    assert ("KeyError" in done.stderr) == ("raise" in end)


def test_calls_that_run_out_of_time_are_counted_and_said_when_they_double(caplog):
    late = LateCalls()
    with caplog.at_level("WARNING", logger="grpo_pipeline.rewards.workers"):
        for _ in range(5):
            late.add("mine:slow", seconds=30.0)
        late.add("other:slow", seconds=2.0)
    assert late.total == 6
    said = [record.getMessage().partition(";")[0] for record in caplog.records]
    assert said == [
        "The reward mine:slow has run out of time in 1 call so far, which cost 30 s",
        "The reward mine:slow has run out of time in 2 calls so far, which cost 60 s",
        "The reward mine:slow has run out of time in 4 calls so far, which cost 120 s",
        "The reward other:slow has run out of time in 1 call so far, which cost 2 s",
    ]


def test_a_call_that_hangs_is_counted_twice_in_its_chunk_and_alone():
    before = LATE.total
    with RewardPool(params(chunk_size=2, timeout_seconds=2.0)) as pool:
        pool.submit(SCRIPTED, ["warm"]).result(timeout=600)
        pool.submit(SCRIPTED, ["a", "hang"]).result(timeout=600)
    assert LATE.total - before == 2
