"""Write the pipeline graph as a static site, and take a picture of it.

    python docs/pipeline_graph.py build data/08_reporting/viz
    python docs/pipeline_graph.py picture data/08_reporting/viz docs/images/pipeline.png --pipeline __default__ --size 1680x1050

The site is Kedro-Viz's own build, previews included, without the links to web fonts: it loads nothing from elsewhere and works
from any file server. It has 8 MB at most: Kedro-Viz itself is packed, a pipeline that is a part of another one is left out, and
so are the largest previews where they are too many. Previews of tables of patients are left out of it unless --patients asks for
them. The picture is what the site shows when it opens, or with --box what is in one box, taken by headless Chromium from such a
server, started for the purpose on a free local port.
"""

import argparse
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from small_picture import shrink  # noqa: E402

WEB_FONTS = re.compile(r"\s*<link\s[^>]*//fonts\.[^>]*>")
TRACKERS = ("heap.load", "heapanalytics", "googletagmanager")
START_PAGE = "start.html"
LIMIT = 8_000_000  # bytes of the site
SCRIPT = re.compile(r'<script type="module"[^>]*src="\./(assets/index-[^"]+\.js)"></script>')
# Unpacks Kedro-Viz; its hints of new features lie over the graph.
LOADER = """<script type="module">
localStorage.KedroViz ??= '{"showFeatureHints":false}';
const packed = (await fetch("./%s")).body.pipeThrough(new DecompressionStream("gzip"));
const script = new Blob([await new Response(packed).blob()], {type: "text/javascript"});
await import(URL.createObjectURL(script));
</script>"""
# Columns of the project's own tables that tell of a patient, and the data set whose columns have the user's names.
PATIENT_COLUMNS = {
    "patient_id",
    "core_id",
    "center",
    "involvement",
    "grade_group",
    "age",
    "psa",
    "psa_density",
    "family_history",
}
MANIFEST = "ImageFolderDataset"


def build_site(
    target: Path, project: Path = ROOT, *, env: str = "", with_patients: bool = False
) -> None:
    """Build the static site of ``project`` into ``target``, which is replaced; previews show the data of ``env``.

    A site is copied to others more easily than the data: tables of patients are in it only with ``with_patients``.

    Raises:
        RuntimeError: if Kedro-Viz fails, with what it printed, or if the built page holds a tracking script.
    """
    command = [sys.executable, "-m", "kedro", "viz", "build", "--include-previews"]
    environment = os.environ | {"DO_NOT_TRACK": "true"} | ({"KEDRO_ENV": env} if env else {})
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    built = project / "build"
    if done.returncode or not (built / "index.html").is_file():
        raise RuntimeError(
            f"kedro viz build must succeed, got exit status {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    index = built / "index.html"
    page = WEB_FONTS.sub("", index.read_text(encoding="utf-8"))
    if found := [word for word in TRACKERS if word in page]:
        raise RuntimeError(
            f"the built page must hold no tracking script, got {found}; set consent: false in .telemetry"
        )
    index.write_text(pack_script(built, page), encoding="utf-8")
    drop_parts(built)
    if not with_patients:
        drop_patient_tables(built, PATIENT_COLUMNS | own_columns(project, env))
    drop_large_previews(built)
    if target.exists():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(built, target)


def own_columns(project: Path, env: str) -> set[str]:
    """Return the columns, in small letters, that the parameters of ``env`` name as clinical or as telling patients apart."""
    # The project's loader: it knows which other environment this one extends.
    from grpo_pipeline.runs.config_loader import ReplacingConfigLoader
    from grpo_pipeline.settings import CONFIG_LOADER_ARGS

    loader = ReplacingConfigLoader(str(project / "conf"), env=env or None, **CONFIG_LOADER_ARGS)
    sections = [section for section in loader["parameters"].values() if isinstance(section, dict)]
    parts = [part for section in sections for part in section.values() if isinstance(part, dict)]
    named = [part["columns"] for part in parts if isinstance(part.get("columns"), dict)]
    clinical = [name for columns in named for name in columns.get("clinical") or []]
    return {
        str(name).casefold()
        for name in [*clinical, *(columns.get("patient_id") for columns in named)]
        if name
    }


def drop_patient_tables(site: Path, patient_columns: Collection[str] = PATIENT_COLUMNS) -> int:
    """Remove the previews of tables of patients, which have one of these columns, from a built site; return how many."""
    dropped = 0
    for path in sorted((site / "api" / "nodes").glob("*")):
        node = json.loads(path.read_text(encoding="utf-8"))
        preview = node.get("preview")
        if not isinstance(preview, dict) or "columns" not in preview:
            continue
        if {str(name).casefold() for name in preview["columns"]} & set(
            patient_columns
        ) or MANIFEST in json.dumps(node):
            path.write_text(
                json.dumps(node | {"preview": None, "preview_type": None}), encoding="utf-8"
            )
            dropped += 1
    return dropped


def pack_script(site: Path, page: str) -> str:
    """Pack Kedro-Viz, drop what only diagrams in Mermaid would load of it, and return the page that opens it.

    Raises:
        RuntimeError: if the page loads Kedro-Viz otherwise.
    """
    if (found := SCRIPT.search(page)) is None:
        raise RuntimeError(
            "index.html must load one script assets/index-….js, got none; look at what Kedro-Viz builds"
        )
    script = site / found[1]
    packed = script.with_suffix(".packed")  # a name that no server unpacks by itself
    packed.write_bytes(gzip.compress(script.read_bytes(), mtime=0))
    for path in script.parent.glob("*.js"):
        path.unlink()
    return page.replace(found[0], LOADER % packed.relative_to(site).as_posix())


def drop_parts(site: Path) -> None:
    """Leave out the pipelines whose nodes are all in another one, and what is told of nodes of no pipeline."""
    pages = {
        path.name: json.loads(path.read_text("utf-8"))
        for path in (site / "api" / "pipelines").iterdir()
    }
    tasks = {
        name: {node["id"] for node in page["nodes"] if node["type"] == "task"}
        for name, page in pages.items()
    }
    kept: list[str] = []
    first = json.loads((site / "api" / "main").read_text("utf-8"))["selected_pipeline"]
    for name in sorted(pages, key=lambda name: (-len(tasks[name]), name != first, name)):
        if not any(tasks[name] <= tasks[other] for other in kept):
            kept.append(name)
    shown = set()
    for path in (site / "api" / "main", *(site / "api" / "pipelines").iterdir()):
        if path.name not in (*kept, "main"):
            path.unlink()
            continue
        page = pages[first if path.name == "main" else path.name]
        page["pipelines"] = [pipeline for pipeline in page["pipelines"] if pipeline["id"] in kept]
        for node in page["nodes"]:
            node["pipelines"] = [name for name in node["pipelines"] if name in kept]
            if node.get("parameters"):  # api/nodes has them, too, and Kedro-Viz shows those
                node["parameters"] = {}
        shown |= {node["id"] for node in page["nodes"]}
        _write(path, page)
    for path in (site / "api" / "nodes").iterdir():
        if path.name in shown:
            _write(path, json.loads(path.read_text("utf-8")))
        else:
            path.unlink()


def drop_large_previews(site: Path, limit: int = LIMIT) -> list[str]:
    """Leave out the largest previews of data until the site has at most ``limit`` bytes; says which, and returns their files."""
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    dropped = []
    for path in sorted((site / "api" / "nodes").iterdir(), key=lambda path: -path.stat().st_size):
        if size <= limit:
            break
        node = json.loads(path.read_text("utf-8"))
        if node.get("preview"):
            size -= path.stat().st_size
            _write(path, node | {"preview": None, "preview_type": None})
            size += path.stat().st_size
            dropped.append(str(node.get("filepath") or path.name))
    if dropped:
        print(
            f"The site has no preview of {', '.join(dropped)}: with them it would have more than {limit} bytes."
        )
    return dropped


def _write(path: Path, content: object) -> None:
    path.write_text(
        json.dumps(content, separators=(",", ":"), ensure_ascii=False), encoding="utf-8"
    )


START = """<body style="margin:0"><script>
localStorage.KedroViz = JSON.stringify({theme: %(theme)s, showFeatureHints: false});
</script><iframe src=%(address)s style="border:0;width:%(width)spx;height:%(height)spx"></iframe><script>
const box = %(box)s, wait = setInterval(() => {
  const found = box && frames[0].document.querySelector(`.pipeline-node[data-id="${box}"]`);
  if (found) found.dispatchEvent(new MouseEvent("click", {bubbles: true}));
  if (found || !box) clearInterval(wait);
}, 500)</script>"""


def start_page(pipeline: str, *, theme: str, box: str, size: str) -> str:
    """Return a page that opens Kedro-Viz in this size, and a box, if one is named, as a click on it does.

    The window of a headless browser has its full height only when the picture is taken, after Kedro-Viz has chosen its scale.
    """
    address, (width, height) = f"/?pid={pipeline}" + (f"&fid={box}" if box else ""), size.split("x")
    texts = {"theme": theme, "address": address, "box": box}
    quoted = {name: json.dumps(text) for name, text in texts.items()}
    return START % {**quoted, "width": width, "height": height}


class QuietHandler(SimpleHTTPRequestHandler):
    """A file handler that does not log its requests."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def take_picture(
    site: Path, picture: Path, *, pipeline: str, size: str, theme: str, box: str = ""
) -> None:
    """Open ``pipeline`` of the static site, or one box of it, in headless Chromium, and write a PNG.

    Raises:
        RuntimeError: if there is no Chromium, no site, or no picture afterwards.
    """
    chromium = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if chromium is None:
        raise RuntimeError(
            "chromium must be on PATH to take the picture, got none; on Debian: apt-get install chromium"
        )
    if not (site / "api" / "pipelines" / pipeline).is_file():
        raise RuntimeError(
            f"{site} must hold pipeline {pipeline}, got no such file under api/pipelines; build the site first"
        )
    picture.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "site")
        shutil.copytree(site, copy)
        (copy / START_PAGE).write_text(
            start_page(pipeline, theme=theme, box=box, size=size), encoding="utf-8"
        )
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(copy)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-sync",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--hide-scrollbars",
            "--virtual-time-budget=30000",
        ]
        flags += [
            f"--window-size={size.replace('x', ',')}",
            f"--user-data-dir={folder}/profile",
            f"--screenshot={folder}/picture.png",
        ]
        address = f"http://127.0.0.1:{server.server_address[1]}/{START_PAGE}"
        done = subprocess.run(
            [chromium, *flags, address], capture_output=True, text=True, timeout=180, check=False
        )
        server.shutdown()
        if not Path(folder, "picture.png").is_file():
            raise RuntimeError(
                f"chromium must write a picture, got exit status {done.returncode}:\n{done.stderr}"
            )
        shutil.move(Path(folder, "picture.png"), picture)
    shrink(picture)


def main() -> None:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build")
    build.add_argument("site", type=Path)
    build.add_argument("--env", default="", help="folder of conf/ whose data the previews show")
    build.add_argument(
        "--patients", action="store_true", help="keep previews of tables that tell of patients"
    )
    picture = commands.add_parser("picture")
    picture.add_argument("site", type=Path)
    picture.add_argument("picture", type=Path)
    picture.add_argument("--pipeline", default="__default__")
    picture.add_argument(
        "--size", default="1680x1050", help="width x height of the window, in pixels"
    )
    picture.add_argument("--theme", default="light", choices=["light", "dark"])
    picture.add_argument(
        "--box", default="", help="the box that is shown from inside, such as attention-train_grpo"
    )
    arguments = parser.parse_args()
    try:
        if arguments.command == "build":
            build_site(arguments.site, env=arguments.env, with_patients=arguments.patients)
        else:
            options = {
                "pipeline": arguments.pipeline,
                "size": arguments.size,
                "theme": arguments.theme,
            }
            take_picture(arguments.site, arguments.picture, box=arguments.box, **options)
    except RuntimeError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
