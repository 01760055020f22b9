"""The container and the templates name what there is; nothing is built here (hadolint finds no fault in the Dockerfile)."""

import json
import re
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def instructions() -> list[tuple[str, str]]:
    """Read the Dockerfile: instruction and arguments, a line that goes on joined."""
    text = re.sub(r"^#.*\n", "", re.sub(r"\\\n\s*", " ", DOCKERFILE), flags=re.MULTILINE)
    pairs = [line.partition(" ")[::2] for line in text.splitlines() if line.strip()]
    return [(name, arguments.strip()) for name, arguments in pairs]


def test_the_image_has_a_python_that_the_project_asks_for() -> None:
    found = re.fullmatch(r"python:(\d+\.\d+)-slim-\w+", dict(instructions())["FROM"])
    assert found is not None
    asked = re.search(r'^requires-python = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert asked is not None
    assert SpecifierSet(asked[1]).contains(found[1])


def test_what_is_copied_is_there_and_nothing_runs_as_root() -> None:
    copied = [arguments.split() for name, arguments in instructions() if name == "COPY"]
    sources = [word for words in copied for word in words[:-1] if not word.startswith("--")]
    assert "pyproject.toml" in sources
    assert not [word for word in sources if not (ROOT / word).exists()]
    names = [name for name, _ in instructions()]
    assert dict(instructions())["USER"] == "1000"
    assert names.index("USER") < names.index("COPY")


def test_it_runs_targets_of_the_makefile_with_variables_that_it_reads() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    words = [word for name, text in instructions() if name in ("RUN", "CMD") for word in re.findall(r"make (\w+)", text)]
    words += json.loads(dict(instructions())["CMD"])
    assert json.loads(dict(instructions())["ENTRYPOINT"]) == ["make"]
    assert words == ["setup", "run"]
    assert not [word for word in words if f"\n{word}:" not in makefile]
    assert "TORCH_ARGS ?=" in makefile


def test_results_and_environments_of_the_machine_are_left_out() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {".venv", "data/0*", "mlflow.db*", "conf/local/*"} <= set(ignored)


def test_the_development_container_is_that_image() -> None:
    document = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))
    folder = ROOT / ".devcontainer"
    assert (folder / document["build"]["dockerfile"]).resolve() == ROOT / "Dockerfile"
    assert (folder / document["build"]["context"]).resolve() == ROOT
    assert set(document["build"]["args"]) <= {text.partition("=")[0] for name, text in instructions() if name == "ARG"}
    opened = {int(port) for port in dict(instructions())["EXPOSE"].split()}
    assert {*document["forwardPorts"]} == opened == {int(port) for port in document["portsAttributes"]}


@pytest.mark.parametrize("file", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda file: file.stem)
def test_a_form_for_issues_asks_for_what_is_needed(file: Path) -> None:
    form = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= form.keys()
    ids = [part["id"] for part in form["body"]]
    assert len(ids) == len(set(ids))
    assert {part["type"] for part in form["body"]} <= {"textarea", "input", "checkboxes"}
    assert all(part["attributes"]["label"] for part in form["body"])
    assert any(part.get("validations", {}).get("required") for part in form["body"])
