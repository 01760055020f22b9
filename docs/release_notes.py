"""Print the notes of a release: the section of CHANGELOG.md that has the tag's version.

    .venv/bin/python docs/release_notes.py v0.1.0

Refused unless the package, CITATION.cff and the changelog name the version of the tag.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = {
    "src/grpo_pipeline/__init__.py": r'^__version__ = "(.+)"$',
    "CITATION.cff": r"^version: (.+)$",
}


def notes(tag: str, root: Path = ROOT) -> str:
    """Find the section of the changelog for a tag.

    Raises:
        ValueError: naming the first file that does not have the version of the tag.
    """
    version = tag.removeprefix("v")
    for name, pattern in VERSIONS.items():
        [found] = re.findall(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
        if found != version:
            raise ValueError(
                f"{name} must have the version of the tag {tag}, got {found}; correct one of them"
            )
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(
        rf"^## {re.escape(version)}[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if section is None:
        raise ValueError(
            f"CHANGELOG.md must have a section '## {version}', got none; rename 'Unreleased'"
        )
    return section[1].strip()


if __name__ == "__main__":
    print(notes(sys.argv[1]))
