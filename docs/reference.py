"""Write the pages of the site that are generated: pipelines, catalogue, errors, commands, words.

    python docs/reference.py pipelines      (prints one; the site has them all, see docs/mkdocs_hooks.py)

The page of parameters is generated, too, and committed: docs/parameters.py.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from grpo_pipeline.cli import cli  # noqa: E402
from grpo_pipeline.errors import OWN  # noqa: E402
from grpo_pipeline.pipeline_registry import PIPELINES, SHORT  # noqa: E402
from grpo_pipeline.pipelines.reporting.glossary import shared_terms  # noqa: E402
from grpo_pipeline.tasks import TASKS, find_task  # noqa: E402

PACKAGE = ROOT / "src" / "grpo_pipeline"
# What each pipeline of a task does; "" is the one of the task's own name.
WHAT = {
    "": "data, training of all arms, evaluation and page, from end to end",
    "data": "read, check and split the data; nothing is trained",
    "train": "train the arms on data that was made before",
    "evaluate": "evaluate the arms that were trained last, and write the page",
    "step": "data, and the first training step of each arm, node by node",
    "gradient_flow": "measure which part of the model each loss term teaches",
    "reward_audit": "score policies that need no training, to see whether the reward can be gamed",
    "compare": "train many arms with several seeds, and write one table",
    "cross_validate": "train and test on folds, so that every example is tested once",
    "predict": "score new examples with a trained model",
}
MODULES = {
    "grpo_pipeline.tracking": "serve the MLflow store of the project",
    "grpo_pipeline.migrate": "print an older configuration in today's form",
    "grpo_pipeline.pipelines.reporting.paper": "write table, figure and references of a result for a paper",
}
EXITS = {
    "0": "all nodes are done",
    "1": "an error: one sentence, or the traceback of a fault of the code",
    "130": "Ctrl-C; go on with `--params resume=auto`",
    "143": "SIGTERM; likewise",
}


def pages() -> dict[str, str]:
    """Write all generated pages: path below docs/ -> Markdown."""
    return {f"reference/{name}.md": write() for name, write in WRITERS.items()}


def table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    """Write a table in Markdown; a bar inside a cell is escaped."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def pipelines_page() -> str:
    """List the registered pipelines and what each does."""
    names = ("", *PIPELINES)
    rows = (
        (
            *(f"`{task}_{name}`" if name else f"`{task}`" for task in TASKS),
            WHAT[name],
        )
        for name in names
    )
    short = ", ".join(f"`{name}`" for name in SHORT)
    first = next(iter(TASKS))
    return (
        "# Pipelines\n\nStart one with `make run TASK=<name>`, or several with commas between them.\n\n"
        f"{table((*TASKS, 'what it does'), rows)}\n\n"
        f"`__default__` is `{first}`. The names {short} without a task mean those of `{first}`.\n"
    )


def catalogue_page() -> str:
    """List the data sets of conf/base by file: name, layer, what it is, where it lies."""
    parts = [
        "# Catalogue\n\n`<task>`, `<arm>` and the like stand for any name. What has no file lives in memory during a run.\n"
    ]
    files = (ROOT / "conf" / "base").rglob("catalog*.yml")
    for file in sorted(files, key=lambda file: (file.parent.name != "base", file)):
        rows = list(datasets(yaml.safe_load(file.read_text(encoding="utf-8"))))
        heading = "Every task" if file.parent.name == "base" else file.parent.name.capitalize()
        parts.append(f"## {heading}\n\n{table(('name', 'what', 'file'), iter(sorted(rows)))}\n")
    return "\n".join(parts)


def datasets(catalogue: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield name, description and file of each entry."""
    for name, entry in catalogue.items():
        if name.startswith("_") or not isinstance(entry, dict):
            continue
        viz = (entry.get("metadata") or {}).get("kedro-viz") or {}
        place = re.sub(
            r"\$\{[^}]*:(\w+)\}", r"<\1>", str(entry.get("filepath") or entry.get("path") or "")
        )
        cells = (name, str(viz.get("description", "")), place)
        said = [re.sub(r"\{(\w+)\}", r"<\1>", cell) for cell in cells]
        yield f"`{said[0]}`", said[1].replace("<", "&lt;"), f"`{said[2]}`" if said[2] else ""


def commands_page() -> str:
    """List the targets of make, the commands of grpo, and the modules that are run."""
    targets = re.findall(
        r"^([a-z-]+):[^#\n]*## (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    made = table(("command", "what it does"), ((f"`make {name}`", what) for name, what in targets))
    modules = table(
        ("module", "what it does"),
        ((f"`.venv/bin/python -m {name}`", what) for name, what in MODULES.items()),
    )
    exits = table(("exit code", "meaning"), ((f"`{code}`", what) for code, what in EXITS.items()))
    parts = [
        f"# Command line\n\n{made}\n\n## grpo\n\n`grpo` is `kedro` with the commands below.\n",
        *(grpo_command(name) for name in sorted(cli.commands)),
        f"## Modules\n\n{modules}\n\n## Exit codes\n\n{exits}\n",
    ]
    return "\n".join(parts)


def grpo_command(name: str) -> str:
    """Write the help of one command."""
    command = cli.commands[name]
    rows = (
        (
            ", ".join(f"`{option}`" for option in parameter.opts),
            getattr(parameter, "help", None) or "",
        )
        for parameter in command.params
    )
    first = (command.help or "").strip().partition("\n")[0].replace("\b", "")
    return f"### grpo {name}\n\n{first}\n\n{table(('argument or option', 'meaning'), rows)}\n"


def errors_page() -> str:
    """List every sentence with which the package refuses an input, by the room of the code that says it."""
    kinds = table(
        ("error", "module"),
        ((f"`{name}`", f"`{module}`") for module, _, name in (own.partition(":") for own in OWN)),
    )
    parts = [
        "# Errors\n\nAn error in the input is one sentence: what must be how, what was found, and what to do. "
        "`…` stands for a value of yours. A fault of the code keeps its traceback.\n\n"
        f"## Kinds\n\n`ValueError` and the errors of files, YAML and parameters; and these:\n\n{kinds}\n"
    ]
    for room, sentences in refusals().items():
        lines = "\n".join(f"- {sentence}" for sentence in sentences)
        parts.append(f"## {room}\n\n{lines}\n")
    return "\n".join(parts)


@cache
def refusals() -> dict[str, list[str]]:
    """Read the refusing sentences from the source: room -> sentences, in alphabetical order."""
    found: dict[str, set[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        room = " / ".join(parts[:2]) if len(parts) > 2 else parts[0]
        for text in strings(ast.parse(file.read_text(encoding="utf-8"))):
            if " must " in text and ", got " in text:
                found.setdefault(room, set()).add(" ".join(text.split()))
    return {room: sorted(sentences) for room, sentences in sorted(found.items())}


def strings(node: ast.AST) -> Iterator[str]:
    """Yield the strings of a piece of source, with … for each value in them."""
    if isinstance(node, ast.JoinedStr):
        parts = [
            "".join(strings(part)) if isinstance(part, ast.Constant) else "…"
            for part in node.values
        ]
        yield "".join(parts)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.value.replace("<", "&lt;").replace("*", "\\*")
    elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):  # a docstring
        for child in ast.iter_child_nodes(node):
            yield from strings(child)


def words_page() -> str:
    """List the terms that pages explain: those of every page, and those of each task."""
    parts = [f"# Words of the pages\n\n{terms_table(shared_terms())}\n"]
    for task in TASKS:
        if terms := find_task(task).words.terms:
            parts.append(f"## {task.capitalize()}\n\n{terms_table(terms)}\n")
    return "\n".join(parts)


def terms_table(terms: Mapping[str, str]) -> str:
    """Write terms and their sentences as a table."""
    return table(("word", "meaning"), ((f"**{word}**", meaning) for word, meaning in terms.items()))


def glossary() -> dict[str, str]:
    """Read the terms of the site: those of the pages, and those of docs/glossary.md."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    own = re.findall(r"^\| \*\*(.+?)\*\* \| (.+?) \|$", text, re.MULTILINE)
    return shared_terms() | dict(own)


WRITERS = {
    "pipelines": pipelines_page,
    "catalogue": catalogue_page,
    "errors": errors_page,
    "commands": commands_page,
    "words": words_page,
}

if __name__ == "__main__":
    print(WRITERS[sys.argv[1]]())
