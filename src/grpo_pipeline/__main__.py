"""Run the command line: ``python -m grpo_pipeline`` and ``grpo`` are ``kedro`` with the commands of ``cli.py``."""

import os
from pathlib import Path


def main() -> None:
    """Run the command; outside of a project there are those of ``cli.py`` alone, such as ``init``.

    Raises:
        SystemExit: with code 1 if Kedro is not installed.
    """
    # A stranger's first command comes before any settings are read.
    os.environ.setdefault("DO_NOT_TRACK", "1")
    try:
        from kedro.utils import find_kedro_project
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"error: grpo must have the package's extra pipeline, got no {error.name}; install the wheel with its extra pipeline"
        ) from error
    if find_kedro_project(Path.cwd()):
        from kedro.framework.cli.cli import main as kedro_main

        kedro_main()
    else:
        from grpo_pipeline.runs.new_project import conf_folder

        # Kedro looks for it in the current folder, and says on every command that it has found none.
        os.environ.setdefault("KEDRO_LOGGING_CONFIG", str(conf_folder() / "logging.yml"))
        from grpo_pipeline.cli import cli

        cli(prog_name="grpo")


if __name__ == "__main__":
    main()
