"""Put one fault at a time into a copy of the package, and show that the tests find each of them.

    python tests/mutations/run.py [NAME ...] [--table FILE]

Without a name the whole table is run. The tests first pass on the copy as it is. Exit status: 0 every fault was caught, 1 one
survived, 2 a fault no longer applies or its tests cannot be run.

Each run of tests is a process of its own, forked from one that has imported torch and pytest but not the package: that saves
the seconds of those imports.
"""

import argparse
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from table import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "grpo_pipeline"
PASSED, FAILED, STRAY = 0, 1, 90
TIMEOUT_SECONDS = 900
PRELOADED = ["hypothesis", "numpy", "pytest", "scipy.stats", "torch", "torch.optim"]
OPTIONS = ["-q", "-x", "--no-header", "--tb=short", "-p", "no:cacheprovider", "--hypothesis-seed=0"]


class RunError(RuntimeError):
    """The question whether a fault is caught cannot be answered."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table of verdicts and return the exit status."""
    parser = argparse.ArgumentParser(description="Show that the tests catch each one-line fault of the table.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults to run; default: all")
    parser.add_argument("--table", type=Path, help="a Python file with MUTATIONS of its own")
    options = parser.parse_args(arguments)
    # Before torch is imported in the process that all others are forked from.
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        mutations = select(MUTATIONS if options.table is None else load_table(options.table), options.names)
        survivors = run_all(mutations)
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


def select(mutations: Sequence[Mutation], names: Sequence[str]) -> list[Mutation]:
    """Return the mutations of these names, or all of them for none."""
    known = {mutation.name: mutation for mutation in mutations}
    if unknown := [name for name in names if name not in known]:
        raise RunError(f"a name must be one of the table's {len(known)}, got {', '.join(unknown)}; look into the table")
    return [known[name] for name in names] if names else list(mutations)


def run_all(mutations: Sequence[Mutation]) -> int:
    """Run every mutation, print its verdict, and return how many survived."""
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        source = Path(folder).resolve()
        # Without byte code: it is told apart by size and second alone, and a flipped sign changes neither.
        shutil.copytree(PACKAGE, source / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
        for mutation in mutations:
            mutation.applied((source / PACKAGE.name / mutation.file).read_text(encoding="utf-8"))
        check_unmutated(source, mutations)
        width = max(len(mutation.name) for mutation in mutations)
        caught = sum([run_one(source, mutation, width) for mutation in mutations])
    print(f"{caught} of {len(mutations)} caught")
    return len(mutations) - caught


def check_unmutated(source: Path, mutations: Sequence[Mutation]) -> None:
    """Raise unless all tests pass on the copy as it is."""
    tests = sorted({test for mutation in mutations for test in mutation.tests})
    start = time.perf_counter()
    status, log = run_tests(source, tests)
    if status != PASSED:
        raise RunError(f"the tests must pass without a fault, got status {status}; repair them first:\n{log[-3000:]}")
    print(f"without a fault: all tests pass, {time.perf_counter() - start:.1f} s", flush=True)


def run_one(source: Path, mutation: Mutation, width: int) -> bool:
    """Put the fault in, run its tests, take it out again, and print and return whether it was caught."""
    path = source / PACKAGE.name / mutation.file
    sound = path.read_text(encoding="utf-8")
    start = time.perf_counter()
    path.write_text(mutation.applied(sound), encoding="utf-8")
    try:
        status, log = run_tests(source, mutation.tests)
    finally:
        path.write_text(sound, encoding="utf-8")
    if status not in (PASSED, FAILED):
        raise RunError(f"the tests of {mutation.name} must pass or fail, got status {status}; see:\n{log[-3000:]}")
    verdict = "caught  " if status == FAILED else "SURVIVED"
    row = (
        f"{mutation.name:{width}} | {mutation.kind:11} | {verdict} | {time.perf_counter() - start:5.1f} s | {first_failure(log)}"
    )
    print(row.rstrip(" |"), flush=True)
    return status == FAILED


def first_failure(log: str) -> str:
    """Return the name of the test that failed, empty if none did."""
    found = re.search(r"^FAILED tests/(\S+)", log, flags=re.MULTILINE)
    return found[1] if found else ""


def run_tests(source: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run tests on the package below ``source`` in a process of their own; return its exit status and its output."""
    context = multiprocessing.get_context("forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn")
    context.set_forkserver_preload(PRELOADED)
    log = source / "log.txt"
    process = context.Process(target=run_pytest, args=(source, [f"tests/{test}" for test in tests], log))
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
