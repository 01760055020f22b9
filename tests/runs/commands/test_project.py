"""`grpo init` makes a project out of the package alone, and the package that is built carries what it needs."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from grpo_pipeline.__main__ import main
from grpo_pipeline.cli import cli
from grpo_pipeline.runs.new_project import FILES, conf_folder

BUILD = "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"


def configuration(conf: Path) -> dict[str, bytes]:
    files = (path for path in conf.rglob("*") if path.is_file() and path.parent.name != "local")
    return {path.relative_to(conf).as_posix(): path.read_bytes() for path in files}


def test_an_empty_folder_becomes_a_project_with_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = CliRunner().invoke(cli, ["init", "mine"])
    assert made.exit_code == 0, made.output
    assert "Try it with: cd mine; grpo run --task attention --env smoke" in made.output
    assert configuration(tmp_path / "mine/conf") == configuration(conf_folder())
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {"conf", *FILES}


@pytest.mark.parametrize("name", ["conf", "pyproject.toml"])
def test_a_folder_that_is_a_project_already_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    made = CliRunner().invoke(cli, ["init", str(tmp_path)])
    assert f"must be an empty folder, got one with {name}; name another one: grpo init my_project" in made.output
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_without_the_extra_of_pipelines_the_command_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kedro.utils", None)
    with pytest.raises(SystemExit, match="must have the package's extra pipeline, got no kedro.utils"):
        main()


def test_old_parameters_are_printed_in_the_new_form(tmp_path: Path) -> None:
    (tmp_path / "old.yml").write_text("attention:\n  grpo:\n    algorithm: {name: grpo, kl_weight: 0.5}\n")
    done = CliRunner().invoke(cli, ["migrate", str(tmp_path / "old.yml")])
    assert done.exit_code == 0
    assert "kl:" in done.output
    assert "1 files change; copy what is printed into them" in done.output


def test_the_wheel_and_the_archive_of_sources_hold_code_pages_and_conf(root: Path, tmp_path: Path) -> None:
    """In a process of its own, six seconds: a build changes the folder and the arguments of its process."""
    ours = tmp_path / "project"
    for name in ("src", "conf"):
        shutil.copytree(root / name, ours / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(root / name, ours / name)
    (ours / "conf/local").mkdir(exist_ok=True)
    (ours / "conf/local/mlflow.yml").write_text("secret: 1\n")
    subprocess.run([sys.executable, "-c", BUILD], cwd=ours, capture_output=True, check=True)
    [wheel], [archive] = (ours / "dist").glob("*.whl"), (ours / "dist").glob("*.tar.gz")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {path.relative_to(ours / "src").as_posix() for path in (ours / "src/grpo_pipeline").rglob("*") if path.is_file()}
    conf = configuration(ours / "conf")
    assert packed == files | {f"grpo_pipeline/conf/{name}" for name in conf}
    with tarfile.open(archive) as opened:
        names = {member.name.partition("/")[2] for member in opened if member.isfile()}
    assert {f"src/{name}" for name in files} | {f"conf/{name}" for name in conf} | {"setup.py", "pyproject.toml"} <= names
    assert not [name for name in names if "local" in Path(name).parts]
