"""Write the pipeline graph as a static site, and take a picture of it.

    python docs/pipeline_graph.py build data/08_reporting/viz
    python docs/pipeline_graph.py picture data/08_reporting/viz docs/images/pipeline.png --pipeline __default__ --size 1800x950

The site is Kedro-Viz's own build, previews included, without the links to web fonts: it loads nothing from elsewhere and works
from any file server. A page whose pipeline is one box, that of its task, opens with this box unfolded. Previews of
tables of patients are left out of it unless --patients asks for them. The picture is what the site shows when it opens, taken
by headless Chromium from such a server, started for the purpose on a free local port.
"""

import argparse
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
WEB_FONTS = re.compile(r"\s*<link\s[^>]*//fonts\.[^>]*>")
TRACKERS = ("heap.load", "heapanalytics", "googletagmanager")
START_PAGE = "start.html"
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
    index.write_text(page, encoding="utf-8")
    for shown in (built / "api" / "main", *(built / "api" / "pipelines").iterdir()):
        unfold_outermost(shown)
    if not with_patients:
        drop_patient_tables(built, PATIENT_COLUMNS | own_columns(project, env))
    if target.exists():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(built, target)


def own_columns(project: Path, env: str) -> set[str]:
    """Return the columns, in small letters, that the parameters of ``env`` name as clinical or as telling patients apart."""
    # The project's loader: it knows which other environment this one extends.
    from grpo_pipeline.runs.parameters import ReplacingConfigLoader
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


def unfold_outermost(page: Path) -> None:
    """Put what is in the one box around everything, the task, into the place of that box, as after a click on it.

    Nothing else changes: every node, arrow and layer of the page stays.
    """
    content = json.loads(page.read_text(encoding="utf-8"))
    boxes = content["modular_pipelines"]
    shown = boxes["__root__"]["children"]
    outermost = [child for child in shown if child["type"] == "modularPipeline"]
    if len(outermost) != 1:
        return
    box = outermost[0]["id"]
    boxes["__root__"]["children"] = [child for child in shown if child["id"] != box] + boxes.pop(
        box
    )["children"]
    content["nodes"] = [node for node in content["nodes"] if node["id"] != box]
    content["edges"] = [
        edge for edge in content["edges"] if box not in (edge["source"], edge["target"])
    ]
    page.write_text(json.dumps(content), encoding="utf-8")


def start_page(pipeline: str, *, theme: str, is_expanded: bool) -> str:
    """Return a page that tells Kedro-Viz how to show itself (it remembers that in the browser) and then opens it."""
    state = {"theme": theme, "showFeatureHints": False, "expandAllPipelines": is_expanded}
    address = f"/?pid={pipeline}" + ("&expandAllPipelines=true" if is_expanded else "")
    return f"<script>localStorage.setItem('KedroViz', JSON.stringify({json.dumps(state)}));location.replace('{address}')</script>"


class QuietHandler(SimpleHTTPRequestHandler):
    """A file handler that does not log its requests."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def take_picture(
    site: Path, picture: Path, *, pipeline: str, size: str, theme: str, is_expanded: bool
) -> None:
    """Open ``pipeline`` of the static site in headless Chromium, with its namespaces collapsed or expanded, and write a PNG.

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
            start_page(pipeline, theme=theme, is_expanded=is_expanded), encoding="utf-8"
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
        "--size", default="1800x950", help="width x height of the window, in pixels"
    )
    picture.add_argument("--theme", default="light", choices=["light", "dark"])
    picture.add_argument(
        "--expanded", action="store_true", help="show the nodes inside of the namespaces"
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
            options["is_expanded"] = arguments.expanded
            take_picture(arguments.site, arguments.picture, **options)
    except RuntimeError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
