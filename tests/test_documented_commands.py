"""Every command and every Python block of the documents is one that works as it stands, in a new shell.

`test_every_pipeline.py` runs each registered pipeline, and the blocks that read a trained model. Here is what a run of hours, a
GPU or weights of others would need: pipeline, environment, parameters with their values, target and script with its options.
"""

import ast
import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from kedro.framework.cli.utils import _split_params

from grpo_pipeline.cli import cli
from grpo_pipeline.pipeline_registry import register_pipelines
from grpo_pipeline.runs.parameters import check_parameters
from grpo_pipeline.runs.run_config_loader import RunConfigLoader
from grpo_pipeline.settings import CONFIG_LOADER_ARGS
from grpo_pipeline.tracking.__main__ import parse_arguments

ROOT = Path(__file__).resolve().parents[1]
# The log and the decisions tell what was run; the others say what to run.
PAGES = [
    page
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md"))
    if page.name not in ("log.md", "CHANGELOG.md") and not {".venv", "decisions"} & {*page.parts}
]
CONFIGURATION = sorted((ROOT / "conf").rglob("*.yml"))
PROGRAM = r"(?:make|\.venv/bin/\w+|kedro|mlflow|python\d?) "
# Environments that a reader writes: what the pages show of them is checked by test_documented_parameters.py.
WRITTEN_BY_READERS = {
    "mine",
    "clinic",
    "medsam",
    "medsam_1024",
    "<folder>",
    "library",
    "practice",
    "practice_near",
    "practice_texts",
}
EXAMPLES = ("digits", "reverse")  # the tasks that docs/adding_a_task.md adds
REGISTERED = register_pipelines().keys()
OF_A_TASK = [name.removeprefix("attention") for name in REGISTERED if name.startswith("attention")]
NAMES = REGISTERED | {example + name for example in EXAMPLES for name in OF_A_TASK}
# Commands of another environment: a shell in which it is activated.
ELSEWHERE = {"mlflow models serve"}


class Command(NamedTuple):
    """A command of a page."""

    page: str
    text: str


def commands_of(page: Path) -> list[Command]:
    """Find the commands of fenced blocks, line by line, and those in the text."""
    text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
    fenced = [line for block in re.findall(r"```(?:sh|bash|shell)\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    inline = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    comments = re.findall(rf"#\s*({PROGRAM}[^#;:.,\n]+)", text) if page.suffix == ".yml" else []
    lines = [line.partition("  #")[0].partition(" # ")[0].strip() for line in (*fenced, *inline, *comments)]
    return [Command(page.name, re.sub(r"^(\w+=\S+ )+", "", line)) for line in lines if re.match(rf"(\w+=\S+ )*{PROGRAM}", line)]


COMMANDS = [command for page in (*PAGES, *CONFIGURATION) for command in commands_of(page)]
IDS = [f"{command.page}: {command.text}"[:90] for command in COMMANDS]


def test_commands_are_found_in_the_pages_that_tell_what_to_run() -> None:
    pages = {"README.md", "running.md", "compare.md", "prediction.md", "gpu.md", "parameters_compare.yml"}
    assert pages <= {command.page for command in COMMANDS}
    assert len(COMMANDS) > 80


@pytest.mark.parametrize("command", COMMANDS, ids=IDS)
def test_a_command_is_one_of_a_new_shell_and_all_that_it_names_exists(command: Command) -> None:
    words = shlex.split(command.text.replace("…", "").replace("<", "").replace(">", ""))
    program, *arguments = words
    if any(command.text.startswith(known) for known in ELSEWHERE):
        return
    if program == "make":
        check_make(arguments)
    elif program == ".venv/bin/kedro":
        if arguments[:1] == ["run"]:
            check_run(arguments[1:])
        else:
            assert arguments[:1] in (["registry"], ["viz"], ["jupyter"])
    elif program == ".venv/bin/grpo":
        check_grpo(arguments)
    elif program == ".venv/bin/python":
        check_python(arguments)
    else:
        bare = {"kedro run", "kedro viz", "kedro jupyter", "kedro registry list", "kedro catalog", "python3 -m venv .venv"}
        assert command.text in bare, "a new shell knows no such program: write .venv/bin/ before it"


def check_make(arguments: list[str]) -> None:
    """Check the target and the variables."""
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    variables = dict(word.split("=", 1) for word in arguments if "=" in word)
    assert {word for word in arguments if "=" not in word} <= targets
    assert variables.keys() <= {"ENV", "TASK", "PARAMS", "ARGS", "PYTHON", "TORCH_ARGS", "BASE", "PORT"}
    check_parts(variables.get("TASK", ""), variables.get("ENV", ""), variables.get("PARAMS", ""))


def check_grpo(arguments: list[str]) -> None:
    """Check the command and the names of its options."""
    command = cli.get_command(click.Context(cli), arguments[0])
    assert command is not None
    options = {name for parameter in command.params for name in parameter.opts} | {"--help"}
    assert {word for word in arguments if word.startswith("-")} <= options


def check_run(arguments: list[str]) -> None:
    """Check the options of `kedro run`."""
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert options.keys() <= {"--pipelines", "--env", "--params", "--to-nodes", "--from-nodes", "--load-versions", "--runner"}
    check_parts(options.get("--pipelines", ""), options.get("--env", ""), options.get("--params", ""))


def check_parts(pipelines: str, env: str, params: str) -> None:
    """Check names of pipelines and environments, and that the parameters pass as those of a run."""
    names = [name for name in pipelines.split(",") if name]
    known = [name for name in names if name in NAMES or name.startswith(("pipeline", "task_"))]
    assert known == names
    assert env in ("", *WRITTEN_BY_READERS, *(name.strip("<>") for name in WRITTEN_BY_READERS)) or (ROOT / "conf" / env).is_dir()
    if re.search(r"=\w", params) and "key=value" not in params:
        given: dict[str, Any] = _split_params(None, None, re.sub(r"=S\b", "=1", params))  # S: each of the seeds
        check_given(given, env if (ROOT / "conf" / env).is_dir() and env else "base")


def check_given(given: dict[str, Any], env: str) -> None:
    """Check parameters of the command line as a run does."""
    loader = RunConfigLoader(str(ROOT / "conf"), env=env, runtime_params=given, **CONFIG_LOADER_ARGS)
    weights = "checkpoint" in given.get("attention", {}).get("model", {})
    if not weights:  # what it names is read, and is not there
        check_parameters(loader["parameters"], loader, list(REGISTERED - {"__default__"}))


def check_python(arguments: list[str]) -> None:
    """Check a script or module and its options."""
    if arguments[:2] == ["-m", "grpo_pipeline.tracking"]:
        parse_arguments(arguments[2:])
        return
    if arguments[0] == "-m":
        assert importlib.util.find_spec(arguments[1].partition(".")[0]) or arguments[1] in ("http.server", "pip")
        return
    script = (ROOT / arguments[0]).read_text(encoding="utf-8")
    options = [word.partition("=")[0] for word in arguments[1:] if word.startswith("--")]
    assert [option for option in options if f'"{option}"' not in script and "add_" not in script.partition(option)[2]] == []


class Block(NamedTuple):
    """A Python block of a page."""

    page: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    found = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [Block(page.name, text) for text in found]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


@cache
def begins_with(page: str) -> str:
    """Return what the blocks of a page go on from: on docs/backprop.md the first of them, which its test runs before each."""
    return next(block.text for block in BLOCKS if block.page == page) if page == "backprop.md" else ""


@pytest.mark.parametrize("block", BLOCKS, ids=[f"{block.page}:{number}" for number, block in enumerate(BLOCKS)])
def test_a_python_block_is_complete_and_imports_what_exists(block: Block) -> None:
    before = begins_with(block.page)
    text = block.text if before == block.text else before + block.text
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] not in EXAMPLES:
            module = importlib.import_module(node.module)
            absent = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            assert [name for name in absent if not _is_module(module, name)] == []
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--quiet", "--select", "F821", "-"]
    done = subprocess.run(ruff, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def _is_module(module: Any, name: str) -> bool:
    return importlib.util.find_spec(f"{module.__name__}.{name}") is not None


FILE = re.compile(r"`([\w./-]+\.(?:py|ipynb|html|css))(?:::\w+)?`")
MADE_BY_RUNS = "data/"


def test_files_that_documents_name_exist(committed_files: tuple[Path, ...]) -> None:
    paths = [f"/{file.relative_to(ROOT).as_posix()}" for file in committed_files]
    named = {(page.name, name) for page in PAGES for name in FILE.findall(page.read_text(encoding="utf-8"))}
    assert ("metrics.md", "statistics/wasserstein.py") in named
    theirs = {(page, name) for page, name in named if name.startswith(MADE_BY_RUNS) or page == "adding_a_task.md"}
    assert sorted(one for one in named - theirs if not any(path.endswith(f"/{one[1]}") for path in paths)) == []
