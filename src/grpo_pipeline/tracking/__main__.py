"""``python -m grpo_pipeline.tracking``: open this project's MLflow store in a browser, wherever mlflow.yml says it is.

``python -m grpo_pipeline.tracking export --arm grpo --to <folder>`` writes a finished arm's model as MLflow loads and serves it.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from kedro.utils import find_kedro_project

from grpo_pipeline.tasks import TASKS
from grpo_pipeline.tasks.serving import serving_of
from grpo_pipeline.tracking.export import export
from grpo_pipeline.tracking.store_page import open_store


def main(arguments: Sequence[str] = ()) -> int:
    """Run the command of the command line; without a command, open the store."""
    options = parse_arguments(arguments)
    project = find_kedro_project(Path.cwd())
    if project is None:
        print(
            f"the current folder must lie in a Kedro project, got {Path.cwd()}; change the folder",
            file=sys.stderr,
        )
        return 2
    env = getattr(options, "env", None) or os.environ.get("KEDRO_ENV")
    return (
        export(project, options, env=env)
        if options.command == "export"
        else open_store(project, env=env, port=options.port)
    )


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; an invalid one ends the process with code 2 and the usage."""
    parser = argparse.ArgumentParser(prog="python -m grpo_pipeline.tracking", description=__doc__)
    parser.add_argument("--port", type=int, help="of the page; that of mlflow.yml if left out")
    commands = parser.add_subparsers(dest="command")
    exported = commands.add_parser(
        "export", help="write a finished arm's model as MLflow loads and serves it"
    )
    exported.add_argument(
        "--task",
        choices=[task for task in TASKS if serving_of(task) is not None],
        default=next(iter(TASKS)),
        help="of which task; %(default)s if left out",
    )
    exported.add_argument("--arm", required=True, help="whose newest model")
    exported.add_argument("--to", required=True, type=Path, help="folder to write; must not exist")
    exported.add_argument("--env", help="Kedro environment of the run; KEDRO_ENV if left out")
    return parser.parse_args(list(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
