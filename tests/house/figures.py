"""Print how the code is built, in figures, each beside its target.

    python tests/house/figures.py [--json] [--verbose]      (or: make house)

They come from the files that git tracks, and from one step of a toy task. Exit status: 0, also where a target is missed.
"""

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import networkx

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "grpo_pipeline"
TASKS = ("attention", "dialogue", "molecules")
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
    options = parser.parse_args(arguments)
    figures = measure(ROOT)
    figures += step_figures()
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
    texts = [(root / name).read_text(encoding="utf-8") for name in sources]
    named = lines_with(root, "|".join(TASKS), OUTSIDE)
    circles = import_circles(import_graph(root))
    rows = re.findall(r"(?m)^\| `", (root / "docs/parameters.md").read_text(encoding="utf-8"))
    checks = [name for text in texts for name in re.findall(r"def (_?(?:check|refuse)\w*)", text)]
    readme = (root / "README.md").read_bytes()
    what = [place for name in tracked if name.endswith(".py") for place in what_docstrings(root, name)]
    return [
        Figure("lines outside tasks/ and data/ that name a task", len(named), 10, places=tuple(named)),
        Figure("import circles, type checking included", len(circles), 0, places=tuple(" <-> ".join(one) for one in circles)),
        Figure("source files", len(sources)),
        Figure("lines of src", line_count(root, sources), 52_000),
        Figure("tokens of src", sum(map(token_count, texts)), 290_000),
        Figure("rows of docs/parameters.md", len(rows), 250),
        Figure("functions named check or refuse", len(checks), 60),
        Figure("lines of src that are a comment", sum(map(comment_lines, texts))),
        Figure("lines of tests", line_count(root, tests), 25_000),
        Figure("bytes of README.md", len(readme), 7 * 1024),
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


def import_circles(graph: networkx.DiGraph) -> list[list[str]]:
    """Return the groups of modules of which each imports each other, through the others of the group."""
    return sorted(sorted(group) for group in networkx.strongly_connected_components(graph) if len(group) > 1)


def comment_lines(text: str) -> int:
    """Count the lines that hold nothing but a comment."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type == tokenize.COMMENT and token.line.lstrip().startswith("#") for token in tokens)


def token_count(text: str) -> int:
    """Count names, operators, numbers and strings."""
    kinds = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
    return sum(token.type in kinds for token in tokenize.generate_tokens(io.StringIO(text).readline))


def line_count(root: Path, files: Iterable[str]) -> int:
    """Count the lines of files."""
    return sum(len((root / name).read_text(encoding="utf-8").splitlines()) for name in files)


def what_docstrings(root: Path, name: str) -> Iterator[str]:
    """Yield ``file:line`` of each docstring that begins with "What"."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse((root / name).read_text(encoding="utf-8"))):
        if isinstance(node, kinds) and (ast.get_docstring(node) or "").startswith("What"):
            yield f"{name}:{node.body[0].lineno}"


def step_figures() -> list[Figure]:
    """Take two steps of a toy task, and count what the second one runs of this package, a report of gradients included."""
    sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "src")]
    from toy_step import functions_of_a_step

    found = []
    for arm, at_most in (("supervised", None), ("grpo", 50)):
        ran = functions_of_a_step(arm)
        places = tuple(f"{lines} {name}" for name, lines in sorted(ran.items(), key=lambda one: -one[1]))
        found.append(Figure(f"functions that a toy step of {arm} runs", len(ran), at_most, places=places))
        found.append(Figure(f"lines of their bodies, {arm}", sum(ran.values()), at_most and 400, places=places))
    return found


if __name__ == "__main__":
    sys.exit(main())
