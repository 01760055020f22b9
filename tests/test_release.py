"""A tag makes a release with the notes of its version, or is refused."""

import re
import shutil
from pathlib import Path

import pytest
import yaml
from benchmark_scripts import load_script

import grpo_pipeline

ROOT = Path(__file__).resolve().parents[1]
release_notes = load_script("docs/release_notes.py", name="release_notes_script")
CHANGELOG = "# Changelog\n\n## Unreleased\n\n- new\n\n## 1.2.3 (2026-11-27)\n\n### A part\n\n- one\n- two\n\n## 1.2.2\n\n- old\n"


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """A repository at version 1.2.3."""
    for name in release_notes.VERSIONS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
        text = (tmp_path / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace(grpo_pipeline.__version__, "1.2.3"), encoding="utf-8")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    return tmp_path


def test_the_notes_are_the_section_of_the_version(released: Path) -> None:
    assert release_notes.notes("v1.2.3", released) == "### A part\n\n- one\n- two"


def test_a_tag_of_another_version_is_refused(released: Path) -> None:
    with pytest.raises(ValueError, match=r"__init__.py must have the version of the tag v1.2.4, got 1.2.3"):
        release_notes.notes("v1.2.4", released)
    citation = released / "CITATION.cff"
    citation.write_text(citation.read_text().replace("1.2.3", "1.2.2"))
    with pytest.raises(ValueError, match=r"CITATION.cff must have the version of the tag v1.2.3, got 1.2.2"):
        release_notes.notes("v1.2.3", released)


def test_a_version_without_notes_is_refused(released: Path) -> None:
    (released / "CHANGELOG.md").write_text(CHANGELOG.replace("## 1.2.3 (2026-11-27)\n", ""))
    with pytest.raises(ValueError, match=r"must have a section '## 1.2.3', got none; rename 'Unreleased'"):
        release_notes.notes("v1.2.3", released)


def test_package_and_citation_have_one_version() -> None:
    found = {re.findall(pattern, (ROOT / name).read_text(), re.MULTILINE)[0] for name, pattern in release_notes.VERSIONS.items()}
    assert found == {grpo_pipeline.__version__}


def test_the_workflow_of_a_tag_checks_before_it_publishes() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    steps = [step["run"] for step in yaml.safe_load(text)["jobs"]["release"]["steps"] if "run" in step]
    assert steps[0].startswith("python docs/release_notes.py")
    assert steps[1] == ".ci/run"
    assert steps[-1].startswith("gh release create")
