"""Write an environment for data of a user's own: each task that has a module ``new_data`` looks at the folder."""

import os
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import yaml

from grpo_pipeline.tasks import TASKS, find_task
from grpo_pipeline.tasks.new_data import Found, Hints, UnclearDataError

SHEET_EXAMPLES = 8
PACKED = (".gz", ".zip", ".tar", ".tgz", ".xz", ".bz2", ".zst", ".7z")
NAME = re.compile(r"[a-z][a-z0-9_]*")


def look(folder: Path, hints: Hints, *, task: str = "") -> Found:
    """Ask the tasks what a folder holds.

    Args:
        folder: the data; nothing is written into it.
        hints: what the user says.
        task: the only task to ask; "" asks all.

    Raises:
        UnclearDataError: if no task or several can read it, or a guess would be a gamble (says what to name).
    """
    if not folder.is_dir():
        raise UnclearDataError(f"the data must be a folder, got {folder}; correct the path")
    if task not in ("", *TASKS):
        raise UnclearDataError(
            f"--task must be one of {', '.join(TASKS)}, got {task!r}; correct it"
        )
    unclear, found = dict[str, str](), list[Found]()
    known = dict(_guessers(task))
    for name, module in known.items():
        try:
            guess = module.guess(folder, hints)
        except UnclearDataError as error:
            unclear[name] = str(error)
            continue
        if guess is not None:
            found.append(guess)
    if len(found) == 1:
        columns = known[found[0].task].COLUMNS
        if strange := sorted({*hints.columns} - {*columns}):
            raise UnclearDataError(
                f"--column must be of {', '.join(columns)}, got {', '.join(strange)}; correct the key before the ="
            )
        return found[0]
    if found:
        names = ", ".join(guess.task for guess in found)
        raise UnclearDataError(
            f"{folder} must be the data of one task, got {names}; name it: --task {found[0].task}"
        )
    if len({*unclear.values()}) > 1:
        begin = (
            f"several tasks might read {folder}; name yours with --task, and see what it asks for:"
        )
        asked = [f"{name}: {text}" for name, text in unclear.items()]
        raise UnclearDataError("\n".join([begin, *asked]))
    if unclear:
        raise UnclearDataError(next(iter(unclear.values())))
    forms = "; ".join(module.FORM for module in known.values())
    packed = sorted(path.name for path in folder.iterdir() if path.suffix.lower() in PACKED)
    remedy = f"; unpack {packed[0]}" if packed else ""
    raise UnclearDataError(f"{folder} must hold {forms}; got none of them{remedy}")


def write_environment(found: Found, folder: Path, conf: Path, name: str) -> list[Path]:
    """Write ``conf/<name>``: ``globals.yml``, ``<task>/parameters.yml`` and the files that a guess adds.

    Args:
        found: result of ``look``.
        folder: the data.
        conf: the project's ``conf``.
        name: of the environment, lower-case letters, digits and ``_``.

    Returns:
        The files, which did not exist.

    Raises:
        UnclearDataError: if the name is none, or the environment is there.
    """
    if not NAME.fullmatch(name):
        raise UnclearDataError(
            f"the name must be lower-case letters, digits and _, got {name!r}; name it: --name my_data"
        )
    home = conf / name
    if home.exists():
        raise UnclearDataError(
            f"{home} must not exist yet, got a folder; take another --name, or delete it"
        )
    root, here = _relative(folder, conf.parent), _relative(home, folder)
    values = {
        f"{found.task}_folder": f"{found.task}_{name}",
        f"{found.task}_root": root,
        **{key: value.replace("{here}", here) for key, value in found.globals.items()},
    }
    heads = (
        f"# Results go to data/*/{found.task}_{name}; paths are relative to the project.\n",
        "# What is not named here is as in conf/base. Every line is a guess: correct what is wrong.\n",
    )
    texts = {
        "globals.yml": heads[0] + yaml.safe_dump(values, sort_keys=False, width=10_000),
        f"{found.task}/parameters.yml": heads[1] + found.parameters,
        **found.files,
    }
    for path, text in texts.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text, encoding="utf-8")
    return [home / path for path in texts]


def write_sheet(examples: Any, task: str, folder: Path) -> Path | None:
    """Draw examples of each class, images with their masks; returns the file, None for a task that draws none.

    Args:
        examples: ``<task>.examples``.
        task: name of the task.
        folder: for the results of the environment.
    """
    from grpo_pipeline.pipelines.reporting.data_section import one_of_each

    spec = find_task(task)
    table = getattr(examples, "table", None)
    if table is None or not spec.one_of_each:
        return None
    shown = resolve_name(spec.one_of_each)(
        examples, one_of_each(table, spec.classes, most=SHEET_EXAMPLES)
    )
    if not isinstance(shown, bytes):
        return None
    sheet = folder / ("examples.png" if shown.startswith(b"\x89PNG") else "examples.svg")
    folder.mkdir(parents=True, exist_ok=True)
    sheet.write_bytes(shown)
    return sheet


def _guessers(task: str) -> Iterator[tuple[str, Any]]:
    for name, spec in TASKS.items():
        module = f"{spec.rpartition('.')[0]}.new_data"
        if task in ("", name) and find_spec(module):
            yield name, import_module(module)


def _relative(path: Path, start: Path) -> str:
    return Path(os.path.relpath(path.resolve(), start.resolve())).as_posix()
