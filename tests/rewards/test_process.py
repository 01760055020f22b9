import json
import os
import subprocess
import sys

import pytest
from processes import are_gone, end_soon

from grpo_pipeline.rewards.process import WorkerHungError, WorkerProcess


def ask(worker, *replies, function="tiny_rewards:scripted", seconds=20.0):
    request = {"function": function, "options": {}, "subjects": replies, "references": [["x"] for _ in replies]}
    return worker.ask(request, seconds=seconds)["outcomes"]


def test_a_process_of_its_own_with_one_thread_answers_whatever_is_printed(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    worker = WorkerProcess()
    assert ask(worker, "print", "\ud800 ü", "raise") == [5 + 1 / 7, 3 + 1 / 7, "it raised KeyError: 'raise'"]
    assert ask(worker, "a" * 3_000_000) == [3_000_000 + 1 / 7]
    assert ask(worker, "a", function="tiny_rewards:process") == [worker.pid]
    assert ask(worker, "a", function="tiny_rewards:threads") == [1.0]
    worker.end()


def test_a_hung_process_is_noticed_and_can_be_ended_with_its_children(tmp_path):
    worker = WorkerProcess()
    ask(worker, "a")
    with pytest.raises(WorkerHungError):
        ask(worker, f"children {tmp_path / 'pid'}", seconds=2.0)
    worker.end()
    assert are_gone([worker.pid])
    assert end_soon(int((tmp_path / "pid").read_text()))


def test_a_process_without_parent_ends_a_call_that_hangs():
    command = [sys.executable, "-m", "grpo_pipeline.rewards.worker_main"]
    path = os.pathsep.join(sys.path)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": path})
    request = {"function": "tiny_rewards:scripted", "options": {}, "subjects": ["hang"], "references": [[]], "seconds": -4.5}
    out, _ = process.communicate(json.dumps(request).encode() + b"\n", timeout=600)  # closes its input, too
    assert (process.returncode, out) == (1, b"")
