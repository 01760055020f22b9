"""`kedro` as a command that starts at once: a server has imported libraries and the package, and every run is a fork of it.

``kedro_command("run", "--env", "smoke")`` stands for ``[sys.executable, "-m", "kedro", "run", ...]`` wherever a command is
started: folder, environment, streams, exit status, Ctrl-C and SIGTERM are those of the command. SIGKILL reaches the run a moment
later; ``process_of`` is killed at once. A test of the start itself or of the process tree starts a real one.

A run imports the package itself where the files of its project differ from those of the server, or ``PYTHONPATH`` does. MLflow's
tables are copied from a file of the server: their hundred migrations take longer than a short run.
"""

import atexit
import gc
import inspect
import json
import os
import runpy
import select
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, suppress
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

PRELOADED = (
    "PIL.GifImagePlugin", "PIL.JpegImagePlugin", "alembic.command", "contourpy", "fsspec.implementations.chained",
    "fsspec.implementations.local", "kedro.framework.cli.cli", "kedro.framework.cli.project", "kedro.framework.context",
    "kedro.framework.session", "kedro.framework.session.store", "kedro.runner", "kedro.validation.parameter_validator",
    "kedro_datasets.json", "kedro_datasets.matplotlib", "kedro_datasets.pandas", "kedro_datasets.text",
    "kedro_telemetry.plugin", "kedro_viz", "kedro_viz.integrations.kedro.hooks", "kedro_viz.integrations.kedro.run_hooks",
    "kedro_viz.launchers.cli.main", "matplotlib.backends.backend_agg", "matplotlib.pyplot", "mlflow.pyfunc",
    "mlflow.store.tracking.dbmodels.initial_models", "mlflow.store.tracking.sqlalchemy_store", "mlflow.tracking",
    "omegaconf._impl", "pandas", "pyarrow.pandas_compat", "pygments.formatters.html", "pygments.lexers.html", "rdkit.Chem",
    "rouge_score.rouge_scorer", "scipy.stats", "sklearn.covariance", "sklearn.feature_extraction.text", "sklearn.linear_model",
    "sqlalchemy.dialects.sqlite.pysqlite", "torch", "torch.optim", "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.sam.modeling_sam", "transformers.models.t5.modeling_t5",
)  # fmt: skip
PACKAGE = "grpo_pipeline"
# Modules that do something when they are imported, and those that import such a one.
ACTING = (".__main__", ".settings", ".tracking.export", ".tracking.store_page", ".worker_main")
SECONDS_TO_START = 120
KEDRO = str(Path(sys.executable).with_name("kedro"))  # how messages call it where the environment lies outside of the project


def kedro_command(*args: str, code: str = "", file: int = 2, server: str = "") -> list[str]:
    """Return the command that runs ``kedro`` with arguments in a fork of a server: this process's, which is started when needed.

    With ``code`` that is run instead, as ``python -c`` does. An open ``file`` that the command is given goes to the fork, too.
    """
    return [sys.executable, "-I", "-S", __file__, server or _server(), str(file), code, *args]


class ForkedWorkers:
    """Stands for ``subprocess`` where the package starts a worker or a reward process: it is a fork, and imports nothing."""

    PIPE, DEVNULL, TimeoutExpired = subprocess.PIPE, subprocess.DEVNULL, subprocess.TimeoutExpired
    server = ""  # whose fork this process is, if it is one

    @staticmethod
    def Popen(command: list[str], *, env: dict[str, str], **given: Any) -> "subprocess.Popen[bytes]":  # noqa: N802
        """Start ``python -P -m <module> [<number of an open file>]``; what is on this process's path is on the worker's."""
        *python, module = command[:4]
        arguments = command[4:]
        assert python == [sys.executable, "-P", "-m"]
        # A worker logs into its pipe; Kedro, which it would not import, has logged elsewhere.
        code = (
            "import logging, runpy, sys; logging.root.handlers.clear(); "
            f"sys.path[1:1] = {sys.path!r}; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
        )
        env = {name: value for name, value in env.items() if name != "PYTHONPATH"}
        env |= {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        file = int(arguments[0]) if arguments else 2
        asking = kedro_command(*arguments, code=code, file=file, server=ForkedWorkers.server)
        return subprocess.Popen(asking, env=env, **given)


def process_of(command: "subprocess.Popen[str]") -> int:
    """Return the id of the process that does the work of a command that was started and has not ended."""
    file = Path(f"{_server()}-{command.pid}")
    deadline = time.monotonic() + SECONDS_TO_START
    while not file.exists():
        if command.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the run did not start")
        time.sleep(0.005)
    return int(file.read_text())


@cache
def _server() -> str:
    """Start the server and return the path of its socket. It ends when this process does: its standard input is closed then."""
    folder = tempfile.mkdtemp(prefix="kedro-")
    path = f"{folder}/socket"
    server = subprocess.Popen([sys.executable, __file__, "serve", path], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    deadline = time.monotonic() + SECONDS_TO_START
    while not Path(path).exists():
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the server of kedro runs did not start")
        time.sleep(0.02)
    return path


def _serve(path: str) -> None:
    """Fork a run for each connection until standard input is closed."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{path}.partial")
    listening.listen(16)
    os.environ["MLFLOW_CONFIGURE_LOGGING"] = "false"  # the package sets it before it imports MLflow
    for name in PRELOADED:
        __import__(name)
    imported = _import_package()
    _copy_tables_from(f"{path}-tables.db")
    import yaml
    from mlflow.utils.requirements_utils import _init_modules_to_packages_map
    from sqlalchemy import Engine, event
    from sqlalchemy.orm import configure_mappers

    configure_mappers()  # MLflow's, which its first query would do
    _init_modules_to_packages_map()  # which the first model that is saved would do
    # The same parser in C, and no wait for a disk whose power no test cuts: a kill loses nothing that was written.
    yaml.SafeLoader, yaml.SafeDumper = yaml.CSafeLoader, yaml.CSafeDumper
    os.fsync = lambda descriptor: None
    event.listen(Engine, "connect", lambda connection, record: connection.execute("PRAGMA synchronous=OFF"))
    inspect.stack = partial(inspect.stack, 0)  # dynaconf asks for files; their lines are looked for in thousands of modules
    gc.collect()
    gc.freeze()  # no fork looks through what was imported again
    gc.set_threshold(100_000, 50, 50)
    os.rename(f"{path}.partial", path)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is the test's
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait
    while True:
        ready, _, _ = select.select([listening, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            _run(path, connection, imported)
        connection.close()


def _import_package() -> dict[str, tuple[int, int]]:
    """Import the modules of the package, and return its files as they were before."""
    spec = find_spec(PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    files = _files_of(folder)
    for module in walk_packages([str(folder)], f"{PACKAGE}.", onerror=lambda name: None):
        if not module.name.endswith(ACTING):
            with suppress(Exception):  # an extra is missing, or the module is faulty, which the run that imports it says
                __import__(module.name)
    assert f"{PACKAGE}.settings" not in sys.modules, f"a module imports the settings: add its name to ACTING in {__file__}"
    return files


def _files_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Return name -> size and time of change of the Python files below a folder; those of a copy are the same."""
    files = {str(file.relative_to(folder)): file.stat() for file in folder.rglob("*.py")}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in files.items()}


def _copy_tables_from(file: str) -> None:
    """Make MLflow's tables once, in a file, and let each new sqlite database of a run be a copy of it."""
    import mlflow.store.db.utils
    from sqlalchemy import Engine, create_engine

    made = create_engine(f"sqlite:///{file}")
    mlflow.store.db.utils._initialize_tables(made)
    made.dispose()

    def copy(engine: Engine) -> None:
        with closing(sqlite3.connect(file)) as source, closing(engine.raw_connection()) as target:
            source.backup(target.driver_connection)

    mlflow.store.db.utils._initialize_tables = copy


def _run(path: str, connection: socket.socket, imported: dict[str, tuple[int, int]]) -> None:
    """Read what to run, run it in a fork, and tell the other end how it ended; signals from there go to it."""
    for number in (signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    message, streams, _, _ = socket.recv_fds(connection, 1 << 20, 4)
    while not message.endswith(b"\n"):
        message += connection.recv(1 << 20)
    asked = json.loads(message)
    run = os.fork()
    if run == 0:
        connection.close()
        _take_package_of(asked["folder"], asked["environ"], imported)
        _fork_reward_processes(path)
        _become_kedro(asked, streams)
    named = Path(f"{path}-{asked['command']}")
    named.with_suffix(".partial").write_text(str(run))
    named.with_suffix(".partial").rename(named)
    for stream in streams:
        os.close(stream)
    gone = False
    while True:
        ended, status = os.waitpid(run, os.WNOHANG)
        if ended:
            break
        if gone:
            time.sleep(0.02)
        elif select.select([connection], [], [], 0.02)[0]:
            signals = connection.recv(64)  # a byte each
            gone = not signals
            for sent in signals or [signal.SIGKILL]:
                os.kill(run, sent)
    named.unlink()
    if not gone:
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _take_package_of(folder: str, environ: dict[str, str], imported: dict[str, tuple[int, int]]) -> None:
    """Let the imported package be that of the project around a folder if its files are the same; forget it otherwise.

    On another ``PYTHONPATH`` may lie another package, or a task of its own, which the package finds at its import.
    """
    modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == PACKAGE}
    place = next((found for at in (Path(folder), *Path(folder).parents) if (found := at / "src" / PACKAGE).is_dir()), None)
    same_path = environ.get("PYTHONPATH", "") == os.environ.get("PYTHONPATH", "")
    if place is None or not same_path or _files_of(place) != imported:
        for name in modules:
            del sys.modules[name]
        return
    old, new = str(Path(str(modules[PACKAGE].__file__)).parent), str(place)
    for module in modules.values():
        module.__file__ = module.__spec__.origin = str(module.__file__).replace(old, new)  # type: ignore[union-attr]
        if hasattr(module, "__path__"):
            module.__path__[:] = [folder.replace(old, new) for folder in module.__path__]


def _fork_reward_processes(path: str) -> None:
    """Let the reward processes of a run be forks, too: a new one imports for longer than it works in a short run."""
    ForkedWorkers.server = path
    if process := sys.modules.get(f"{PACKAGE}.rewards.process"):  # its package may be imported anew
        process.subprocess = ForkedWorkers  # type: ignore[attr-defined]


def _become_kedro(asked: dict[str, Any], streams: list[int]) -> None:
    """Go on as ``python -m kedro`` in the folder, with the environment and the streams that were asked for."""
    import kedro.framework.project

    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in zip((0, 1, 2, asked["file"]), streams, strict=True):
        os.dup2(stream, number)
        if stream != number:
            os.close(stream)
    os.environ.clear()
    os.environ.update(asked["environ"])
    os.chdir(asked["folder"])
    sys.path[:] = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
    sys.path.insert(0, asked["folder"])
    sys.path[1:1] = [entry for entry in asked["environ"].get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.argv = ["-c" if asked["code"] else "kedro", *asked["arguments"]]
    type(kedro.framework.project.LOGGING).__init__(
        kedro.framework.project.LOGGING
    )  # reads conf/logging.yml of the folder, as at its import
    code: object = 0
    try:
        if asked["code"]:
            exec(compile(asked["code"], "<string>", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_module("kedro", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - as the interpreter does at its end
        sys.excepthook(*sys.exc_info())
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _ask(path: str, file: int, code: str, arguments: list[str]) -> int:
    """Have the server run ``kedro`` or code with this process's folder, environment and streams, and end as the run does."""
    connection = socket.socket(socket.AF_UNIX)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: connection.sendall(bytes([number])))
    connection.connect(path)
    asked = {"command": os.getpid(), "folder": os.getcwd(), "environ": dict(os.environ), "code": code, "arguments": arguments}
    socket.send_fds(connection, [json.dumps(asked | {"file": file}).encode() + b"\n"], [0, 1, 2, file])
    if file > 2:
        os.close(file)  # its other end hears when the fork has ended
    answer = b""
    while not answer.endswith(b"\n"):
        part = connection.recv(64)
        if not part:
            return 1
        answer += part
    status = int(answer)
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2])
    else:
        sys.exit(_ask(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]))
