"""Every program, file and command of the tutorials about data of one's own, in the order of the page, with tiny networks.

But for the training of the molecules, of whose 3,600 the test of every pipeline takes fewer.
"""

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from forked_kedro import kedro_command
from kedro_processes import clean_environ

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
BLOCK = re.compile(r"(?:^`(?P<file>conf/\S+)`\n\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)
CHECKED = re.compile(r"- \d+ rows|- label:|wrote |- library|(train|val|test) ")
LINE = re.compile(r"`(?P<file>conf/\S+)` has one line, `(?P<text>[^`]+)`")
# How a run is shortened, in the place of the parameters of the page, which a test of the commands checks.
SHORT = {
    "attention": "attention.training.max_steps=2",
    "dialogue": "dialogue.warm_start.training.max_steps=2,dialogue.training.max_steps=1,dialogue.arms=supervised+grpo",
}


class Block(NamedTuple):
    """A fenced block of a page, with the file that it is the content of, where the line before names one."""

    kind: str
    text: str
    file: str


def blocks_of(page: Path) -> list[Block]:
    """List what a reader types, writes and reads, in the order of the page."""
    text = page.read_text(encoding="utf-8")
    fenced = [(found.start(), Block(found["kind"], found["text"], found["file"] or "")) for found in BLOCK.finditer(text)]
    lines = [(found.start(), Block("line", f"{found['text']}\n", found["file"])) for found in LINE.finditer(text)]
    return [block for _, block in sorted(fenced + lines)]


class Reader:
    """Someone who does what a page says in a project of their own; ``said`` is what the last commands have printed."""

    def __init__(self, project: Path) -> None:
        self.project, self.said = project, ""
        self.done: set[str] = set()  # runs that differ in their parameters alone are one when they are shortened

    def follow(self, block: Block) -> None:
        if block.file:
            file = self.project / block.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
        elif block.kind == "python" and (named := re.match(r"# (src/\S+)\n", block.text)):
            (self.project / named[1]).write_text(block.text, encoding="utf-8")
        elif block.kind == "python":
            exec(compile(block.text, "a tutorial", "exec"), {})
        elif block.kind == "sh":
            self.said = "".join(self.call(line.partition("  #")[0].split()) for line in block.text.splitlines())

    def call(self, words: list[str]) -> str:
        """Run a command of the page; a run is shortened, and an environment that ``new-data`` has written has tiny networks."""
        if words[0] == "make":
            given = dict(word.split("=", 1) for word in words[2:])
            env, task = given.get("ENV", "base"), given["TASK"]
            name = task.partition("_")[0]
            if f"{env} {task}" in self.done or task == "molecules":
                return ""
            self.done.add(f"{env} {task}")
            short = f"{SHORT[name]},{name}.reward_audit.no_ceiling=warn," if name in SHORT else ""
            words = kedro_command("run", "--env", env, "--pipelines", task, "--params", f"{short}executor.kind=serial")
        elif words[0] == ".venv/bin/grpo":
            words = kedro_command(*words[1:])
        environ = clean_environ(GRPO_PROGRESS="lines")
        done = subprocess.run(words, cwd=self.project, env=environ, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        for wrote in re.findall(r"^wrote (conf/\w+/globals.yml)$", done.stdout, re.MULTILINE):
            with (self.project / wrote).open("a") as file:
                file.write("extends: smoke\n")
        return done.stdout + done.stderr


@pytest.fixture
def reader(project: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    monkeypatch.chdir(project)
    return Reader(project)


def follow(reader: Reader, page: str) -> list[str]:
    """Follow a page; returns the lines that it shows of ``new-data`` and of the splits, all of which were printed."""
    checked = []
    for block in blocks_of(Path(__file__).parents[1] / f"docs/tutorials/{page}.md"):
        reader.follow(block)
        if block.kind == "text":
            # Of a run of the page's own length are the verdict and everything below it, and the audit before it.
            shown = [line for line in block.text.splitlines() if CHECKED.match(line)]
            assert [line for line in shown if line not in reader.said.splitlines()] == [], reader.said
            checked += shown
    return checked


def test_your_images(reader: Reader) -> None:
    checked = follow(reader, "own_images")
    assert len(checked) == 7
    assert (reader.project / "data/08_reporting/attention_practice/report.html").is_file()
    assert (reader.project / "data/08_reporting/attention_practice/examples.png").is_file()


def test_your_texts_and_your_reward(reader: Reader) -> None:
    follow(reader, "own_texts")
    follow(reader, "own_reward")
    for name in ("texts", "near"):
        assert (reader.project / f"data/08_reporting/dialogue_practice_{name}/report.html").is_file()


def test_your_molecules(reader: Reader) -> None:
    checked = follow(reader, "own_molecules")
    assert len(checked) == 6
    assert (reader.project / "data/08_reporting/molecules_library/examples.svg").is_file()
