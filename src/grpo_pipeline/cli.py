"""Commands of this project beside those of Kedro; ``grpo`` and ``kedro`` have both."""

import click
from kedro.framework.cli.utils import LazyGroup

COMMANDS = {
    **dict.fromkeys(("run", "check", "compare", "report"), "pipelines"),
    **dict.fromkeys(("predict", "sample", "serve"), "models"),
    **dict.fromkeys(("init", "ui", "migrate"), "project"),
    "new-data": "new_data",
}
"""Name of a command -> its module below ``runs.commands``."""


@click.group(
    name="grpo_pipeline",
    cls=LazyGroup,
    lazy_subcommands={
        name: f"grpo_pipeline.runs.commands.{module}.{name.replace('-', '_')}"
        for name, module in COMMANDS.items()
    },
)
def cli() -> None:
    """Commands of this project."""
