"""The static site of the graph as a window of 1440 x 900 opens it: the scale that Kedro-Viz chooses, and what it draws."""

import json
import queue
import subprocess
import tempfile
import threading
import urllib.parse
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from browser import CHROMIUM

# Asks until the same is drawn at the same scale four times, and tells the server.
ASKS = """<body style="margin:0"><iframe src="/%s" style="border:0;width:1440px;height:900px"></iframe><script>
let before = "", same = 0;
setInterval(() => {
  const page = frames[0].document;  // the map in the corner comes before the graph
  const graph = [...page.querySelectorAll("g[transform*=scale]")].pop();
  const drawn = [...page.querySelectorAll(".pipeline-node text")].map(text => text.textContent);
  const layers = [...page.querySelectorAll(".pipeline-layer-name")].map(layer => layer.textContent);
  const now = JSON.stringify({transform: graph && graph.getAttribute("transform"), drawn, layers});
  same = graph && drawn.length && now === before ? same + 1 : 0;
  before = now;
  if (same === 4) fetch("/told?" + encodeURIComponent(now));
}, 300)</script>"""


def open_graph(site: Path, query: str = "") -> dict[str, object]:
    """Return ``transform``, the names that are ``drawn``, and the ``layers`` beside them."""
    told: queue.Queue[str] = queue.Queue()

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            if self.path.startswith("/told?"):
                told.put(urllib.parse.unquote(self.path.partition("?")[2]))
                self.send_response(204)
                self.end_headers()
            elif self.path == "/asks":
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write((ASKS % query).encode())
            else:
                super().do_GET()

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
        flags += ["--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0"]
        flags += ["--window-size=1440,1100", f"--user-data-dir={profile}"]
        address = f"http://127.0.0.1:{server.server_address[1]}/asks"
        browser = subprocess.Popen([str(CHROMIUM), *flags, address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            found: dict[str, object] = json.loads(told.get(timeout=120))
        finally:
            browser.terminate()
            browser.wait()
            server.shutdown()
    return found
