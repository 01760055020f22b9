"""Show that a change of the code leaves every number of a run as it was.

    python tests/frozen/same_numbers.py [--base COMMIT] [--pipelines NAME ...] [--env smoke]      (or: make frozen BASE=<commit>)

The pipelines run with seed 0 and one thread, each in an empty project of its own: once with the code and configuration of BASE
(default: where this branch left main; on main itself the commit before), once with those of the working tree. Then weights,
metric rows, comparison and every other number are compared bit by bit, whatever the files, folders and modules are called.
No numbers are stored in the repository: they differ between machines. Those of a commit are kept in data/frozen.

Exit status: 0 all equal (or renamed), 1 a number differs, 2 a run failed.
"""

import argparse
import hashlib
import io
import os
import platform
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from artefacts import KINDS, Artefacts, compare, read_artefacts

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "data" / "frozen"
PARTS = ("src", "conf", "pyproject.toml", ".telemetry")  # what a run reads
# One place for names that change: the first that a commit registers is run.
PIPELINES = {
    "attention": ("attention",),
    "dialogue": ("dialogue",),
    "molecules": ("molecules",),
    "gradient_flow": ("attention_gradient_flow", "gradient_flow"),
    "compare": ("molecules_compare", "dialogue_compare"),
}
DEFAULT = ("attention", "dialogue", "molecules")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
QUIET = {"DO_NOT_TRACK": "true", "GRPO_PROGRESS": "off", "MLFLOW_DISABLE_TELEMETRY": "true", "MPLBACKEND": "agg"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print pipeline x artefact: equal, renamed or differs; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base", help="commit to compare with (default: the merge base with main, else HEAD~1)")
    parser.add_argument("--pipelines", nargs="+", choices=PIPELINES, default=DEFAULT, metavar="NAME")
    parser.add_argument("--env", default="smoke")
    options = parser.parse_args(arguments)
    base = git("rev-parse", "--verify", f"{options.base or default_base()}^{{commit}}")
    tree = working_tree()
    print(f"{base[:12]} against {tree[:12] if tree else 'the working tree'}, env {options.env}, seed 0, one thread")
    status = 0
    for name in options.pipelines:
        try:
            before, after = (numbers_of(code, name, options.env) for code in (base, tree))
        except RuntimeError as error:
            print(f"{name:14} {error}")
            status = 2
            continue
        for kind in KINDS:
            found = compare(before[kind], after[kind])
            print(f"{name:14} {kind:12} {found.verdict:8} {found.n_values:6} values  {found.detail}".rstrip(), flush=True)
            status = max(status, int(found.verdict == "differs"))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{used.ru_utime + used.ru_stime:.0f} s of CPU")
    return status


def git(*arguments: str) -> str:
    """Run git in the repository and return what it prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def default_base() -> str:
    """Return where HEAD left the main branch; the commit before HEAD where it has not."""
    head, branches = git("rev-parse", "HEAD"), git("branch", "--all", "--format=%(refname:short)").splitlines()
    main_branch = next((name for name in ("main", "master", "origin/main", "origin/master") if name in branches), "HEAD")
    fork = git("merge-base", "HEAD", main_branch)
    return fork if fork != head else "HEAD~1"


def working_tree() -> str | None:
    """Return the commit that the working tree equals in what a run reads, None where it was changed."""
    return None if git("status", "--porcelain", "--", *PARTS) else git("rev-parse", "HEAD")


def numbers_of(commit: str | None, pipeline: str, env: str) -> Artefacts:
    """Run one pipeline with the code of ``commit`` (None: the working tree) and read its numbers, or read those kept of it.

    Raises:
        RuntimeError: if the run fails; the message ends with the last lines that it printed.
    """
    kept = CACHE / f"{commit[:12]}-{env}-{pipeline}-{circumstances()}.npz" if commit else None
    if kept and kept.is_file():
        return load(kept)
    with tempfile.TemporaryDirectory(prefix="frozen-") as folder:
        project = Path(folder) / "project"
        copy_project(commit, project)
        run_pipeline(project, pipeline, env)
        numbers = read_artefacts(project)
    if not numbers["weights"] and not numbers["tables"]:
        raise RuntimeError(f"a finished run must leave weights or tables, got none of {pipeline}")
    if kept:
        save(kept, numbers)
    return numbers


def circumstances() -> str:
    """Return a digest of what else decides numbers, or how they are read: machine, interpreter, torch, numpy, artefacts.py."""
    reader = Path(__file__).with_name("artefacts.py").read_text(encoding="utf-8")
    known = (platform.node(), platform.machine(), sys.version, torch.__version__, np.__version__, reader)
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:8]


def copy_project(commit: str | None, target: Path) -> None:
    """Make ``target`` a project without data: from a commit, or from the files of the working tree that git does not ignore."""
    if commit:
        there = [part for part in git("ls-tree", "--name-only", commit).splitlines() if part in PARTS]
        packed = subprocess.run(["git", "archive", commit, "--", *there], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(target, filter="data")
    else:
        listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *PARTS)
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, target / name)
    (target / "conf" / "local").mkdir(parents=True, exist_ok=True)
    (target / "data").mkdir()


def run_pipeline(project: Path, pipeline: str, env: str) -> None:
    """Run the first pipeline of the entry that is registered in ``project``."""
    name, *others = PIPELINES[pipeline]
    if others:
        registered = run_kedro(project, "registry", "list").stdout.split()
        name = next((one for one in PIPELINES[pipeline] if one in registered), name)
    done = run_kedro(project, "run", "--env", env, "--pipelines", name, "--params", "seed=0")
    if done.returncode:
        raise RuntimeError(f"kedro run --pipelines {name} failed:\n" + "\n".join((done.stdout + done.stderr).splitlines()[-15:]))


def run_kedro(project: Path, *arguments: str, before: Sequence[str] = ("-m", "kedro")) -> subprocess.CompletedProcess[str]:
    """Run Kedro in ``project`` with the project's own code, wherever the environment's package lies."""
    outer = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_", "KEDRO_", "GRPO_"))}
    environ = outer | ONE_THREAD | QUIET | {"PYTHONPATH": str(project / "src")}
    command = [sys.executable, *before, *arguments]
    return subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, check=False)


def save(path: Path, numbers: Artefacts) -> None:
    """Write the numbers as one .npz, in place at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    flat = {f"{kind}\n{name}": value for kind, values in numbers.items() for name, value in values.items()}
    names = np.array(list(flat))
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        np.savez_compressed(file, names=names, **{str(index): value for index, value in enumerate(flat.values())})
    part.replace(path)


def load(path: Path) -> Artefacts:
    """Read what ``save`` wrote."""
    numbers: Artefacts = {kind: {} for kind in KINDS}
    with np.load(path, allow_pickle=False) as stored:
        for index, label in enumerate(stored["names"]):
            kind, _, name = str(label).partition("\n")
            numbers[kind][name] = stored[str(index)]
    return numbers


if __name__ == "__main__":
    sys.exit(main())
