"""Take the pictures of docs/images: what a person sees first of each surface, as it opens, unedited, in headless Chromium.

    python docs/screenshots.py [--env smoke] [--only page figures mlflow]

Pages are those of the last runs (default: of conf/base); of a task or comparison that has none there is no picture. MLflow is
opened as `make mlflow` opens it. The graph has a command of its own, `make screenshot`.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from small_picture import shrink  # noqa: E402

IMAGES = ROOT / "docs/images"
WIDE, PHONE = (1440, 900), (420, 900)
SWITCHES = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
    ),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)
PAGES = {
    "answer": "report.html",
    "compare": "compare/compare.html",
    "cross_validation": "cross_validation/cross_validation.html",
}
# Figures of the attention task: picture -> file below data/08_reporting/<task> and size of the window.
# A viewer that shows no animation shows its frame 0, which is the last one.
DRAWN = {
    "curve_reward": ("learning_curves/*/learning_curves/00_reward_mean.svg", (540, 250)),
    "curve_entropy": ("learning_curves/*/learning_curves/02_policy_entropy.svg", (540, 250)),
    "roc": ("roc.svg/*/roc.svg", (540, 520)),
}
FRAMES = {"points_at_the_start": 1, "points_at_the_end": 0}
KINDS = ("page", "figures", "mlflow")
LARGEST = 1200  # pixels
PORT = 5077


def take(
    address: str, file: Path, size: tuple[int, int], *, is_dark: bool = False, wait: int = 3000
) -> None:
    """Take a picture of a page once nothing loads any more, at most ``wait`` milliseconds of its own time."""
    program = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if program is None:
        raise SystemExit(
            "error: pictures need Chromium on the path; install it (Debian: apt install chromium)"
        )
    with tempfile.TemporaryDirectory() as profile:
        flags = (
            f"--user-data-dir={profile}",
            f"--window-size={size[0]},{size[1]}",
            f"--blink-settings=preferredColorScheme={0 if is_dark else 1}",
            f"--virtual-time-budget={wait}",
            f"--screenshot={file}",
        )
        subprocess.run(
            [program, *SWITCHES, *flags, address], capture_output=True, check=True, timeout=180
        )
    shrink(file)
    print(file.relative_to(ROOT))


def pages(env: str) -> Iterator[Path]:
    """Yield the newest report of each kind below data/08_reporting: of the environment, of attention where there are several."""
    suffix = f"_{env}" if env else ""
    for kind, name in PAGES.items():
        found = [
            ROOT / f"data/08_reporting/{task}{suffix}/{name}"
            for task in ("attention", "dialogue", "molecules")
        ]
        yield from [path for path in found if path.is_file()][: None if kind == "answer" else 1]


def take_pages(env: str) -> None:
    """Take the first screen of each page, light and dark, and as a phone shows it."""
    for page in pages(env):
        folder = page.relative_to(ROOT / "data/08_reporting").parts
        task, kind = folder[0].removesuffix(f"_{env}"), page.stem if len(folder) > 2 else "answer"
        name = (
            kind
            if (kind, task) == ("answer", "attention") or kind != "answer"
            else f"{kind}_{task}"
        )
        take(page.as_uri(), IMAGES / f"{name}.png", WIDE)
        if name in PAGES:
            take(page.as_uri(), IMAGES / f"{name}_dark.png", WIDE, is_dark=True)
            take_phone(page, IMAGES / f"{name}_phone.png")


def take_phone(page: Path, file: Path) -> None:
    """Take a picture of a page in a frame: a window is never as narrow as a phone."""
    with tempfile.TemporaryDirectory() as there:
        frame = Path(there) / "phone.html"
        style = f"border:0;width:{PHONE[0]}px;height:{PHONE[1]}px"
        frame.write_text(
            f'<body style="margin:0"><iframe style="{style}" src="{page.as_uri()}"></iframe>'
        )
        take(frame.as_uri(), file, PHONE)


def take_figures(env: str) -> None:
    """Take figures of the last run of the attention task: curves, the reward audit, points before and after training."""
    folder = ROOT / "data/08_reporting" / ("attention" + (f"_{env}" if env else ""))
    for name, (pattern, size) in DRAWN.items():
        if found := sorted(folder.glob(pattern)):
            take(found[-1].as_uri(), IMAGES / f"{name}.png", size)
    for name, file in (
        ("reward_audit", folder / "reward_audit/rewards.png"),
        (
            "own_images",
            folder.parent / "attention_practice/examples.png",
        ),  # docs/tutorials/own_images.md
    ):
        if file.is_file():
            store_figure(Image.open(file), IMAGES / f"{name}.png")
    for file in sorted(folder.glob("animation.png/*/animation.png"))[-1:]:
        for name, frame in FRAMES.items():
            animation = Image.open(file)
            animation.seek(frame)
            store_figure(animation, IMAGES / f"{name}.png")


def store_figure(figure: Image.Image, file: Path) -> None:
    """Store a figure on white, and not larger than a page shows it."""
    shown = figure.convert("RGBA")
    paper = Image.new("RGBA", shown.size, "white")
    paper.alpha_composite(shown)
    paper.thumbnail((LARGEST, LARGEST))
    paper.convert("RGB").save(file)
    shrink(file)
    print(file.relative_to(ROOT))


def take_mlflow(env: str) -> None:
    """Take MLflow's list of runs, the newest run of a task, its models, and its arms beside each other."""
    from mlflow.tracking import MlflowClient

    command = [sys.executable, "-m", "grpo_pipeline.tracking", "--port", str(PORT)]
    extra = {"KEDRO_ENV": env} if env else {}
    server = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ | extra
    )
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        address = re.match(r"(\S+?)(/#/\S+) shows (\S+);", line)
        if address is None:
            raise SystemExit(f"error: MLflow must have a local store, got: {line.strip()}")
        host, runs, store = address.groups()
        client = MlflowClient(store)
        experiment = re.search(r"experiments/(\d+)", runs)
        if experiment is None:
            raise SystemExit("error: MLflow must hold a run, got none; run a task first")
        _wait(host)
        view = "workflowType=machine_learning"
        found = client.search_runs([experiment[1]], "tags.verdict != ''", max_results=1)
        take(host + runs, IMAGES / "mlflow_runs.png", WIDE, wait=20_000)
        take(
            f"{host}/#/experiments/{experiment[1]}/models?{view}",
            IMAGES / "mlflow_models.png",
            WIDE,
            wait=20_000,
        )
        for run in found:
            here = f"{host}/#/experiments/{experiment[1]}/runs/{run.info.run_id}?{view}"
            take(here, IMAGES / "mlflow_run.png", WIDE, wait=20_000)
            inside = f"tags.`mlflow.parentRunId` = '{run.info.run_id}'"
            arms = [one.info.run_id for one in client.search_runs([experiment[1]], inside)]
            query = f"runs={json.dumps(arms)}&experiments={json.dumps([experiment[1]])}&{view}"
            take(f"{host}/#/compare-runs?{query}", IMAGES / "mlflow_compare.png", WIDE, wait=20_000)
    finally:
        server.terminate()
        server.wait(30)


def _wait(host: str) -> None:
    for _ in range(120):
        try:
            urllib.request.urlopen(f"{host}/health", timeout=2)
        except OSError:
            time.sleep(0.5)
        else:
            return
    raise SystemExit(f"error: MLflow must answer at {host}, got nothing for a minute")


def main(arguments: Sequence[str] | None = None) -> int:
    """Take what is asked for; return the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--env", default="", help="environment of the runs")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    given = parser.parse_args(arguments)
    IMAGES.mkdir(exist_ok=True)
    if "page" in given.only:
        take_pages(given.env)
    if "figures" in given.only:
        take_figures(given.env)
    if "mlflow" in given.only:
        take_mlflow(given.env)
    return 0


if __name__ == "__main__":
    sys.exit(main())
