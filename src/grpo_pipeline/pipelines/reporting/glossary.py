"""Explain the technical terms of a page: the first use of a term in each section shows a sentence when focused or pointed at.

No script runs: the sentence is an attribute, which screen readers read and the style sheet shows.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from markupsafe import escape

SHARED = Path(__file__).with_name("glossary.md")
TAG = re.compile(r"<(/?)([a-z][a-z0-9]*)")
# Elements whose text is a heading, a link, a drawing, code, or a value from the user's data.
SILENT = {
    "head",
    "h1",
    "h2",
    "h3",
    "nav",
    "a",
    "summary",
    "thead",
    "td",
    "svg",
    "pre",
    "q",
    "script",
}


def shared_terms() -> dict[str, str]:
    """List the terms that every task's page may use: word -> its sentence."""
    text = SHARED.read_text(encoding="utf-8")
    return dict(re.findall(r"^\| \*\*(.+?)\*\* \| (.+?) \|$", text, re.MULTILINE))


def explain(html: str, terms: Mapping[str, str]) -> str:
    """Mark the first use of each term in each section of a page.

    Args:
        html: the page; every ``<`` in a text is escaped. A section begins with an ``h2`` that has an id.
        terms: word -> sentence. Letters may be large or small, and a plural counts.
    """
    return "".join(_marked(html, terms))


def _marked(html: str, terms: Mapping[str, str]) -> Iterator[str]:
    told = {word.lower(): sentence for word, sentence in terms.items()}
    longest_first = "|".join(map(re.escape, sorted(told, key=len, reverse=True)))
    pattern = re.compile(rf"(?<![\w-])({longest_first})(?:s|es)?(?!\w)", re.IGNORECASE)
    seen = set[str]()

    def mark(found: re.Match[str]) -> str:
        word = found[1].lower()
        if word in seen:
            return found[0]
        seen.add(word)
        return f'<abbr tabindex="0" aria-description="{escape(told[word])}">{found[0]}</abbr>'

    silent, depth = "", 0
    for token in re.split(r"(<[^>]*>)", html):
        tag = TAG.match(token)
        if silent:
            if tag and tag[2] == silent:
                depth += -1 if tag[1] else 1
                silent = silent if depth else ""
        elif tag:
            if token.startswith("<h2 id="):
                seen.clear()
            if not tag[1] and _is_silent(tag[2], token):
                silent, depth = tag[2], 1
        else:
            token = pattern.sub(mark, token)
        yield token


def _is_silent(name: str, token: str) -> bool:
    # A row's head names a metric, or a value from the user's data; nothing inside a picture can be focused.
    return name in SILENT or 'role="img"' in token or (name == "th" and "metric" not in token)
