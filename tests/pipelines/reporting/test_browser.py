"""Pages that are wrong in one way each: the measures in a browser can fail."""

from pathlib import Path

import pytest
from browser import CHROMIUM, HEIGHT, explains, looks_right, measure

if CHROMIUM is None:
    pytest.skip("no Chromium on this machine: no page is looked at in a browser", allow_module_level=True)

POLICY = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'none'\">"
)
GOOD = "<h1>Better</h1><div class='forest'>0.5</div>"


def page(folder: Path, body: str, style: str = "") -> Path:
    path = folder / "page.html"
    path.write_text(
        f"<!doctype html><html><head><meta charset='utf-8'>{POLICY}<style>{style}</style></head><body>{body}</body></html>",
        encoding="utf-8",
    )
    return path


@pytest.mark.parametrize(
    ("body", "style", "name", "width"),
    [
        (GOOD + "word " * 160, "", "words", "wide"),
        (GOOD + "0.25 " * 26, "", "decimals", "wide"),
        (f"<p style='height:{HEIGHT}px'></p>" + GOOD, "", "chart", "wide"),
        (GOOD + "<p style='width:600px'>wide</p>", "", "overflow", "phone"),
        (GOOD + "<p style='color:#999'>faint</p>", "", "contrast", "wide"),
        (GOOD, "@media (prefers-color-scheme: dark) { body { background: #111 } }", "contrast", "wide"),
        (GOOD + "<svg><text y='9' style='fill:#ddd'>0.1</text></svg>", "", "contrast", "wide"),
    ],
    ids=["words", "decimals", "chart", "overflow", "contrast", "dark", "drawing"],
)
def test_what_is_wrong_with_a_page_is_seen(tmp_path: Path, body: str, style: str, name: str, width: str) -> None:
    with pytest.raises(AssertionError, match=f"{width}: .*{name}"):
        looks_right(page(tmp_path, body, style), tmp_path)


def test_a_readable_page_passes_and_complaints_of_the_browser_are_seen(tmp_path: Path) -> None:
    looks_right(page(tmp_path, GOOD), tmp_path)
    (tmp_path / "light").rename(tmp_path / "used")
    found = measure(page(tmp_path, GOOD + "<img src='https://example.com/a.png'>"), tmp_path, theme="light")
    assert any("Content Security Policy" in line for line in found["console"]["said"])


TERM = "<p style='margin:200px'><abbr tabindex='0' aria-description='It &quot;is&quot; this.'>AUROC</abbr></p>"
SHOWN = (
    "abbr:focus::after { content: attr(aria-description); position: fixed; top: 8px; left: 8px; background: #fff; color: #000 }"
)


def test_a_sentence_that_is_seen_while_its_term_is_focused_passes(tmp_path: Path) -> None:
    explains(page(tmp_path, TERM, SHOWN), tmp_path)


@pytest.mark.parametrize(
    ("style", "name"),
    [
        ("", "untold"),
        (SHOWN.replace("abbr:focus", "abbr"), "left"),
        (SHOWN.replace("left: 8px", "left: -40px"), "missing"),
        (SHOWN + " body::after { content: ''; position: fixed; inset: 0 0 auto; height: 20px; z-index: 3 }", "missing"),
        (SHOWN.replace("fixed; top: 8px; left: 8px", "absolute; width: 1200px"), "overflow"),
        (SHOWN.replace("#000", "#999"), "contrast"),
    ],
    ids=["hidden", "always", "outside", "covered", "overflow", "faint"],
)
def test_a_sentence_that_is_not_seen_or_not_readable_is_found(tmp_path: Path, style: str, name: str) -> None:
    with pytest.raises(AssertionError, match=rf"terms of page.html, phone: .*'{name}'|wide: .*'{name}'"):
        explains(page(tmp_path, TERM, style), tmp_path)
