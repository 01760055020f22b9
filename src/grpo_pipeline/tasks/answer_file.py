"""Write the answers to many rows into a file, a few rows at a time; a command that was killed goes on where it stopped."""

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd

from grpo_pipeline.core.storage.content_digest import content_digest
from grpo_pipeline.core.storage.replacement import replace_file
from grpo_pipeline.tasks.loaded import AT_ONCE, LoadedModel

TABLES = (".csv", ".jsonl")


@dataclass(frozen=True)
class Progress:
    """How far a file is; stored beside it while it is written.

    Attributes:
        key: model, rows and options that the answers follow from.
        rows: rows that are done.
        written: answers in the file.
        refused: rows and answers in the file of refusals.
        bytes: length of the file.
        refused_bytes: length of the file of refusals.
    """

    key: str
    rows: int = 0
    written: int = 0
    refused: int = 0
    bytes: int = 0
    refused_bytes: int = 0


class TargetError(ValueError):
    """The file cannot be written as the user asks; the text says what to do."""


def write_answers(
    model: LoadedModel,
    table: pd.DataFrame,
    target: Path,
    *,
    options: Mapping[str, int | bool],
    keep_columns: bool = True,
    tell: Callable[[int], None] = lambda rows: None,
) -> Progress:
    """Answer every row of a table into a file.

    ``<target>.part`` grows and takes the name of the target when it is complete. ``<target>.refused.csv`` has a row for each row
    or answer that is refused, with the reason; without one there is no such file.

    Args:
        model: the model.
        table: the rows, numbered from 0.
        target: ``.jsonl`` or ``.csv``, a row for each answer; any other ending: a line for each answer that has one
            (``Serving.line``).
        options: those of the task.
        keep_columns: whether an answer has the columns of its row, too.
        tell: is told the number of rows that are done.

    Raises:
        TargetError: if the target is there, or belongs to another command, or the task has no answers of one line.
        ValueError: if an option is unknown, or a column is missing.
    """
    is_lines = target.suffix.lower() not in TABLES
    if is_lines and not model.serving.line:
        raise TargetError(
            f"--to must end in {' or '.join(TABLES)} for the task {model.task}, got {target.name}; correct the name"
        )
    if target.exists():
        raise TargetError(
            f"--to must not exist yet, got {target}; choose another name, or delete it"
        )
    part, refusals, state = _beside(target, "part"), _beside(target, "refused"), _state(target)
    done = _begin(state, part, refusals, key=_key(model, table, options, target.suffix))
    with part.open("ab") as answers, refusals.open("ab") as refused:
        for start in range(done.rows, len(table), AT_ONCE):
            rows = table.iloc[start : start + AT_ONCE]
            found = model.answer(rows, options)
            good, bad = _split(model, rows, found.answers, found.refused, is_lines=is_lines)
            if keep_columns and len(good) and not is_lines:
                good = _with_columns(rows, good, found.refused)
            text = _lines(good, model.serving.line) if is_lines else _text(good, target, done)
            _append(answers, text)
            _append(refused, bad.to_csv(index=False, header=done.refused == 0) if len(bad) else "")
            done = replace(
                done,
                rows=min(start + AT_ONCE, len(table)),
                written=done.written + len(good),
                refused=done.refused + len(bad),
                bytes=answers.tell(),
                refused_bytes=refused.tell(),
            )
            replace_file(state, json.dumps(asdict(done)).encode())
            tell(done.rows)
    if done.refused:
        refusals.replace(refused_file(target))
    else:
        refusals.unlink()
    part.replace(target)
    state.unlink(missing_ok=True)
    return done


def refused_file(target: Path) -> Path:
    """Name the file of what was refused."""
    return target.with_name(f"{target.name}.refused.csv")


def _beside(target: Path, ending: str) -> Path:
    return target.with_name(f"{target.name}.{ending}")


def _state(target: Path) -> Path:
    return target.with_name(f"{target.name}.part.json")


def _key(
    model: LoadedModel, table: pd.DataFrame, options: Mapping[str, int | bool], suffix: str
) -> str:
    rows = table.to_json(orient="split", default_handler=str)
    told = [content_digest(model.folder), rows, model.options(options), suffix]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def _begin(state: Path, part: Path, refusals: Path, *, key: str) -> Progress:
    """Read how far an earlier command came, and cut off what it had not completed."""
    if not state.is_file():
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(b"")
        refusals.write_bytes(b"")
        return Progress(key)
    done = Progress(**json.loads(state.read_text(encoding="utf-8")))
    if done.key != key:
        raise TargetError(
            f"{part} must be of the same model, rows and options, got a file of others that was not completed; delete "
            f"{state.name}, or choose another --to"
        )
    os.truncate(part, done.bytes)
    os.truncate(refusals, done.refused_bytes)
    return done


def _split(
    model: LoadedModel,
    rows: pd.DataFrame,
    answers: pd.DataFrame,
    refused: Mapping[int, str],
    *,
    is_lines: bool,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Separate answers from rows, and in a file of lines from answers, that are refused; those have a reason."""
    bad = pd.DataFrame([{"row": row, "reason": reason} for row, reason in refused.items()])
    serving = model.serving
    if not is_lines:
        return answers, bad
    told = [column.name for column in serving.outputs(model.config)]
    kept = [name for name in told if name not in (serving.line, serving.reason)]
    if answers.empty:
        return answers, bad.reindex(columns=[*kept, "reason"])
    is_none = answers[serving.line].astype(str) == ""
    lost = answers[is_none]
    return answers[~is_none], pd.concat([lost[kept].assign(reason=lost[serving.reason]), bad])


def _with_columns(
    rows: pd.DataFrame, answers: pd.DataFrame, refused: Mapping[int, str]
) -> pd.DataFrame:
    """Put the columns of its row before each answer; an answer's own column counts where both have it."""
    is_answered = ~rows.index.isin(list(refused))
    asked = rows.loc[answers["row"].astype(int)] if "row" in answers else rows[is_answered]
    own = [name for name in asked.columns if name not in answers.columns]
    return pd.concat([asked[own].reset_index(drop=True), answers.reset_index(drop=True)], axis=1)


def _text(answers: pd.DataFrame, target: Path, done: Progress) -> str:
    if answers.empty:
        return ""
    plain = [
        {name: _plain(cell) for name, cell in row.items()} for row in answers.to_dict("records")
    ]
    if target.suffix.lower() == ".jsonl":
        return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in plain)
    cells = [
        {n: json.dumps(c) if isinstance(c, list | dict) else c for n, c in row.items()}
        for row in plain
    ]
    return pd.DataFrame(cells, dtype=object).to_csv(index=False, header=done.written == 0)


def _lines(answers: pd.DataFrame, column: str) -> str:
    return "".join(f"{text}\n" for text in answers[column]) if len(answers) else ""


def _plain(cell: Any) -> Any:
    """Return a cell as JSON knows it: no type of NumPy, and null for NaN."""
    if isinstance(cell, np.generic):
        cell = cell.item()
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


def _append(file: IO[bytes], text: str) -> None:
    file.write(text.encode())
    file.flush()
    os.fsync(file.fileno())
