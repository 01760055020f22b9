"""Describe data of a user's own: ``grpo new-data``."""

from pathlib import Path

import click

from grpo_pipeline.new_data import look, write_environment, write_sheet
from grpo_pipeline.runs.commands.options import find_project, key_values, open_session
from grpo_pipeline.tasks.new_data import Hints, UnclearDataError


@click.command("new-data")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--name", default="", help="Name of the environment; that of the folder by default.")
@click.option("--task", default="", help="Task that reads it; found by the files by default.")
@click.option(
    "--table",
    default="",
    help="File below the folder with a row per example, if there are several; FOLDER may be that file.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="KEY=COLUMN",
    help="Column of a key: label=diagnosis, patient_id=subject, prompt=q.",
)
@click.option(
    "--positive", multiple=True, metavar="VALUE", help="Value of the label that counts as positive."
)
@click.option("--no-run", is_flag=True, help="Write the environment, and do not read the data.")
def new_data(
    folder: Path,
    name: str,
    task: str,
    table: str,
    columns: tuple[str, ...],
    positive: tuple[str, ...],
    no_run: bool,
) -> None:
    """Describe data of your own in conf/NAME, and read it once.

    \b
    grpo new-data ../clinic --positive malignant      # images with a CSV file, or a folder per class
    grpo new-data ../questions --column answers=gold  # JSON lines, a CSV, a Parquet file, a saved data set
    grpo new-data ../library --name zinc_like         # SMILES, a CSV or an SD file
    """  # noqa: D301
    project = find_project()
    named = dict(key_values(columns, "--column KEY=COLUMN", "label=diagnosis"))
    name = name or folder.resolve().stem.lower().replace("-", "_").replace(" ", "_")
    if folder.is_file():  # the table itself
        folder, table = folder.parent, folder.name
    hints = Hints(table, named, positive)
    try:
        found = look(folder, hints, task=task)
        written = write_environment(found, folder, project / "conf", name)
    except (UnclearDataError, ModuleNotFoundError) as error:
        raise click.ClickException(str(error)) from error
    for note in found.notes:
        click.echo(f"- {note}")
    for path in written:
        click.echo(f"wrote {path.relative_to(project)}")
    if not no_run:
        _read_once(name, found.task)
    click.echo(f"Train with: grpo run --task {found.task} --env {name}")


def _read_once(name: str, task: str) -> None:
    """Run the data stage of the new environment, which prints what it has read, by split; and draw a few of the examples."""
    with open_session(name) as session:
        session.run(pipeline_names=[f"{task}_data"])
        context = session.read_context()
        folder = context.config_loader["globals"].get("data", "data")
        results = context.project_path / folder / "08_reporting" / f"{task}_{name}"
        sheet = write_sheet(context.catalog.load(f"{task}.examples"), task, results)
    if sheet is not None:
        click.echo(f"Look at {sheet}: a few examples of each class, as the run sees them")
