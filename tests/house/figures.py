"""Print how the code is built, in figures, each beside its target.

    python tests/house/figures.py [--json] [--verbose] [--no-steps]      (or: make house)

Most come from the files that git tracks, in seconds. The files that a training step executes come from the smoke run of each
task (about a CPU minute in all); --no-steps leaves them out. Exit status: 0, also where a target is missed.
"""

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import networkx

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "grpo_pipeline"
STEP_FILES = {"attention": 25, "dialogue": 30, "molecules": 35}  # task -> at most so many in one training step
OUTSIDE = ("src", f":!src/{PACKAGE}/tasks")  # where no task should be named


@dataclass(frozen=True)
class Figure:
    """One measured number, its target if it has one, and the places that make it up."""

    name: str
    value: float
    at_most: float | None = None
    at_least: float | None = None
    places: tuple[str, ...] = ()

    @property
    def is_ok(self) -> bool:
        """Whether the target is met; a figure without one is."""
        return (self.at_most is None or self.value <= self.at_most) and (self.at_least is None or self.value >= self.at_least)

    def line(self) -> str:
        """Return name, value, target and verdict as one line of the table."""
        bounds = (("at most", self.at_most), ("at least", self.at_least))
        target = next((f"{word} {bound:g}" for word, bound in bounds if bound is not None), "")
        verdict = ("ok" if self.is_ok else "under" if self.at_least is not None else "over") if target else ""
        return f"{self.name:52}{self.value:>8g}   {target:14}{verdict}".rstrip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one document with every place")
    parser.add_argument("--verbose", action="store_true", help="print the places of what is over its target")
    parser.add_argument(
        "--no-steps", action="store_true", help="leave out the files of a training step, which take a run per task"
    )
    options = parser.parse_args(arguments)
    figures = measure(ROOT)
    if not options.no_steps:
        figures += [step_figure(task, bound) for task, bound in STEP_FILES.items()]
    if options.json:
        print(json.dumps([asdict(figure) | {"is_ok": figure.is_ok} for figure in figures], indent=1))
        return 0
    for figure in figures:
        print(figure.line())
        if options.verbose and not figure.is_ok:
            print("".join(f"    {place}\n" for place in figure.places), end="")
    return 0


def measure(root: Path) -> list[Figure]:
    """Return every figure that is read from files."""
    tracked = tracked_files(root)
    sources = [name for name in tracked if name.startswith("src/") and name.endswith(".py")]
    tests = [name for name in tracked if name.startswith("tests/") and name.endswith(".py")]
    graph = import_graph(root)
    folders = Counter(
        {folder: len(names) for folder, names in entries(name for name in tracked if name.startswith("src/")).items()}
    )
    largest = tuple(f"{count} {folder}" for folder, count in folders.most_common() if count > 15)
    texts = [(root / name).read_text(encoding="utf-8") for name in sources]
    lengths = sorted(length for text in texts for length in body_lengths(text))
    named = lines_with(root, "|".join(STEP_FILES), OUTSIDE)
    circles, single = import_circles(graph), single_importers(graph)
    readme = (root / "README.md").read_bytes()
    what = [place for name in tracked if name.endswith(".py") for place in what_docstrings(root, name)]
    return [
        Figure("lines outside tasks/ and data/ that name a task", len(named), 10, places=tuple(named)),
        Figure("entries of the largest folder of src", max(folders.values()), 15, places=largest),
        Figure("source files", len(sources), 300),
        Figure("modules whose only importer is a sibling", len(single), 40, places=tuple(single)),
        Figure("import circles, type checking included", len(circles), 0, places=tuple(" <-> ".join(one) for one in circles)),
        Figure("body lines of a function, median", median(lengths), at_least=6),
        Figure("body lines of a function, 90th percentile", lengths[int(0.9 * len(lengths))]),
        Figure("functions", len(lengths)),
        Figure("functions of one or two lines", sum(length <= 2 for length in lengths)),
        Figure("lines of src", line_count(root, sources)),
        Figure("lines of src that are a comment", sum(map(comment_lines, texts))),
        Figure("lines of tests", line_count(root, tests), 25_000),
        Figure("bytes of README.md", len(readme), 9 * 1024),
        Figure("numbers in README.md", len(re.findall(rb"\d+(?:\.\d+)?", re.sub(rb"(?s)```.*?```", b"", readme))), 40),
        Figure('docstrings that begin with "What"', len(what), 0, places=tuple(what)),
    ]  # fmt: skip


def tracked_files(root: Path) -> list[str]:
    """Return the paths that git tracks and that are there, below ``root``."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if name and (root / name).is_file()]


def lines_with(root: Path, words: str, paths: Sequence[str]) -> list[str]:
    """Return ``file:line:text`` of each tracked line that holds one of the words (``a|b``) as a whole word."""
    command = ["git", "grep", "-nwE", words, "--", *paths]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)  # status 1: there is none
    if done.returncode > 1:
        raise RuntimeError(done.stderr)
    return done.stdout.splitlines()


def entries(files: Iterable[str]) -> dict[str, set[str]]:
    """Return folder -> its files and folders, for the folders above these files."""
    found: dict[str, set[str]] = {}
    for name in files:
        path = Path(name)
        for entry, folder in zip((path, *path.parents), path.parents, strict=False):
            found.setdefault(folder.as_posix(), set()).add(entry.name)
    return {folder: names for folder, names in found.items() if folder != "."}


def import_graph(root: Path, package: str = PACKAGE) -> networkx.DiGraph:
    """Return importer -> imported over the modules of the package: every import, wherever in the file it stands.

    Run in a process of its own: grimp finds a package through the interpreter's path, and another copy may be imported here.
    """
    code = (
        "import grimp, json, sys\n"
        "graph = grimp.build_graph(sys.argv[1], cache_dir=None)\n"
        "print(json.dumps({name: sorted(graph.find_modules_directly_imported_by(name)) for name in sorted(graph.modules)}))"
    )
    command = [sys.executable, "-c", code, package]
    path = {"PYTHONPATH": str(root / "src"), "PATH": ""}
    done = subprocess.run(command, cwd=root, env=path, capture_output=True, text=True, check=True)
    return networkx.DiGraph(json.loads(done.stdout))


def single_importers(graph: networkx.DiGraph) -> list[str]:
    """Return the modules that exactly one module imports, which lies in the same folder."""
    importers = {name: list(graph.predecessors(name)) for name in graph}
    return sorted(name for name, by in importers.items() if len(by) == 1 and folder_of(by[0]) == folder_of(name))


def folder_of(module: str) -> str:
    """Return the package that holds a module."""
    return module.rpartition(".")[0]


def import_circles(graph: networkx.DiGraph) -> list[list[str]]:
    """Return the groups of modules of which each imports each other, through the others of the group."""
    return sorted(sorted(group) for group in networkx.strongly_connected_components(graph) if len(group) > 1)


def body_lengths(text: str) -> Iterator[int]:
    """Yield for each function the lines from its first statement after the docstring to its last line."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            yield body[-1].end_lineno - body[0].lineno + 1 if body else 0


def comment_lines(text: str) -> int:
    """Count the lines that hold nothing but a comment."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type == tokenize.COMMENT and token.line.lstrip().startswith("#") for token in tokens)


def line_count(root: Path, files: Iterable[str]) -> int:
    """Count the lines of files."""
    return sum(len((root / name).read_text(encoding="utf-8").splitlines()) for name in files)


def what_docstrings(root: Path, name: str) -> Iterator[str]:
    """Yield ``file:line`` of each docstring that begins with "What"."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse((root / name).read_text(encoding="utf-8"))):
        if isinstance(node, kinds) and (ast.get_docstring(node) or "").startswith("What"):
            yield f"{name}:{node.body[0].lineno}"


def step_figure(task: str, bound: int) -> Figure:
    """Run a task's smoke pipeline in an empty project and return the files that its widest training step executes."""
    sys.path.append(str(ROOT / "tests" / "frozen"))
    from same_numbers import copy_project, run_kedro

    with tempfile.TemporaryDirectory(prefix="house-") as folder:
        project, found = Path(folder) / "project", Path(folder) / "files.json"
        copy_project(None, project)
        script = str(Path(__file__).with_name("step_files.py"))
        done = run_kedro(project, "run", "--env", "smoke", "--pipelines", task, "--params", "seed=0", before=[script, str(found)])
        if done.returncode:
            raise RuntimeError(f"kedro run --pipelines {task} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        files = json.loads(found.read_text(encoding="utf-8"))
    return Figure(f"files that a training step executes, {task}", len(files), bound, places=tuple(files))


if __name__ == "__main__":
    sys.exit(main())
