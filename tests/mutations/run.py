"""Put one fault at a time into a copy of the package, and show that the tests find each of them.

    python tests/mutations/run.py [NAME ...] [--only TEXT ...] [--jobs N] [--trust] [--fresh] [--table FILE]

Without a name the whole table is run; ``--only core/`` or ``--only step dialogue`` runs the faults whose file's path holds one
of the words. The tests that a fault names first pass on the copy as it is. Verdicts are kept in build/mutations.json until the
fault, its file or its tests change, so that a run that was broken off goes on; ``--fresh`` asks for all of them again. Exit
status: 0 every fault was caught, 1 one survived, 2 a fault no longer applies or its tests cannot be run.

Each run of tests is a process of its own, forked from one that has imported the libraries but not the package: that saves the
seconds of those imports.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import queue
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from table import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "grpo_pipeline"
KEPT = ROOT / "build" / "mutations.json"
PASSED, FAILED, STRAY = 0, 1, 90
TIMEOUT_SECONDS = 900
OF_CORE = ["hypothesis", "numpy", "pydantic", "pytest", "torch", "torch.optim", "yaml"]
PRELOADED = [
    *OF_CORE, "kedro.io", "kedro.pipeline", "kedro.runner", "kedro_datasets.json", "matplotlib.figure", "pandas",
    "rdkit.Chem", "rdkit.Chem.Draw", "scipy.stats", "sklearn.covariance", "sklearn.linear_model",
    "transformers.models.gpt2.modeling_gpt2", "transformers.models.llama.modeling_llama",
    "transformers.models.sam.modeling_sam", "transformers.models.t5.modeling_t5", "transformers.models.auto.modeling_auto",
]  # fmt: skip
OPTIONS = ["-q", "-x", "--no-header", "--tb=short", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
PRINTING = threading.Lock()


class RunError(RuntimeError):
    """The question whether a fault is caught cannot be answered."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table of verdicts and return the exit status."""
    parser = argparse.ArgumentParser(description="Show that the tests catch each one-line fault of the table.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults to run; default: all")
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="run the faults whose file holds one of these")
    parser.add_argument("--jobs", type=int, default=2, help="how many run at a time; default: 2")
    parser.add_argument("--trust", action="store_true", help="do not run the tests without a fault first")
    parser.add_argument("--fresh", action="store_true", help="forget the verdicts that are kept")
    parser.add_argument("--table", type=Path, help="a Python file with MUTATIONS of its own; no verdict of it is kept")
    options = parser.parse_args(arguments)
    # Before torch is imported in the process that all others are forked from.
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "MPLBACKEND": "agg", "GRPO_PROGRESS": "off"}
    try:
        table = MUTATIONS if options.table is None else load_table(options.table)
        mutations = select(table, options.names, options.only)
        kept = Verdicts(None if options.table is not None else KEPT, fresh=options.fresh)
        survivors = run_all(mutations, kept, jobs=max(1, options.jobs), trust=options.trust)
    except (RunError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 1 if survivors else 0


def load_table(path: Path) -> tuple[Mutation, ...]:
    """Return ``MUTATIONS`` of a Python file."""
    spec = spec_from_file_location("other_table", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise RunError(f"the table must be a Python file, got {path}; correct the path")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return tuple(module.MUTATIONS)


def select(mutations: Sequence[Mutation], names: Sequence[str], only: Sequence[str] = ()) -> list[Mutation]:
    """Return the mutations of these names whose file holds one of the texts of ``only``; all of them without either."""
    known = {mutation.name: mutation for mutation in mutations}
    if unknown := [name for name in names if name not in known]:
        raise RunError(f"a name must be one of the table's {len(known)}, got {', '.join(unknown)}; look into the table")
    chosen = [known[name] for name in names] if names else list(mutations)
    found = [mutation for mutation in chosen if not only or any(text in mutation.file for text in only)]
    if not found:
        raise RunError(f"--only must name part of a faulty file's path, got {' '.join(only)}; use core or pipelines/step")
    return found


class Verdicts:
    """Verdicts that were found before, in a file; None keeps nothing."""

    def __init__(self, path: Path | None, *, fresh: bool) -> None:
        self._path, self._lock = path, threading.Lock()
        is_there = path is not None and path.is_file() and not fresh
        self._found: dict[str, list[object]] = json.loads(path.read_text(encoding="utf-8")) if path and is_there else {}

    def get(self, key: str) -> list[object] | None:
        """Return whether the fault was caught, the seconds and the test; None if it is not known."""
        return self._found.get(key)

    def put(self, key: str, *values: object) -> None:
        """Keep a verdict; what is written is whole at any time."""
        with self._lock:
            self._found[key] = list(values)
            if self._path is not None:
                self._path.parent.mkdir(exist_ok=True)
                draft = self._path.with_suffix(".draft")
                draft.write_text(json.dumps(self._found, indent=0), encoding="utf-8")
                draft.replace(self._path)


def key_of(*parts: str) -> str:
    """Return a digest of texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def files_of(tests: Sequence[str]) -> list[str]:
    """Return the texts of the files that hold these tests, where they exist."""
    paths = [ROOT / "tests" / test.partition("::")[0] for test in tests]
    return [path.read_text(encoding="utf-8") for path in paths if path.is_file()]


def run_all(mutations: Sequence[Mutation], kept: Verdicts, *, jobs: int, trust: bool = False) -> int:
    """Run every mutation, print its verdict, and return how many survived."""
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copies: queue.Queue[Path] = queue.Queue()
        for number in range(jobs):
            source = Path(folder).resolve() / str(number)
            # Without byte code: it is told apart by size and second alone, and a flipped sign changes neither.
            shutil.copytree(PACKAGE, source / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
            copies.put(source)
        is_core = all(test.startswith("core/") for mutation in mutations for test in mutation.tests)
        context().set_forkserver_preload(OF_CORE if is_core else PRELOADED)
        for mutation in mutations:
            mutation.applied((PACKAGE / mutation.file).read_text(encoding="utf-8"))
        if not trust:
            check_unmutated(copies, mutations, kept, jobs)
        width = max(len(mutation.name) for mutation in mutations)
        start = time.perf_counter()
        with ThreadPoolExecutor(jobs) as pool:
            try:
                caught = sum(pool.map(lambda mutation: run_one(copies, mutation, kept, width), mutations))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    print(f"{caught} of {len(mutations)} caught, {time.perf_counter() - start:.0f} s")
    return len(mutations) - caught


def check_unmutated(copies: "queue.Queue[Path]", mutations: Sequence[Mutation], kept: Verdicts, jobs: int) -> None:
    """Raise unless all tests pass on the copy as it is."""
    tests = sorted({test for mutation in mutations for test in mutation.tests})
    package = key_of(*(path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))))
    keys = {test: key_of(package, test, *files_of([test])) for test in tests}
    missing = [test for test in tests if kept.get(keys[test]) is None]
    start = time.perf_counter()

    def check(part: Sequence[str]) -> None:
        source = copies.get()
        try:
            status, log = run_tests(source, part)
        finally:
            copies.put(source)
        if status != PASSED:
            raise RunError(f"the tests must pass without a fault, got status {status}; repair them first:\n{log[-3000:]}")
        for test in part:
            kept.put(keys[test], "passes")

    # Several parts for each job: what passed is kept if the run is broken off.
    parts = [part for number in range(4 * jobs) if (part := missing[number :: 4 * jobs])]
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(check, parts))
    print(f"without a fault: all tests pass, {time.perf_counter() - start:.1f} s", flush=True)


def run_one(copies: "queue.Queue[Path]", mutation: Mutation, kept: Verdicts, width: int) -> bool:
    """Put the fault in, run its tests, take it out again, and print and return whether it was caught."""
    sound = (PACKAGE / mutation.file).read_text(encoding="utf-8")
    key = key_of(repr(mutation), sound, *files_of(mutation.tests))
    known = kept.get(key)
    if known is None:
        known = list(find_out(copies, mutation, sound))
        kept.put(key, *known)
    is_caught, seconds, test = bool(known[0]), float(str(known[1])), str(known[2])
    verdict = "caught  " if is_caught else "SURVIVED"
    row = f"{mutation.name:{width}} | {mutation.kind:11} | {verdict} | {seconds:5.1f} s | {test}"
    with PRINTING:
        print(row.rstrip(" |"), flush=True)
    return is_caught


def find_out(copies: "queue.Queue[Path]", mutation: Mutation, sound: str) -> tuple[bool, float, str]:
    """Run the tests of a fault in a copy of the package; say whether one failed, after how many seconds, and which."""
    source = copies.get()
    path = source / PACKAGE.name / mutation.file
    start = time.perf_counter()
    path.write_text(mutation.applied(sound), encoding="utf-8")
    try:
        status, log = run_tests(source, mutation.tests)
    finally:
        path.write_text(sound, encoding="utf-8")
        copies.put(source)
    if status not in (PASSED, FAILED):
        raise RunError(f"the tests of {mutation.name} must pass or fail, got status {status}; see:\n{log[-3000:]}")
    return status == FAILED, round(time.perf_counter() - start, 1), first_failure(log)


def first_failure(log: str) -> str:
    """Return the name of the test that failed, empty if none did."""
    found = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", log, flags=re.MULTILINE)
    return found[1] if found else ""


def context() -> Any:
    """Return how processes are started: forked from one that has imported the libraries, where the system can."""
    return multiprocessing.get_context("forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn")


def run_tests(source: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run tests on the package below ``source`` in a process of their own; return its exit status and its output."""
    log = source / "log.txt"
    process = context().Process(target=run_pytest, args=(source, [f"tests/{test}" for test in tests], log))
    process.start()
    process.join(TIMEOUT_SECONDS)
    if process.exitcode is None:
        process.kill()
        raise RunError(f"tests must end within {TIMEOUT_SECONDS} s, got no end of {', '.join(tests)}; run them by hand")
    return process.exitcode, log.read_text(encoding="utf-8", errors="replace")


def run_pytest(source: Path, tests: Sequence[str], log: Path) -> None:
    """Run pytest in this process, with its output in a file, and exit with its status, or ``STRAY`` for another package."""
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # First in the path of this process, and of those that tests start.
    sys.path.insert(0, str(source))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(source), os.environ.get("PYTHONPATH"))))
    sys.dont_write_bytecode = True
    os.chdir(ROOT)
    import hypothesis
    import pytest

    # Examples that fail on a fault must not be tried first in the next run of the real suite, nor need they be small.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutations", database=None, phases=phases)
    hypothesis.settings.load_profile("mutations")
    status = int(pytest.main([*OPTIONS, *tests]))
    stray = stray_modules(source)
    print(f"imported from elsewhere: {stray}" if stray else "", flush=True)
    sys.exit(STRAY if stray else status)


def stray_modules(source: Path) -> list[str]:
    """Return modules of the package that do not come from ``source``; the package itself if it was not imported at all."""
    ours = {name: module for name, module in sys.modules.items() if name.split(".")[0] == PACKAGE.name}
    if PACKAGE.name not in ours:
        return [PACKAGE.name]
    return [name for name, module in ours.items() if not Path(str(module.__file__)).resolve().is_relative_to(source)]


if __name__ == "__main__":
    sys.exit(main())
