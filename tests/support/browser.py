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
STEP = 8  # pixels between two points that the browser is asked about
THEMES = {"light": "1", "dark": "0"}

# Contrast of two colours (WCAG 2.2, relative luminance).
COLOURS = r"""
const channel = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
const parse = (colour) => (colour.match(/[\d.]+/g) || []).map(Number);
const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const contrast_of = (one, other) => {
  const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (light + 0.05) / (dark + 0.05);
};
"""

# Runs inside the page. Text counts where its box begins above the lower edge of the first screen;  its contrast is that of its
# colour to the nearest background that is not transparent.
MEASURE = r"""
// The mark of a term parts no word from what follows it.
for (const mark of document.querySelectorAll("abbr")) mark.replaceWith(mark.textContent);
document.normalize();
const texts = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const shown = (node) => node.checkVisibility({visibilityProperty: true}) && node.getClientRects().length > 0;
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const parent = node.parentElement;
  if (node.textContent.trim() && !parent.closest("script, style") && shown(parent)) texts.push(node);
}
const range = document.createRange();
const box = (node) => { range.selectNodeContents(node); return range.getBoundingClientRect(); };
const first = texts.filter((node) => box(node).top < HEIGHT).map((node) => node.textContent).join(" ");
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
  const ratio = contrast_of(own, behind(element));
  if (ratio < contrast) [contrast, faint] = [ratio, node.textContent.trim().slice(0, 40)];
}
const chart = document.querySelector(".forest, main svg, main img");
return {
  words: first.split(/\s+/).filter(Boolean).length, decimals: (first.match(/\d[.]\d/g) || []).length,
  chart: chart ? chart.getBoundingClientRect().top : null, contrast, faint,
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
};
"""

# Focuses terms of the page, one after the other, and asks the browser at a grid of points around each where its sentence lies.
# The whole size of the sentence is that of its box: what is smaller at the points is cut off, or lies below something else.
POINTED_AT = r"""
const step = STEP, reach = 280, found = [];
for (const folded of document.querySelectorAll("details")) folded.open = true;
const terms = [...document.querySelectorAll("abbr")], every = Math.ceil(terms.length / MOST);
for (const term of terms.filter((_, place) => place % every === 0)) {
  term.scrollIntoView({block: "center", inline: "center"});
  term.getBoundingClientRect();
  term.focus({preventScroll: true});
  const own = term.getBoundingClientRect(), rects = [...term.getClientRects()];
  const isOwn = (x, y) => rects.some((r) => x >= r.left && x < r.right && y >= r.top && y < r.bottom);
  const points = [];
  for (let y = Math.max(1, own.top - reach); y < Math.min(innerHeight, own.bottom + reach); y += step)
    for (let x = 1; x < innerWidth; x += step)
      if (!isOwn(x, y) && document.elementFromPoint(x, y) === term) points.push([x, y]);
  const [xs, ys] = [0, 1].map((axis) => points.map((point) => point[axis]));
  const extent = (values) => values.length ? Math.max(...values) - Math.min(...values) + step : 0;
  const box = getComputedStyle(term, "::after"), sum = (...names) => names.reduce((all, name) => all + parseFloat(box[name]), 0);
  const isWhole = box.boxSizing === "border-box", padding = (...names) => isWhole ? 0 : sum(...names);
  const size = [sum("width") + padding("paddingLeft", "paddingRight"), sum("height") + padding("paddingTop", "paddingBottom")];
  found.push({
    term: term.textContent, told: term.getAttribute("aria-description"),
    says: box.content.replace(/^"|"$/g, "").replaceAll('\\"', '"'),
    missing: Math.max(size[0] - extent(xs), size[1] - extent(ys)), colours: [box.color, box.backgroundColor].map(parse),
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  });
  term.blur();
}
const left = terms.filter((term) => getComputedStyle(term, "::after").content !== "none").length;
return {
  left, untold: found.filter((one) => one.says !== one.told).map((one) => one.term),
  missing: Math.max(...found.map((one) => one.missing)), overflow: Math.max(...found.map((one) => one.overflow)),
  contrast: Math.min(...found.map((one) => contrast_of(...one.colours))),
};
"""


def measure(page: Path, folder: Path, *, theme: str, script: str = MEASURE) -> dict[str, dict[str, Any]]:
    """Return width -> what a script measures in a page, and under ``console`` what the browser complained about.

    The page stands in a frame of each width: a browser's window is never as narrow as a phone. The copy that is measured
    allows the script that measures, and no more.
    """
    assert CHROMIUM is not None
    html = page.read_text(encoding="utf-8")
    policy = re.search(r"script-src [^\"]*", unescape(html))
    assert policy is not None
    frames = []
    for name, width in WIDTHS.items():
        body = script.replace("HEIGHT", str(HEIGHT))
        measuring = f"<script>parent.found.{name} = (() => {{{COLOURS}{body}}})();</script>"
        inner = re.sub(r"script-src [^\"]*", "script-src 'unsafe-inline'", unescape_policy(html)).replace(
            "</body>", measuring + "</body>"
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
    assert written[1], done.stderr[-3000:]
    seen = json.loads(unescape(written[1]))
    # The frames load in an order of their own: the widths come in that of WIDTHS, or a fault of both has two names.
    found: dict[str, dict[str, Any]] = {name: seen[name] for name in WIDTHS if name in seen}
    return found | {"console": {"said": [line for line in done.stderr.splitlines() if ":CONSOLE" in line]}}


def explains(page: Path, folder: Path, *, most: int = 10) -> None:
    """Check that terms of a page, at most so many, show their sentence in the window while they are focused, and then no more."""
    script = POINTED_AT.replace("MOST", str(most)).replace("STEP", str(STEP))
    found = measure(page, folder, theme="light", script=script)
    assert found.pop("console") == {"said": []}
    for width, seen in found.items():
        faults = {
            "untold": seen["untold"],
            "left": seen["left"],
            "missing": seen["missing"] is None or seen["missing"] >= STEP,  # nothing has a size that is not shown
            "overflow": seen["overflow"] > 0,
            "contrast": seen["contrast"] < 4.5,
        }
        wrong = [name for name, is_wrong in faults.items() if is_wrong]
        assert not wrong, f"terms of {page.name}, {width}: {wrong}, {seen}"


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
    if "<abbr" in page.read_text(encoding="utf-8"):
        explains(page, folder)
