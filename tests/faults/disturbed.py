"""The faults: each disturbs runs in its own way and says how they ended."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from fault_outcomes import Outcome
from projects import (
    SECONDS,
    TASKS,
    Place,
    Start,
    Started,
    differences,
    forget_results,
    make_project,
    results,
    tree,
    without,
)

LEFT_BEHIND = "what a killed run leaves behind"
RESUME = ("--params", "resume=auto")
REWARD_PROCESS = b"grpo_pipeline.rewards.worker_main"  # in its command line


@dataclass
class Bench:
    """Parts that all faults share: where they work, how runs are started, and what undisturbed runs report.

    Attributes:
        folder: of all projects.
        start: starts a run.
        random: chooses moments and places.
        tasks: that are disturbed.
        kills: how many runs are killed, over all tasks.
        bad_inputs: how many wrong parameters are tried.
    """

    folder: Path
    start: Start
    random: random.Random
    tasks: tuple[str, ...] = TASKS
    kills: int = 100
    bad_inputs: int = 200
    _expected: dict[tuple[str, int], Any] = field(default_factory=dict)

    @cached_property
    def project(self) -> Path:
        """One project for all that begins with empty data."""
        return make_project(self.folder / "project")

    def run(self, *args: str, project: Path | None = None, **environ: str) -> Started:
        """Run to the end."""
        started = self.start(project or self.project, *args, **environ)
        started.wait()
        return started

    def expected(self, task: str, seed: int = 0, *, pipeline: str = "") -> tuple[Any, list[Place], float]:
        """Return what an undisturbed run reports, the places in which two of them differ, and the seconds that one takes."""
        key = (pipeline or task, seed)
        if key not in self._expected:
            found, seconds = [], 0.0
            for _ in range(2):
                forget_results(self.project)
                begin = time.monotonic()
                done = self.run("--pipelines", pipeline or task, "--params", f"seed={seed}")
                seconds = time.monotonic() - begin
                if done.code != 0:
                    raise RuntimeError(f"an undisturbed run of {task} must end well, got {done.code}: {done.said[-2000:]}")
                found.append(results(self.project, task))
            volatile = differences(*found)
            if moved := [place for place in volatile if place[0] not in ("comparison", "grid", "mlflow")]:
                raise RuntimeError(f"two undisturbed runs of {task} must agree, got differences in {moved[:5]}")
            self._expected[key] = without(found[0], volatile), volatile, seconds
        return self._expected[key]

    def use(self, executor: str) -> None:
        """Let runs train one after the other (``serial``) or at once (``processes``)."""
        (self.project / "conf/smoke/parameters.yml").write_text(f"executor: {{kind: {executor}}}\n", encoding="utf-8")

    def judge(
        self, fault: str, case: str, done: Started, task: str, *, seed: int = 0, project: Path | None = None, pipeline: str = ""
    ) -> Outcome:
        """Compare the results of a run that was to end well with those of an undisturbed one."""
        if done.has_traceback:
            return Outcome(fault, case, "traceback", done.said[-1500:])
        if done.code != 0:
            return Outcome(fault, case, "no clear end", f"exit {done.code}: {done.said[-500:]}")
        expected, volatile, _ = self.expected(task, seed, pipeline=pipeline)
        found = without(results(project or self.project, task), volatile)
        places = differences(expected, found)
        told = ", ".join(".".join(map(str, place)) for place in places[:4])
        return Outcome(fault, case, "silent difference" if places else "identical", told)


def judge_refusal(fault: str, case: str, done: Started, *, before: dict[str, str], data: Path) -> Outcome:
    """Say how a run ended that was to be refused, and whether what was reported before is still there."""
    if done.has_traceback:
        return Outcome(fault, case, "traceback", done.said[-1500:])
    if done.code == 0:
        return Outcome(fault, case, "silent difference", "accepted")
    now = tree(data)
    if gone := sorted(name for name, digest in before.items() if now.get(name) != digest):
        return Outcome(fault, case, "earlier file lost", ", ".join(gone[:4]))
    return Outcome(fault, case, "refused" if done.refusal else "no clear end", done.refusal or done.said[-500:])


def killed_runs(bench: Bench) -> Iterator[Outcome]:
    """Kill a run at a random moment, alone or with all that it started, and let another go on with it.

    Every other one trains its arms at once, and is to end as those that train one after the other.
    """
    yield from _killed(bench, "SIGKILL at a random moment, then resume", bench.kills, suffix="", again=RESUME)


def killed_grids(bench: Bench) -> Iterator[Outcome]:
    """Kill a comparison at a random moment, and run the same command again."""
    yield from _killed(bench, "SIGKILL of a comparison, then the same command", bench.kills // 5, suffix="_compare", again=())


def _killed(bench: Bench, fault: str, kills: int, *, suffix: str, again: tuple[str, ...]) -> Iterator[Outcome]:
    for number in range(kills):
        task = bench.tasks[number % len(bench.tasks)]
        pipeline, executor = task + suffix, ("serial", "processes")[number // len(bench.tasks) % 2]
        bench.use("serial")
        seconds = bench.expected(task, pipeline=pipeline)[2]
        bench.use(executor)
        killed = None
        while killed is None or killed.code == 0:  # it ended before its moment: nothing was killed, and it does not count
            forget_results(bench.project)
            moment, whole_group = bench.random.uniform(0.02, 1.0) * seconds, bench.random.random() < 0.5
            killed = bench.start(bench.project, "--pipelines", pipeline)
            if killed.wait(moment) is None:
                killed.kill(whole_group=whole_group)
        done = bench.run("--pipelines", pipeline, *again)
        case = f"{pipeline}, {executor}, {moment:.1f} of {seconds:.1f} s, {'with' if whole_group else 'without'} its processes"
        if killed.code != -signal.SIGKILL:
            yield Outcome(fault, case, "no clear end", f"exit {killed.code} before it was killed: {killed.said[-500:]}")
            continue
        yield bench.judge(fault, case, done, task, pipeline=pipeline)
        if left := [path.name for path in bench.project.glob("**/*.partial*")]:
            yield Outcome(LEFT_BEHIND, case, "no clear end", ", ".join(left[:4]))
    bench.use("serial")


def two_at_once(bench: Bench) -> Iterator[Outcome]:
    """Start a run with another seed while one is writing: one of them ends with its own results, the other with a sentence."""
    fault = "two runs at once in one folder"
    for task in bench.tasks:
        for share in (0.0, bench.random.uniform(0.05, 0.5)):
            pause = share * bench.expected(task)[2]
            bench.expected(task, 1)
            forget_results(bench.project)
            runs = [bench.start(bench.project, "--pipelines", task, "--params", "seed=0")]
            if runs[0].wait(pause) is not None:
                print(f"{fault}: {task}, {pause:.1f} s apart is not counted, the first had ended", file=sys.stderr)
                continue
            runs.append(bench.start(bench.project, "--pipelines", task, "--params", "seed=1"))
            codes = [run.wait() for run in runs]
            case = f"{task}, {pause:.1f} s apart"
            if sorted(codes, key=str) != [0, 1]:
                yield Outcome(fault, case, "silent difference", f"exit codes {codes}")
                continue
            winner = codes.index(0)
            yield bench.judge(fault, f"{case}: the one that ran", runs[winner], task, seed=winner)
            yield judge_refusal(fault, f"{case}: the other", runs[1 - winner], before={}, data=bench.project / "data")


def clock_in_the_future(bench: Bench) -> Iterator[Outcome]:
    """Let an earlier run of another seed bear the year 2099: a run must report what it did itself."""
    for task in bench.tasks:
        bench.expected(task)
        forget_results(bench.project)
        bench.run("--pipelines", task, "--params", "seed=1")
        for folder in list(bench.project.glob("data/0*/**/20[0-9][0-9]-*T*Z")):
            folder.rename(folder.with_name("2099" + folder.name[4:]))
        shutil.rmtree(bench.project / "mlruns", ignore_errors=True)
        (bench.project / "mlflow.db").unlink(missing_ok=True)
        done = bench.run("--pipelines", task, "--params", "seed=0")
        yield bench.judge("an earlier run stamped in the future", task, done, task)


def edited_checkpoints(bench: Bench) -> Iterator[Outcome]:
    """Change one number of a checkpoint's header, or one byte of its tensors, and resume: it must be refused."""
    fault = "edited or damaged checkpoint, then resume"
    for task in bench.tasks:
        bench.expected(task)
        forget_results(bench.project)
        bench.run("--pipelines", task)
        folder = bench.project / f"data/06_models/{task}_smoke/grpo/checkpoint"
        kept = bench.folder / "checkpoint"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(folder, kept)
        before = tree(bench.project / "data")
        for name, change in EDITS.items():
            shutil.rmtree(folder)
            shutil.copytree(kept, folder)
            change(folder, bench.random)
            done = bench.run("--pipelines", task, *RESUME)
            yield judge_refusal(fault, f"{task}: {name}", done, before=before, data=bench.project / "data")


def _edit_header(change: Callable[[dict[str, Any]], None]) -> Callable[[Path, random.Random], None]:
    def edit(folder: Path, random_: random.Random) -> None:
        file = folder / "checkpoint.json"
        header = json.loads(file.read_text())
        change(header)
        file.write_text(json.dumps(header))

    return edit


def _flip_bit(name: str) -> Callable[[Path, random.Random], None]:
    def flip(folder: Path, random_: random.Random) -> None:
        content = bytearray((folder / name).read_bytes())
        place = random_.randrange(len(content))
        content[place] ^= 1 << random_.randrange(8)
        (folder / name).write_bytes(content)

    return flip


def _cut(name: str) -> Callable[[Path, random.Random], None]:
    def cut(folder: Path, random_: random.Random) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: random_.randrange(len(content))])

    return cut


def _raise_rate(header: dict[str, Any]) -> None:
    for group in header["optimizer"]["groups"]:
        group["lr"] = group["lr"] * 10 + 1e-3


EDITS: dict[str, Callable[[Path, random.Random], None]] = {
    "step one less": _edit_header(lambda header: header["progress"].update(step=header["progress"]["step"] - 1)),
    "step 999": _edit_header(lambda header: header["progress"].update(step=999)),
    "step -1": _edit_header(lambda header: header["progress"].update(step=-1)),
    "another seed": _edit_header(lambda header: header["progress"].update(seed=7)),
    "another learning rate": _edit_header(_raise_rate),
    "another digest": _edit_header(lambda header: header.update(config_digest="0" * 64)),
    "a bit of the header": _flip_bit("checkpoint.json"),
    "a bit of the policy": _flip_bit("policy.safetensors"),
    "a bit of the optimiser": _flip_bit("optimizer.safetensors"),
    "header cut short": _cut("checkpoint.json"),
    "policy cut short": _cut("policy.safetensors"),
    "no policy": lambda folder, random_: (folder / "policy.safetensors").unlink(),
}


@contextmanager
def small_disk(folder: Path, *, megabytes: int) -> Iterator[None]:
    """Mount a small file system of its own over an empty folder."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def full_disk(bench: Bench) -> Iterator[Outcome]:
    """Fill the disk up to a few kilobytes after an earlier run, and run again: a sentence, and the earlier result stays whole."""
    yield from _on_a_small_disk(bench, "full disk", _fill)


def read_only_disk(bench: Bench) -> Iterator[Outcome]:
    """Make the disk read-only after an earlier run, and run again."""
    yield from _on_a_small_disk(bench, "read-only disk", _make_read_only)


def _on_a_small_disk(bench: Bench, fault: str, spoil: Callable[[Path, int], None]) -> Iterator[Outcome]:
    for task in bench.tasks:
        project = make_project(bench.folder / f"{fault} {task}")
        shutil.rmtree(project / "data")
        (project / "data").mkdir()
        try:
            with small_disk(project / "data", megabytes=400):
                bench.run("--pipelines", task, "--params", "seed=1", project=project)
                before = tree(project / "data")
                for kilobytes in (0, 40, 200, 600) if spoil is _fill else (0,):
                    spoil(project / "data", kilobytes)
                    done = bench.run("--pipelines", task, project=project)
                    yield judge_refusal(fault, f"{task}, {kilobytes} KB free", done, before=before, data=project / "data")
        except subprocess.CalledProcessError:
            print(f"{fault}: not tried, a file system cannot be mounted here", file=sys.stderr)
            return
        finally:
            shutil.rmtree(project, ignore_errors=True)


def _fill(data: Path, kilobytes: int) -> None:
    filler = data / "filler"
    filler.unlink(missing_ok=True)
    free = shutil.disk_usage(data).free - kilobytes * 1024
    with filler.open("wb") as file:
        for _ in range(max(0, free) // 4096):
            file.write(bytes(4096))


def _make_read_only(data: Path, kilobytes: int) -> None:
    subprocess.run(["mount", "-o", "remount,ro", data], check=True, capture_output=True)


def dead_server(bench: Bench) -> Iterator[Outcome]:
    """Let the tracking server die in the middle of a run: the run goes on."""
    for task in bench.tasks:
        seconds = bench.expected(task)[2]
        forget_results(bench.project)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        store = bench.folder / f"server-{task}"
        store.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
        command += ["--backend-store-uri", f"sqlite:///{store / 'server.db'}", "--artifacts-destination", str(store)]
        server = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_for(port)
            started = bench.start(bench.project, "--pipelines", task, MLFLOW_TRACKING_URI=f"http://127.0.0.1:{port}")
            started.wait(seconds * bench.random.uniform(0.3, 0.8))
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
        started.wait()
        expected, volatile, _ = bench.expected(task)
        found = without(results(bench.project, task), volatile) | {"mlflow": expected["mlflow"]}
        places = differences(expected, found)
        verdict = "silent difference" if places else "identical"
        if started.has_traceback or started.code != 0:
            verdict = "traceback" if started.has_traceback else "no clear end"
        yield Outcome("tracking server dies", task, verdict, started.said[-800:] if verdict != "identical" else "")


def _wait_for(port: int) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise RuntimeError("the tracking server did not start within two minutes")


def paused_workers(bench: Bench) -> Iterator[Outcome]:
    """Stop the processes that measure rewards for longer than a chunk may take: the values must be those of a quiet machine."""
    fault = "reward processes paused"
    for task in bench.tasks:
        limit = chunk_seconds(bench.project, task)
        if limit is None:
            print(f"{fault}: {task} is not counted, it measures no reward in a process", file=sys.stderr)
            continue
        seconds = bench.expected(task)[2]
        forget_results(bench.project)
        started, end, paused = bench.start(bench.project, "--pipelines", task), time.monotonic() + SECONDS, 0
        while paused < 2 and time.monotonic() < end and started.wait(bench.random.uniform(0.0, 0.1) * seconds) is None:
            if stopped := _workers(bench.project):
                _signal_all(stopped, signal.SIGSTOP)
                started.wait(limit + 2)
                _signal_all(stopped, signal.SIGCONT)
                paused += 1
        started.wait()
        case = f"{task}, {paused} times for {limit + 2:g} s"
        yield bench.judge(fault, case, started, task) if paused else Outcome(fault, case, "no clear end", "none was seen")


def chunk_seconds(project: Path, task: str) -> float | None:
    """Return how long a chunk of a task's rewards may take, which conf/base says; None where no process measures them."""
    parameters = yaml.safe_load((project / f"conf/base/{task}/parameters_training.yml").read_text())
    pool = parameters[task].get("reward_pool")
    return None if pool is None else float(pool["timeout_seconds"])


def _signal_all(pids: list[int], number: signal.Signals) -> None:
    subprocess.run(["kill", f"-{number.value}", *map(str, pids)], check=False, capture_output=True)


def _workers(project: Path) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = (entry / "cwd").readlink() == project.resolve() and REWARD_PROCESS in (entry / "cmdline").read_bytes()
        except OSError:
            continue
        found += [int(entry.name)] if is_ours else []
    return found
