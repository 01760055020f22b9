"""Count what the documents hold, beside their limits: words, pictures, links, commands.

    python docs/pages.py      (or: make docs-check)

Counted are the pages that mkdocs.yml leads to, but for generated ones and the section Research. A word is one of text:
code blocks and addresses of links are none. The exit status is 1 where a limit is missed.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
RESEARCH = "Research"
WRITTEN_BY_COMMANDS = ("parameters.md", "reference/")
FENCED = re.compile(r"^ *```.*?^ *``` *$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
WORD = re.compile(r"\w[\w.'’×:/_-]*")
COMMAND = re.compile(
    r"^(?:make|\.venv/bin/\w+) .+$|`((?:make|\.venv/bin/\w+) [^`\n]+)`", re.MULTILINE
)
MOST_WORDS, LEAST_PICTURES = 45_000, 15


class Figures(NamedTuple):
    """Hold the counts of the pages of the four doors."""

    words: dict[str, int]  # page -> words
    pictures: set[Path]
    links: int
    commands: int


def navigation() -> dict[str, list[str]]:
    """Read the sections of mkdocs.yml: title -> its pages, in their order."""
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    return {title: list(leaves(entry)) for section in nav for title, entry in section.items()}


def leaves(entry: Any) -> Iterator[str]:
    """Yield the pages of a part of the navigation."""
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from leaves(inner)


def written_pages() -> list[str]:
    """List the pages of the doors that people have written."""
    doors = [page for title, pages in navigation().items() if title != RESEARCH for page in pages]
    return [page for page in doors if not page.startswith(WRITTEN_BY_COMMANDS)]


def count_words(text: str) -> int:
    """Count the words of a page: those of its sentences, tables and headings."""
    prose = LINK.sub(r"\2", FENCED.sub("", text))
    return len(WORD.findall(prose))


def figures() -> Figures:
    """Count the pages of the doors."""
    texts = {page: (DOCS / page).read_text(encoding="utf-8") for page in written_pages()}
    links = [
        (page, *link) for page, text in texts.items() for link in LINK.findall(FENCED.sub("", text))
    ]
    pictures = {
        (DOCS / page).parent.joinpath(target).resolve() for page, shown, _, target in links if shown
    }
    return Figures(
        words={page: count_words(text) for page, text in texts.items()},
        pictures=pictures,
        links=len(links),
        commands=sum(len(COMMAND.findall(text)) for text in texts.values()),
    )


def main() -> int:
    """Print the figures; return the exit status."""
    found = figures()
    total = sum(found.words.values())
    for page, words in sorted(found.words.items(), key=lambda pair: -pair[1]):
        print(f"{words:7,}  {page}")
    print(f"{total:7,}  words on {len(found.words)} pages, at most {MOST_WORDS:,}")
    print(f"{len(found.pictures):7,}  pictures, at least {LEAST_PICTURES}")
    print(
        f"{found.links:7,}  links and {found.commands:,} commands, all of them checked by tests/test_documents.py"
    )
    return int(total > MOST_WORDS or len(found.pictures) < LEAST_PICTURES)


if __name__ == "__main__":
    sys.exit(main())
