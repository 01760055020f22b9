"""Use a trained model: ``grpo predict``, ``sample`` and ``serve``."""

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from kedro.io import DatasetError

from grpo_pipeline.core.storage.replacement import replacing_folder
from grpo_pipeline.core.storage.tensor_folder import CorruptFolderError
from grpo_pipeline.runs.commands.options import (
    find_project,
    kedro_option,
    key_values,
    open_session,
    task_option,
)

if TYPE_CHECKING:
    import pandas as pd

    from grpo_pipeline.tasks.loaded import LoadedModel

MODEL_HELP = (
    "Folder of an arm or of its model, name of an arm (grpo, grpo.best), models:/NAME@champion, or the id of an arm's run in "
    "MLflow; without it, the last run's <task>.predict.arm."
)
EXPECTED = (ValueError, OSError, DatasetError, CorruptFolderError, ModuleNotFoundError)
model_option = click.option("--model", default="", help=MODEL_HELP)
seed_option = click.option("--seed", default=0, show_default=True, help="Seed of what is drawn.")


@click.command()
@task_option()
@model_option
@click.argument("rows", type=click.Path(path_type=Path, exists=True))
@click.option(
    "--to",
    required=True,
    type=click.Path(path_type=Path),
    help="File to write, .jsonl or .csv; or a folder, of a task whose predictions are several files.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="KEY=COLUMN",
    help="Column of ROWS that holds a key of the model: question=prompt.",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="KEY=NUMBER",
    help="Option of the task: samples=4, sets=16, abstain=1.",
)
@seed_option
@kedro_option("env")
def predict(
    task: str,
    model: str,
    rows: Path,
    to: Path,
    columns: tuple[str, ...],
    options: tuple[str, ...],
    seed: int,
    env: str | None,
) -> None:
    """Answer each row of a file with a trained model; a command that was killed goes on.

    ROWS is a .csv file or JSON lines, with paths relative to the file; or a folder of images. <TO>.refused.csv lists the rows
    that are refused, with the reason.

    \b
    grpo predict --task dialogue questions.jsonl --to answers.jsonl --option samples=4
    grpo predict --task attention --model data/06_models/attention/grpo images.csv --to scores.csv
    grpo predict --task attention images.csv --to scored       # scores, points, heatmaps and a sheet, in a folder
    grpo predict --task molecules sizes.csv --to drawn.csv     # columns size, count, and the wanted properties
    """  # noqa: D301
    given = _numbers(options) | {"seed": seed}
    renamed = {
        column: key for key, column in key_values(columns, "--column KEY=COLUMN", "question=prompt")
    }
    rows, to = rows.absolute(), to.absolute()
    if not to.suffix:
        _predict_folder(task, model, rows, to, given, renamed, env)
        return
    with _chosen(task, model, env) as loaded, _sentences():
        table = _read(loaded.task, rows)
        if lost := [column for column in renamed if column not in table]:
            raise click.UsageError(
                f"--column must name a column of {rows}, got {lost[0]!r}; there are {', '.join(map(str, table))}"
            )
        table = table.rename(columns=renamed)
        if not loaded.can_read(table):
            needed = loaded.required
            raise click.UsageError(
                f"{rows} must have a column {needed}, got {', '.join(map(str, table))}; name it: --column {needed}=<column>"
            )
        with contextlib.chdir(rows if rows.is_dir() else rows.parent):
            _write(loaded, table, to, given, keep_columns=True)


@click.command()
@task_option()
@model_option
@click.option("-n", "number", required=True, type=click.IntRange(1), help="Samples in all.")
@click.option(
    "--size",
    required=True,
    metavar="FROM:TO",
    help="Sizes, both ends included, over which they are spread evenly; or one size.",
)
@click.option(
    "--to",
    required=True,
    type=click.Path(path_type=Path),
    help="File to write: .smi has a valid sample on each line, .csv and .jsonl have all.",
)
@seed_option
@kedro_option("env")
def sample(
    task: str, model: str, number: int, size: str, to: Path, seed: int, env: str | None
) -> None:
    """Draw samples of given sizes with a trained model; a command that was killed goes on.

    Of a file of lines, <TO>.refused.csv has what is not valid, with the reason. A model that needs wanted properties is asked by
    grpo predict.

    \b
    grpo sample --task molecules -n 10000 --size 20:30 --to drawn.smi
    grpo sample --task molecules --model models:/grpo_pipeline.molecules@champion -n 100 --size 9 --to drawn.csv
    """  # noqa: D301
    sizes = _sizes(size)
    with _chosen(task, model, env) as loaded, _sentences():
        if loaded.serving.draws is None:
            raise click.UsageError(
                f"--task must be one whose models draw samples of a size, got {task}; answer rows: grpo predict --task {task}"
            )
        table = loaded.serving.draws(number, sizes)
        _write(loaded, table, to.absolute(), {"seed": seed}, keep_columns=False)


@click.command()
@task_option()
@model_option
@click.option("--port", default=5001, show_default=True, help="Port on this machine.")
@kedro_option("env")
def serve(task: str, model: str, port: int, env: str | None) -> None:
    """Answer requests over HTTP with MLflow's scoring server until Ctrl-C.

    \b
    grpo serve --task dialogue --port 5001
    curl -H 'Content-Type: application/json' http://127.0.0.1:5001/invocations \
      -d '{"dataframe_records": [{"question": "persona: i like tea . context: hello"}]}'
    """  # noqa: D301
    with tempfile.TemporaryDirectory(prefix="grpo-served-") as scratch, _sentences():
        folder = _folder_of(task, model, env, Path(scratch))
        from grpo_pipeline.tracking.served import example_row, save_served
        from grpo_pipeline.tracking.store_page import serve as serve_command

        save_served(folder, Path(scratch) / "served")
        example = example_row(folder)
        # MLflow starts its server by name, and this environment need not be activated.
        os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        url = f"http://127.0.0.1:{port}/invocations"
        click.echo(f"{url} answers requests; Ctrl-C ends it. Ask it, in another shell:")
        asked = json.dumps({"dataframe_records": [example]}, ensure_ascii=False)
        click.echo(f"  curl -H 'Content-Type: application/json' {url} -d '{asked}'")
        served = ["models", "serve", "-m", f"{scratch}/served", "--env-manager", "local"]
        sys.exit(serve_command([sys.executable, "-m", "mlflow", *served, "--port", str(port)]))


def _write(
    loaded: "LoadedModel",
    table: "pd.DataFrame",
    to: Path,
    options: dict[str, int],
    *,
    keep_columns: bool,
) -> None:
    from grpo_pipeline.runs.progress import progress
    from grpo_pipeline.tasks.answer_file import refused_file, write_answers

    with progress(len(table), "answer rows") as shown:
        last = 0

        def tell(rows: int) -> None:
            nonlocal last
            shown.update(rows - last)
            last = rows

        done = write_answers(
            loaded, table, to, options=options, keep_columns=keep_columns, tell=tell
        )
    click.echo(f"{done.written} answers are in {to}")
    if done.refused:
        click.echo(f"{done.refused} are refused, with the reason in {refused_file(to)}")


def _predict_folder(
    task: str,
    model: str,
    rows: Path,
    to: Path,
    options: dict[str, int],
    renamed: dict[str, str],
    env: str | None,
) -> None:
    """Run the pipeline ``<task>_predict`` on the rows, and copy its folder of results."""
    from grpo_pipeline.tasks import find_task

    describe: Callable[..., dict[str, Any]] | None = getattr(
        find_task(task).wiring(), "prediction_params", None
    )
    if describe is None:
        raise click.UsageError(
            f"--to must end in .jsonl or .csv for the task {task}, got {to.name}; correct the name"
        )
    find_project()
    if to.exists():
        raise click.UsageError(f"--to must not exist yet, got {to}; choose another, or delete it")
    with tempfile.TemporaryDirectory(prefix="grpo-model-") as scratch, _sentences():
        root, table = rows.parent, rows
        if rows.is_dir():
            root, table = rows, Path(scratch) / "rows.csv"
            _read(task, rows).to_csv(table, index=False)
        parameters = describe(root, table, options, renamed)
        if model:
            parameters["predict"]["arm"] = str(_folder_of(task, model, env, Path(scratch)))
        with open_session(env, {task: parameters}) as session:
            session.run(pipeline_names=[f"{task}_predict"])
            report = session.read_context().catalog.get(f"{task}.predict.report")
        with replacing_folder(to) as partial:
            shutil.copytree(Path(report._filepath).parent, partial, dirs_exist_ok=True)
    click.echo(f"The results are in {to}")


def _read(task: str, rows: Path) -> "pd.DataFrame":
    """Read a table, or list the files of a folder that are rows by themselves."""
    import pandas as pd

    from grpo_pipeline.datasets.prompts import PromptsDataset
    from grpo_pipeline.tasks.serving import serving_of

    if not rows.is_dir():
        return PromptsDataset(filepath=str(rows), parameter="ROWS").load()
    serving = serving_of(task)
    for column, endings in (serving.files if serving else {}).items():
        paths = [path for path in rows.rglob("*") if path.name.lower().endswith(tuple(endings))]
        if paths:
            return pd.DataFrame({column: sorted(p.relative_to(rows).as_posix() for p in paths)})
    raise click.UsageError(
        f"ROWS must be a file, or a folder of images for a task that reads them, got {rows}; name a .csv or .jsonl file"
    )


@contextlib.contextmanager
def _chosen(task: str, model: str, env: str | None) -> Iterator["LoadedModel"]:
    """Load the model that the user names."""
    with tempfile.TemporaryDirectory(prefix="grpo-model-") as scratch:
        with _sentences():
            from grpo_pipeline.tasks.loaded import load

            loaded = load(_folder_of(task, model, env, Path(scratch)))
        if loaded.task != task:
            raise click.UsageError(
                f"--task must be that of the model, {loaded.task}, got {task}; correct it"
            )
        yield loaded


def _folder_of(task: str, model: str, env: str | None, scratch: Path) -> Path:
    """Find the folder of a model; one that is named by its path needs no project."""
    from grpo_pipeline.tasks.trained_arms import model_in

    if Path(model).is_dir() and model:
        return model_in(Path(model).absolute())
    from grpo_pipeline.tracking.model_address import model_folder

    env = env or os.environ.get("KEDRO_ENV")
    return model_folder(find_project(), task, model, env=env, scratch=scratch)


@contextlib.contextmanager
def _sentences() -> Iterator[None]:
    """Show an error about the user's input as its sentence."""
    try:
        yield
    except EXPECTED as error:
        raise click.ClickException(str(error)) from error


def _numbers(texts: Sequence[str]) -> dict[str, int]:
    pairs = key_values(texts, "--option KEY=NUMBER", "samples=4")
    if wrong := [value for _, value in pairs if not value.isdecimal()]:
        raise click.UsageError(
            f"--option must be KEY=NUMBER, got {wrong[0]!r}; write 1 for yes and 0 for no"
        )
    return {key: int(value) for key, value in pairs}


def _sizes(text: str) -> range:
    first, _, last = text.partition(":")
    try:
        sizes = range(int(first), int(last or first) + 1)
    except ValueError:
        sizes = range(0)
    if not sizes or sizes[0] < 1:
        raise click.UsageError(
            f"--size must be FROM:TO or a number, got {text!r}; write 20:30, say"
        )
    return sizes
