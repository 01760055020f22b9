"""Measure what a person sees of a page: in headless Chromium, at two widths and in both themes."""

import json
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SWITCHES = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *(
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
        "--enable-logging=stderr",
        "--virtual-time-budget=4000",
    ),
)
WIDTHS, HEIGHT = {"wide": 1440, "phone": 420}, 900
THEMES = {"light": "1", "dark": "0"}

# Runs inside the page. Text counts where its box begins above the lower edge of the first screen; its contrast is that of its
# colour to the nearest background that is not transparent (WCAG 2.2, relative luminance).
MEASURE = r"""
const texts = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const shown = (node) => node.checkVisibility({visibilityProperty: true}) && node.getClientRects().length > 0;
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const parent = node.parentElement;
  if (node.textContent.trim() && !parent.closest("script, style") && shown(parent)) texts.push(node);
}
const range = document.createRange();
const box = (node) => { range.selectNodeContents(node); return range.getBoundingClientRect(); };
const first = texts.filter((node) => box(node).top < HEIGHT).map((node) => node.textContent).join(" ");
const channel = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
const parse = (colour) => (colour.match(/[\d.]+/g) || []).map(Number);
const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const behind = (node) => {
  for (let element = node; element; element = element.parentElement) {
    const colour = parse(getComputedStyle(element).backgroundColor);
    if (colour.length === 3 || colour[3] > 0.99) return colour;
  }
  return [255, 255, 255];
};
let contrast = 21, faint = "";
for (const node of texts) {
  const element = node.parentElement, style = getComputedStyle(element);
  const own = parse(element.closest("svg") ? style.fill : style.color);
  const [light, dark] = [luminance(own), luminance(behind(element))].sort((a, b) => b - a);
  const ratio = (light + 0.05) / (dark + 0.05);
  if (ratio < contrast) [contrast, faint] = [ratio, node.textContent.trim().slice(0, 40)];
}
const chart = document.querySelector(".forest, main svg, main img");
return {
  words: first.split(/\s+/).filter(Boolean).length, decimals: (first.match(/\d[.]\d/g) || []).length,
  chart: chart ? chart.getBoundingClientRect().top : null, contrast, faint,
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
};
"""


def measure(page: Path, folder: Path, *, theme: str) -> dict[str, dict[str, Any]]:
    """Return width -> what is measured in a page, and under ``console`` what the browser complained about.

    The page stands in a frame of each width: a browser's window is never as narrow as a phone. The copy that is measured
    allows the script that measures, and no more.
    """
    assert CHROMIUM is not None
    html = page.read_text(encoding="utf-8")
    policy = re.search(r"script-src [^\"]*", unescape(html))
    assert policy is not None
    frames = []
    for name, width in WIDTHS.items():
        body = MEASURE.replace("HEIGHT", str(HEIGHT))
        script = f"<script>parent.found.{name} = (() => {{{body}}})();</script>"
        inner = re.sub(r"script-src [^\"]*", "script-src 'unsafe-inline'", unescape_policy(html)).replace(
            "</body>", script + "</body>"
        )
        frames.append(f'<iframe style="width:{width}px;height:{HEIGHT}px;border:0" srcdoc="{escape(inner)}"></iframe>')
    host = folder / f"host_{theme}.html"
    ready = "addEventListener('load', () => { document.title = 'measured'; out.textContent = JSON.stringify(found); });"
    host.write_text(
        f"<!doctype html><meta charset=utf-8><script>var found = {{}}; {ready}</script><pre id=out></pre>{''.join(frames)}",
        encoding="utf-8",
    )
    theme_switch = f"--blink-settings=preferredColorScheme={THEMES[theme]}"
    command = [CHROMIUM, *SWITCHES, theme_switch, f"--user-data-dir={folder / theme}", "--window-size=1500,1000"]
    done = subprocess.run([*command, "--dump-dom", host.as_uri()], capture_output=True, text=True, timeout=120, check=False)
    written = re.search(r'<pre id="out">(.*?)</pre>', done.stdout, re.DOTALL)
    assert written is not None, done.stderr[-2000:]
    found: dict[str, dict[str, Any]] = json.loads(unescape(written[1]))
    return found | {"console": {"said": [line for line in done.stderr.splitlines() if ":CONSOLE" in line]}}


def unescape_policy(html: str) -> str:
    """Return the page whose policy has no escaped quotes, so that it can be replaced."""
    return re.sub(r'content="default-src[^"]*"', lambda found: unescape(found[0]), html)


def looks_right(page: Path, folder: Path) -> None:
    """Check that a page says its answer on the first screen, can be read, and fits, at both widths and in both themes.

    Without Chromium its size alone is checked; tests/pipelines/reporting/test_browser.py is skipped then and says so.
    """
    assert page.stat().st_size <= 2_000_000
    if CHROMIUM is None:
        return
    for theme in THEMES:
        found = measure(page, folder, theme=theme)
        assert found.pop("console") == {"said": []}
        assert found.keys() == WIDTHS.keys()
        for width, seen in found.items():
            where = f"{page.name}, {theme}, {width}: {seen}"
            assert seen["words"] <= 150, where
            assert seen["decimals"] <= 25, where
            assert seen["chart"] < HEIGHT, where
            assert seen["overflow"] <= 0, where
            assert seen["contrast"] >= 4.5, where
