"""Printing never ends a run: signs that a console does not have are replaced, and a reader that has gone is not missed."""

import io
import os
import subprocess
import sys

import pytest

from grpo_pipeline.runs.terminal import LastingStream, let_printing_last, plain_sign

SAID = "own − shuffled ≥ 0.5 … é ß 中"
CODE = f"""
import sys
from grpo_pipeline.runs.terminal import let_printing_last
let_printing_last()
for stream in (sys.stdout, sys.stderr):
    print({SAID!r}, file=stream, flush=True)
print("told", file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("utf-8", SAID),
        ("latin-1", "own - shuffled >= 0.5 ... é ß ?"),
        ("ascii", "own - shuffled >= 0.5 ... e ? ?"),
    ],
)
def test_a_sign_that_the_console_lacks_is_replaced(encoding: str, expected: str) -> None:
    env = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, check=False)
    assert done.returncode == 0
    assert done.stdout.decode(encoding) == expected + "\n"
    assert done.stderr.decode(encoding) == expected + "\ntold\n"


def test_a_closed_pipe_and_a_full_disk_end_no_run() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    for place in (writing, os.open("/dev/full", os.O_WRONLY)):
        done = subprocess.run([sys.executable, "-c", CODE], stdout=place, stderr=subprocess.PIPE, text=True, check=False)
        os.close(place)
        assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "told")


def test_a_stream_that_is_none_of_the_systems_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = io.StringIO()
    monkeypatch.setattr(sys, "stdout", notebook)
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    let_printing_last()
    assert sys.stdout is notebook
    assert isinstance(sys.stderr, LastingStream)
    assert sys.stderr.encoding == "ascii"


def test_every_sign_has_a_plain_form_of_ascii() -> None:
    assert [plain_sign(sign) for sign in "−≤→éﬁ☃"] == ["-", "<=", "->", "e", "fi", "?"]
