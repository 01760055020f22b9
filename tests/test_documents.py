"""Documents say the truth: the tree, the commands, the links, the numbering."""

import re
from pathlib import Path

import pytest

from grpo_pipeline.pipeline_registry import register_pipelines

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "grpo_pipeline"


def make_targets() -> set[str]:
    """Read the names of the Makefile's targets."""
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def prose(committed_files: tuple[Path, ...]) -> dict[str, str]:
    """Return the documents that say how things are today: the log and the decisions tell how they were."""
    pages = {str(file.relative_to(ROOT)): file for file in committed_files if file.suffix == ".md"}
    dated = ("docs/log.md", "docs/decisions/", "CHANGELOG.md")
    return {name: file.read_text(encoding="utf-8") for name, file in pages.items() if not name.startswith(dated)}


def test_documents_name_make_targets_that_exist(committed_files: tuple[Path, ...]) -> None:
    pages = prose(committed_files) | {".ci/run": (ROOT / ".ci/run").read_text(encoding="utf-8")}
    found = {
        name: set(re.findall(r"(?:`|^\s*)make (?:[A-Z]+=\S+ )?([a-z][a-z-]*)", text, re.MULTILINE))
        for name, text in pages.items()
    }
    assert found["README.md"]
    assert found["CONTRIBUTING.md"]
    assert found[".ci/run"]
    assert not {name: sorted(named - make_targets()) for name, named in found.items() if named - make_targets()}


def test_documents_name_pipelines_that_are_registered(committed_files: tuple[Path, ...]) -> None:
    registered = register_pipelines().keys()
    named = {
        (name, pipeline)
        for name, text in prose(committed_files).items()
        for pipelines in re.findall(r"(?:TASK=|--pipelines )([a-z_,]+)", text)
        for pipeline in pipelines.strip(",").split(",")
    }
    assert {"README.md", "docs/running.md"} <= {name for name, _ in named}
    assert not sorted((name, pipeline) for name, pipeline in named if pipeline not in registered)


@pytest.mark.parametrize("document", ["README.md", "docs/running.md", "docs/results.md"])
def test_documents_name_environments_that_exist(document: str) -> None:
    named = set(re.findall(r"(?:ENV=|--env )(\w+)", (ROOT / document).read_text(encoding="utf-8")))
    assert named
    assert not [env for env in sorted(named) if not (ROOT / "conf" / env).is_dir()]


def headings(document: Path) -> set[str]:
    """Return the anchors of a document's headings: small letters, no punctuation, a dash for each space."""
    found = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in found}


def test_links_between_documents_lead_somewhere(committed_files: tuple[Path, ...]) -> None:
    dead = []
    for file in (file for file in committed_files if file.suffix == ".md"):
        for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", file.read_text(encoding="utf-8")):
            page = file.parent / target if target else file
            if "://" in target:
                continue
            if not page.exists() or (anchor and page.suffix == ".md" and anchor not in headings(page)):
                dead.append(f"{file.relative_to(ROOT)}: {target}#{anchor}")
    assert not dead


def test_the_readme_is_short() -> None:
    """A newcomer reads it once; what it says in more bytes or more numbers belongs into docs/."""
    text = (ROOT / "README.md").read_bytes()
    assert len(text) <= 9 * 1024
    assert len(re.findall(rb"\d+(?:\.\d+)?", text)) <= 40


def test_every_document_is_reachable_from_the_readme() -> None:
    """Follow the links from README.md: a page that none leads to is not read."""
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md" or not page.is_file():
            continue
        reached.add(page)
        targets = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
        waiting += [(page.parent / target).resolve() for target in targets if "://" not in target]
    assert not sorted(page.name for page in (ROOT / "docs").glob("*.md") if page not in reached)


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
