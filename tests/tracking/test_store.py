"""The store is found from any folder, and one that does not answer is recognised within seconds."""

import re
import socket
import sqlite3
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from grpo_pipeline.tracking.addresses import redact
from grpo_pipeline.tracking.mlflow_config import artifact_location, parse_config
from grpo_pipeline.tracking.store import root_cause, tracking_uri, unusable_reason

PROJECT = Path("/some/project")


def config(uri=None, location=None):
    experiment = {"name": "x", "create_experiment_kwargs": {"artifact_location": location}}
    return parse_config({"server": {"mlflow_tracking_uri": uri}, "tracking": {"experiment": experiment}})


@pytest.mark.parametrize(
    ("configured", "environ", "uri"),
    [
        (None, {}, "sqlite:////some/project/mlflow.db"),
        ("sqlite:///runs/a.db", {}, "sqlite:////some/project/runs/a.db"),
        ("sqlite:////tmp/a.db", {}, "sqlite:////tmp/a.db"),
        ("http://server:5000", {}, "http://server:5000"),
        ("http://server:5000", {"MLFLOW_TRACKING_URI": "http://other"}, "http://other"),
        (None, {"MLFLOW_TRACKING_URI": ""}, "sqlite:////some/project/mlflow.db"),
    ],
)
def test_where_the_store_is(configured, environ, uri):
    assert tracking_uri(config(configured), PROJECT, environ=environ) == uri


@pytest.mark.parametrize(
    ("uri", "chosen", "location"),
    [
        ("sqlite:////a.db", None, "/some/project/mlruns"),
        ("http://server", None, None),
        ("http://server", "s3://bucket/x", "s3://bucket/x"),
        ("sqlite:////a.db", "files", "/some/project/files"),
    ],
)
def test_where_files_go(uri, chosen, location):
    assert artifact_location(config(location=chosen), PROJECT, uri=uri) == location


def test_a_password_is_never_shown():
    assert redact("https://me:hunter2@server:5000/x") == "https://server:5000/x"
    assert redact("sqlite:////a.db") == "sqlite:////a.db"
    assert redact("http://me:hunter2@[::1") == "an unreadable address"


def closed_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("http://127.0.0.1:{closed_port}", "Connection refused"),
        ("http://no.such.host.invalid:5000", "Name or service not known|name resolution|No address"),
        ("http://[::1", "it is no address"),
        ("http://", "it is no address"),
        ("http://server:99999", "it is no address"),
        ("localhost:5000", "it is no address"),
        ("htp://server", "it is no address"),
        ("sqlite://mlflow.db", "it is no address"),
        ("./mlruns", "closed its stores in folders: write sqlite:///mlflow.db"),
        ("file:mlruns", "closed its stores in folders: write sqlite:///mlflow.db"),
        ("sqlite:////proc/nowhere/mlflow.db", "the folder /proc/nowhere does not exist"),
        ("sqlite:////proc/self/mlflow.db", "unable to open database file"),
    ],
)
def test_a_store_that_is_not_there(uri, reason):
    start = time.perf_counter()
    assert re.search(reason, unusable_reason(uri.replace("{closed_port}", str(closed_port()))))
    assert time.perf_counter() - start < 100  # MLflow itself would try for minutes


def test_a_server_that_accepts_and_never_answers():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.perf_counter()
        reason = unusable_reason(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.3)
    assert reason == "cannot be reached (no answer within 0 s)"
    assert time.perf_counter() - start < 100


def answering(code, body, kind):
    """A server on 127.0.0.1 that gives one answer to the first request."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    return HTTPServer(("127.0.0.1", 0), Answers)


@pytest.mark.parametrize(
    ("code", "body", "kind", "reason"),
    [
        (200, b"{}", "application/json", None),
        (401, b"no", "text/plain", "it answers 401 Unauthorized; set MLFLOW_TRACKING_USERNAME"),
        (
            403,
            b'{"error_code": "PERMISSION_DENIED"}',
            "application/json",
            "it answers 403 Forbidden; set MLFLOW_TRACKING",
        ),
        (404, b"<html></html>", "text/html", "it answers 404 Not Found, as no MLflow server does; correct MLFLOW_TRACKING_URI"),
        (
            200,
            b"<html>log in</html>",
            "text/html; charset=utf-8",
            r"it answers with text/html, as a log-in page .* correct",
        ),
        (503, b"", "text/plain", "it answers 503 Service Unavailable; see the server's log"),
    ],
)
def test_an_answer_that_is_not_mlflows_has_a_cause_and_a_way_out(code, body, kind, reason):
    with answering(code, body, kind) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        found = unusable_reason(f"http://127.0.0.1:{server.server_port}/sub")
    assert found is None if reason is None else re.search(reason, found)


def test_a_folder_may_be_a_store_where_mlflow_was_told_so(monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert unusable_reason("./mlruns") is None


def test_a_database_that_cannot(tmp_path):
    (tmp_path / "text.db").write_text("no database " * 100)
    assert unusable_reason(f"sqlite:///{tmp_path / 'text.db'}") == "cannot be reached (file is not a database)"
    with sqlite3.connect(tmp_path / "busy.db", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert unusable_reason(f"sqlite:///{tmp_path / 'busy.db'}", timeout=0.1) == "cannot be reached (database is locked)"


def test_the_root_of_a_chain_is_told():
    inner, outer = ConnectionRefusedError(111, "Connection refused"), RuntimeError("HTTPConnectionPool: Max retries exceeded")
    outer.__cause__ = inner
    assert root_cause(outer) == "Connection refused"
    assert root_cause(KeyError()) == "KeyError"
