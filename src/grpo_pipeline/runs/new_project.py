"""Make a project in an empty folder from the configuration that the package carries."""

import os
import shutil
from pathlib import Path

from kedro import __version__

PYPROJECT = f"""# A Kedro project whose code is the installed package grpo_pipeline; conf/ has its parameters.
[tool.kedro]
package_name = "grpo_pipeline"
project_name = "grpo_pipeline"
kedro_init_version = "{__version__}"
source_dir = "."  # modules of your own, such as a reward's, are found here
"""
FILES = {
    "pyproject.toml": PYPROJECT,
    ".telemetry": "consent: false\n",
    ".gitignore": "data/\nconf/local/\nmlflow.db*\nmlruns/\n.viz/\n",
}
PACKAGE = Path(__file__).resolve().parents[1]


def conf_folder() -> Path:
    """Find the configuration: in an installed package, else in the project that the package is developed in."""
    packed = PACKAGE / "conf"
    return packed if packed.is_dir() else PACKAGE.parents[1] / "conf"


def make_project(folder: Path) -> list[Path]:
    """Copy the configuration into a folder, with the files that make it a project.

    Args:
        folder: is made where it is missing.

    Returns:
        What was written, relative to the folder.

    Raises:
        FileExistsError: if the folder holds one of these files already.
    """
    for name in ("conf", *FILES):
        if (folder / name).exists():
            raise FileExistsError(
                f"{folder.resolve()} must be an empty folder, got one with {name}; name another one: grpo init my_project"
            )
    shutil.copytree(
        conf_folder(), folder / "conf", ignore=lambda here, names: _local(Path(here), names)
    )
    (folder / "conf" / "local").mkdir(exist_ok=True)
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [Path("conf"), *map(Path, FILES)]


def _local(here: Path, names: list[str]) -> list[str]:
    """Leave out the settings of a machine, and caches."""
    return [
        n
        for n in names
        if n == "__pycache__" or (os.path.basename(here) == "conf" and n == "local")
    ]
