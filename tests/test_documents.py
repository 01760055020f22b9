"""Documents say the truth: the tree, the commands, the links, the numbering."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from benchmark_scripts import load_script
from pydantic import BaseModel, Field

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
    # The examples of docs/adding_a_task.md have the pipelines that every task has.
    whole = [name.removeprefix("attention") for name in registered if name.startswith("attention")]
    registered |= {f"{example}{name}" for example in ("digits", "reverse") for name in whole}
    assert not sorted((name, pipeline) for name, pipeline in named if pipeline not in registered)


@pytest.mark.parametrize("document", ["README.md", "docs/running.md", "docs/results.md"])
def test_documents_name_environments_that_exist(document: str) -> None:
    named = set(re.findall(r"(?:ENV=|--env )(\w+)", (ROOT / document).read_text(encoding="utf-8")))
    assert named
    named -= {"mine", "clinic"}  # the reader's own
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


parameters = load_script("docs/parameters.py", name="parameters_script")


def test_the_page_of_parameters_is_that_of_the_models_and_of_base() -> None:
    assert parameters.PAGE.read_text(encoding="utf-8") == parameters.page(), "run make parameters and commit the page"


def test_every_parameter_of_base_is_on_the_page() -> None:
    """Each leaf of conf/base is a row of a section, or below a key that holds a mapping of any names."""
    page = parameters.PAGE.read_text(encoding="utf-8")
    models = parameters.sections()
    missing = []
    assert "`<task>.arms` lists the arms" in page
    for task in {path.partition(".")[0] for path in models}:
        for path in paths_of(parameters.base()[task], task):
            if path == f"{task}.arms":
                continue
            section = next((name for name in models if path == name or path.startswith(f"{name}.")), None)
            keys = path.removeprefix(section or "").strip(".").split(".")
            above = [".".join(keys[: depth + 1]) for depth in range(len(keys))]
            if section is None or (keys != [""] and not any(f"| `{key}`" in page for key in above)):
                missing.append(path)
    assert not missing


def paths_of(values: Any, above: str) -> Iterator[str]:
    """Yield the dotted path of every leaf."""
    if not isinstance(values, dict) or not values:
        yield above
        return
    for key, value in values.items():
        yield from paths_of(value, f"{above}.{key}")


class _Inner(BaseModel):
    """One thing.

    Attributes:
        size: of it,
            in pixels.
    """

    size: Annotated[int, Field(ge=2)] | None
    kind: Literal["a", "b"] = Field("a", description="which | one")


class _Outer(BaseModel):
    """Things.

    Attributes:
        inner: one of them.
        others: by name.
    """

    inner: _Inner | None
    others: dict[str, _Inner] = {}


def test_rows_of_a_model() -> None:
    given = {"one.x": {"inner": {"size": 3}}, "two.x": {"inner": None}, "three.x": {"inner": {"size": 3}}}
    assert list(parameters.rows(_Outer, {path: parameters.read(_Outer, section) for path, section in given.items()})) == [
        "| `inner` | section or null | set; two: `null` | one of them |",
        "| `inner.size` | whole number, at least 2 or null | `3` | of it, in pixels |",
        "| `inner.kind` | `a`, `b` | `a` | which \\| one |",
        "| `others` | mapping from text to section | `{}` | by name |",
        "| `others.<name>.size` | whole number, at least 2 or null |  | of it, in pixels |",
        "| `others.<name>.kind` | `a`, `b` | `a` | which \\| one |",
    ]


def test_a_parameter_without_a_meaning_is_refused() -> None:
    class Silent(BaseModel):
        size: int

    with pytest.raises(ValueError, match=r"Silent\.size must have a meaning, got none; add a line under Attributes"):
        list(parameters.rows(Silent, {"one.x": {"size": 1}}))


def test_the_readme_is_short() -> None:
    """A newcomer reads it once; what it says in more bytes or more numbers belongs into docs/."""
    text = (ROOT / "README.md").read_bytes()
    assert len(text) <= 7 * 1024
    prose = re.sub(rb"(?s)```.*?```", b"", text)  # a program or a file tree is no statement
    assert len(re.findall(rb"\d+(?:\.\d+)?", prose)) <= 40


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
    assert not sorted(page.name for page in (ROOT / "docs").rglob("*.md") if page not in reached)


def test_decisions_are_numbered_without_gaps_and_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    names = sorted(file.name for file in folder.glob("0*.md"))
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))
    assert not [name for name in names if name not in (folder / "README.md").read_text()]


def file_tree(page: str) -> list[tuple[str, str]]:
    """Read (path, caption) from a page's tree: the fenced block that names ``src/``, drawn with lines or by indentation.

    A line holds a name, two or more spaces (or a #) and a caption; names that share one are separated by a comma or a space.
    """
    blocks = re.findall(r"^```\w*\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
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


def test_the_tree_in_the_page_for_contributors_is_true(committed_files: tuple[Path, ...]) -> None:
    drawn = "```\n├── src/\n│   └── a.py   one\n└── b/  # two\n```\n"
    plain = "```text\nsrc/\n  a.py   one\nb/  two\n```\n"
    assert file_tree(drawn) == file_tree(plain) == [("src/", ""), ("src/a.py", "one"), ("b/", "two")]
    entries = [
        entry for entry in file_tree((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")) if entry[0] != "grpo_pipeline/"
    ]
    paths = {path.rstrip("/") for path, _ in entries}
    assert not [path for path in sorted(paths) if not any(ROOT.glob(path))]
    assert not [path for path, caption in entries if not caption and path.rstrip("/") not in ("src", "src/grpo_pipeline")]
    parts = {file.relative_to(PACKAGE).parts[0] for file in committed_files if PACKAGE in file.parents}
    assert not sorted(part for part in parts - {"__init__.py", "py.typed"} if f"src/grpo_pipeline/{part}" not in paths)
    folders = {file.relative_to(ROOT).parts[0] for file in committed_files if file.parent != ROOT}
    assert not sorted(folder for folder in folders if folder[0] != "." and folder not in paths)


def test_ten_questions_are_answered_each_by_a_line_of_one_file() -> None:
    section = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").partition("## Ten questions")[2].partition("\n## ")[0]
    rows = [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in section.splitlines() if "?" in line]
    assert len(rows) == 10
    for question, file, line in rows:
        assert (ROOT / "src/grpo_pipeline" / file).read_text(encoding="utf-8").count(line) == 1, question
