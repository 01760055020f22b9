"""Extend MkDocs beyond its configuration: generated pages, tooltips of the glossary, a sample page and graph.

mkdocs.yml names this file under ``hooks``; MkDocs calls the functions that begin with ``on_``.
"""

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "src")]

import reference  # noqa: E402

from grpo_pipeline.pipelines.reporting.glossary import explain  # noqa: E402

GLOSSARIES = ("glossary.md", "reference/words.md", "parameters.md", "reference/errors.md", "api.md")
LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)\s]+)\)")
CODE = re.compile(r"<code>.*?</code>", re.DOTALL)
MARK = re.compile(r"</?abbr[^>]*>")
AMBIGUOUS = ("core", "frame")  # a processor has cores, too, and a page frames
LOADED = re.compile(r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="(https?://[^"]+)"')
NAMED_AS_FILE = re.compile(r"\[[\w/]+\.md\]\(([^)#\s]+\.md)")
REPORTS = ROOT / "data" / "08_reporting"
NO_SAMPLE = "<!doctype html><title>No sample</title><p>There is none yet: {remedy}, then make docs."


def on_config(config: Any) -> Any:
    """Give headings the anchors that they have where the repository is read."""
    config.mdx_configs.setdefault("toc", {}).update(slugify=anchor, permalink=True)
    return config


def anchor(heading: str, separator: str) -> str:
    """Write a heading as an anchor: small letters, no punctuation, a dash for each space."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", separator)


def on_files(files: Any, *, config: Any) -> Any:
    """Add the generated pages, and the sample page and graph."""
    for name, text in reference.pages().items():
        files.append(File.generated(config, name, content=text))
    for target, source in samples():
        given = {"content": source} if isinstance(source, str) else {"abs_src_path": str(source)}
        files.append(File.generated(config, target, **given))
    return files


def samples() -> Iterator[tuple[str, Path | str]]:
    """Yield place in the site and file of the last run's page and of the graph; a sentence where there is none."""
    pages = [REPORTS / name / "report.html" for name in ("attention", "attention_smoke")]
    found = next((page for page in pages if page.is_file()), None)
    yield "sample/report.html", found or NO_SAMPLE.format(remedy="make run")
    graph = REPORTS / "viz"
    if not graph.is_dir():
        yield "sample/graph/index.html", NO_SAMPLE.format(remedy="make viz-build")
    for file in sorted(graph.rglob("*")):
        if file.is_file():
            yield f"sample/graph/{file.relative_to(graph).as_posix()}", file


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Leave the names of files outside of docs/ without their links, and call pages by their titles, not their files.

    The start page needs neither list at its sides.
    """
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation", "toc"]
    here = (ROOT / "docs" / page.file.src_uri).parent

    def keep_inside(found: re.Match[str]) -> str:
        target = (here / found[2].partition("#")[0]).resolve()
        return found[0] if target.is_relative_to(ROOT / "docs") else found[1]

    def by_title(found: re.Match[str]) -> str:
        return f"[{title_of((here / found[1]).resolve())}]({found[1]}"

    return NAMED_AS_FILE.sub(by_title, LINK.sub(keep_inside, markdown))


@cache
def title_of(page: Path) -> str:
    """Read the heading of a page."""
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def on_page_content(html: str, *, page: Any, **_: Any) -> str:
    """Explain the first use of each term in each section of a page."""
    if page.file.src_uri in GLOSSARIES:
        return html
    terms = {word: said for word, said in reference.glossary().items() if word not in AMBIGUOUS}
    explained = CODE.sub(lambda code: MARK.sub("", code[0]), explain(html, terms))
    return explained.replace('<abbr tabindex="0" aria-description=', '<abbr tabindex="0" title=')


def on_post_build(*, config: Any) -> None:
    """Check that no page loads anything from another host.

    Raises:
        PluginError: if one does.
    """
    for page in Path(config.site_dir).rglob("*.html"):
        if found := LOADED.search(page.read_text(encoding="utf-8")):
            raise PluginError(
                f"{page} must load nothing from another host, got {found[1]}; leave it out"
            )
