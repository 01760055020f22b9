"""Build the package with a copy of ``conf/``, which ``grpo init`` puts into an empty folder; all else is in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConf(build_py):
    """Build the Python files, and copy the configuration beside them; a project that is developed in reads its own."""

    def run(self) -> None:
        """Copy ``conf/`` without the settings of this machine."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "grpo_pipeline" / "conf"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree("conf", target, ignore=shutil.ignore_patterns("local", "__pycache__"))


setup(cmdclass={"build_py": BuildWithConf})
