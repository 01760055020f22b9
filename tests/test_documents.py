"""Documents say the truth: the tree, the commands, the links, the numbering."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "grpo_pipeline"


def make_targets() -> set[str]:
    """Read the names of the Makefile's targets."""
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", ".ci/run"])
def test_documents_name_make_targets_that_exist(document: str) -> None:
    named = set(re.findall(r"(?:`|^\s*)make (?:[A-Z]+=\S+ )?([a-z][a-z-]*)", (ROOT / document).read_text(), re.MULTILINE))
    assert named
    assert named <= make_targets()


def test_links_between_documents_lead_somewhere(committed_files: tuple[Path, ...]) -> None:
    dead = []
    for file in (file for file in committed_files if file.suffix == ".md"):
        for target in re.findall(r"\]\(([^)#\s]+)", file.read_text(encoding="utf-8")):
            if "://" not in target and not (file.parent / target).exists():
                dead.append(f"{file.relative_to(ROOT)}: {target}")
    assert not dead


def test_decisions_are_numbered_without_gaps_and_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    names = sorted(file.name for file in folder.glob("0*.md"))
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))
    assert not [name for name in names if name not in (folder / "README.md").read_text()]


def file_tree(readme: str) -> list[tuple[str, str]]:
    """Read (path, caption) from README's tree: the fenced block that names ``src/``, drawn with lines or by indentation.

    A line holds a name, two or more spaces (or a #) and a caption; names that share one are separated by a comma or a space.
    """
    blocks = re.findall(r"^```\w*\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    block = next(block for block in blocks if re.search(r"\bsrc/", block))
    entries: list[tuple[str, str]] = []
    parents: list[tuple[int, str]] = []
    for line in block.splitlines():
        drawn = re.match(r"^([\s│├└─|`]*)(\S.*)$", line)
        if drawn is None:
            continue
        depth, text = len(drawn[1]), drawn[2]
        names, _, caption = (part.strip() for part in re.match(r"^(.*?)(\s*#\s*|\s{2,}|$)(.*)$", text).groups())
        while parents and parents[-1][0] >= depth:
            parents.pop()
        above = parents[-1][1] if parents else ""
        for name in re.split(r",\s*|\s+", names):
            entries.append((above + name, caption))
        parents.append((depth, above + names.rstrip("/") + "/"))
    return entries


def test_the_tree_parser_reads_both_drawings() -> None:
    drawn = "```\n├── src/\n│   └── a.py   one\n└── b/  # two\n```\n"
    plain = "```text\nsrc/\n  a.py   one\nb/  two\n```\n"
    assert file_tree(drawn) == file_tree(plain) == [("src/", ""), ("src/a.py", "one"), ("b/", "two")]


def test_the_tree_in_the_readme_is_true(committed_files: tuple[Path, ...]) -> None:
    entries = [entry for entry in file_tree((ROOT / "README.md").read_text(encoding="utf-8")) if entry[0] != "grpo_pipeline/"]
    paths = {path.rstrip("/") for path, _ in entries}
    assert not [path for path in sorted(paths) if not any(ROOT.glob(path))]
    assert not [path for path, caption in entries if not caption and path.rstrip("/") not in ("src", "src/grpo_pipeline")]
    parts = {file.relative_to(PACKAGE).parts[0] for file in committed_files if PACKAGE in file.parents}
    assert not sorted(part for part in parts - {"__init__.py", "py.typed"} if f"src/grpo_pipeline/{part}" not in paths)
    folders = {file.relative_to(ROOT).parts[0] for file in committed_files if file.parent != ROOT}
    assert not sorted(folder for folder in folders if folder[0] != "." and folder not in paths)
