"""Set up and look at a project: ``grpo init``, ``ui`` and ``migrate``."""

import os
import sys
from pathlib import Path

import click

from grpo_pipeline.runs.commands.options import find_project, kedro_option


@click.command()
@click.argument("folder", default=".", type=click.Path(path_type=Path))
def init(folder: Path) -> None:
    """Make a project in an empty folder: conf/, with all parameters, and a pyproject.toml.

    \b
    grpo init              # here
    grpo init my_project && cd my_project && grpo run --task attention --env smoke
    """  # noqa: D301
    from grpo_pipeline.runs.new_project import make_project

    try:
        written = make_project(folder)
    except OSError as error:
        raise click.ClickException(str(error)) from error
    for path in written:
        click.echo(f"wrote {folder / path}")
    inside = "" if folder.resolve() == Path.cwd() else f"cd {folder}; "
    click.echo(f"Try it with: {inside}grpo run --task attention --env smoke")


@click.command()
@click.argument("what", default="runs", type=click.Choice(["runs", "graph"]))
@click.option("--port", type=int, help="Port; that of mlflow.yml for runs, 4141 for the graph.")
@kedro_option("env")
def ui(what: str, port: int | None, env: str | None) -> None:
    """Open the runs (MLflow) or the graph (Kedro-Viz) in a browser, until Ctrl-C.

    \b
    grpo ui                # runs, metrics and models
    grpo ui graph --port 4142
    """  # noqa: D301
    project = find_project()
    if what == "runs":
        from grpo_pipeline.tracking.store_page import open_store

        sys.exit(open_store(project, env=env or os.environ.get("KEDRO_ENV"), port=port))
    from grpo_pipeline.tracking.store_page import serve

    flags = [*(["--env", env] if env else []), *(["--port", str(port)] if port else [])]
    sys.exit(serve([sys.executable, "-m", "kedro", "viz", "run", *flags]))


@click.command()
@click.argument("places", nargs=-1, required=True, type=click.Path(path_type=Path))
def migrate(places: tuple[Path, ...]) -> None:
    """Print the parameters of an older version in the form of this one; no number changes, and no file is written.

    \b
    grpo migrate conf/mine
    """  # noqa: D301
    from grpo_pipeline.migrate import main

    sys.exit(main([str(place) for place in places]))
