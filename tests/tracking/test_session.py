"""However a run is stopped, MLflow and the shell hear of it."""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time

import pytest
from forked_kedro import KEDRO, kedro_command

from grpo_pipeline.session import Terminated, by_task, resume_command, sigterm_raises


def test_ctrl_c_ends_the_run_as_killed_with_one_line(tiny):
    params = "attention.training.stop=SIGINT,attention.training.stop_at=4"
    done = tiny.run(params)
    said = f"\nStopped by Ctrl-C. `{KEDRO} run --params {params},resume=auto` goes on from the last checkpoint.\n"
    assert (done.returncode, done.stderr, done.stdout) == (130, said, "")
    assert stopped_steps(tiny, "KeyboardInterrupt") == [0, 1, 2, 3]


def test_sigterm_from_outside_is_obeyed_at_once(tiny):
    params = "attention.training.steps=1000,attention.training.step_seconds=0.05"
    environ = {**os.environ, "MLFLOW_TRACKING_URI": ""}
    pipe = subprocess.PIPE
    process = subprocess.Popen(tiny.command(params), cwd=tiny.path, stdout=pipe, stderr=pipe, text=True, env=environ)
    deadline = time.monotonic() + 240
    while not list((tiny.path / "data").rglob("metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    said = f"\nStopped by SIGTERM. `{KEDRO} run --params {params},resume=auto` goes on from the last checkpoint.\n"
    assert (process.communicate(timeout=600), process.returncode) == (("", said), 143)
    steps = stopped_steps(tiny, "SIGTERM")
    assert steps == list(range(len(steps)))
    assert len(steps) < 1000


def stopped_steps(tiny, error):
    """The steps that MLflow holds of the arm that was stopped; it and its parent were killed."""
    runs = tiny.runs()
    assert {run.info.status for run in runs if run.info.run_name == "__default__"} == {runs[-1].info.status} == {"KILLED"}
    assert runs[-1].data.tags["error.message"] == error
    return [metric.step for metric in tiny.client.get_metric_history(runs[-1].info.run_id, "reward/mean")]


def test_sigterm_is_held_up_for_the_grace_period_only(tiny):
    (tiny.path / "conf/local/mlflow.yml").write_text("sigterm_grace_seconds: 0.000001\n")
    done = tiny.run("attention.training.stop=SIGTERM", "attention.training.stop_at=4")
    assert done.returncode == 143
    lost, *rest = done.stderr.splitlines()
    assert lost.startswith("MLflow at sqlite:")
    assert "(not all was written within 0 s); the run goes on, metrics are kept in" in lost
    command = f"{KEDRO} run --params attention.training.stop=SIGTERM,attention.training.stop_at=4,resume=auto"
    assert rest == ["", f"Stopped by SIGTERM. `{command}` goes on from the last checkpoint."]


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        ("kedro run", "run --params resume=auto"),
        (
            "/x/__main__.py run --env smoke --pipelines dialogue,molecules",
            "run --env smoke --pipelines dialogue,molecules --params resume=auto",
        ),
        ("kedro run --params seed=1,resume=never,a.b=2 -e gpu", "run --params seed=1,a.b=2,resume=auto -e gpu"),
        ("kedro run --params=resume:auto --async", "run --params=resume=auto --async"),
        ("kedro run --params 'run=my folder'", "run --params 'run=my folder,resume=auto'"),
        ("grpo check --task dialogue", f"{KEDRO} check --task dialogue --params resume=auto"),
        ("pytest tests", f"{KEDRO} run --params resume=auto"),
    ],
)
def test_the_hint_is_the_whole_command(argv, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = resume_command(shlex.split(argv))
    assert said.startswith(f"{KEDRO} ")
    assert said.endswith(command)


def test_the_hint_begins_in_the_folder_as_a_new_shell_would(tmp_path, monkeypatch):
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    assert resume_command(["kedro", "run"]) == f"{tmp_path}/.venv/bin/python -m kedro run --params resume=auto"
    (tmp_path / ".venv" / "bin" / "kedro").touch()
    assert resume_command(["kedro", "run"]) == ".venv/bin/kedro run --params resume=auto"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resume_command(["kedro", "run"]) == f"{tmp_path}/.venv/bin/kedro run --params resume=auto"


def test_sigterm_unwinds_what_runs_and_the_handler_goes_back():
    before, unwound = signal.getsignal(signal.SIGTERM), []

    def work():
        with sigterm_raises():
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                unwound.append(True)

    with pytest.raises(Terminated) as stopped:
        work()
    assert stopped.value.code == 143
    assert unwound == [True]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_thread_changes_no_handler():
    found = []

    def work():
        with sigterm_raises():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]


def test_ctrl_c_in_a_notebook_stays_a_keyboard_interrupt(tiny):
    """Without a command line there is no exit code to set: the notebook's own handling applies."""
    code = (
        "from kedro.framework.session import KedroSession\n"
        "from kedro.framework.startup import bootstrap_project\n"
        "from kedro.framework.project import settings\n"
        f"bootstrap_project({str(tiny.path)!r})\n"
        "params = {'attention': {'training': {'stop': 'SIGINT', 'stop_at': 2}}}\n"
        f"with settings.SESSION_CLASS.create(project_path={str(tiny.path)!r}, runtime_params=params) as session:\n"
        "    try:\n"
        "        session.run()\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted')\n"
    )
    done = subprocess.run(kedro_command(code=code), cwd="/", capture_output=True, text=True, check=False)
    assert done.stdout.endswith("interrupted\n"), done.stderr
    assert done.stderr == ""
    assert {status for _, status in tiny.statuses()} == {"KILLED"}


@pytest.mark.parametrize(
    ("names", "turns"),
    [
        (["molecules", "attention"], [["attention"], ["molecules"]]),
        (["attention_data", "dialogue", "compare"], [["attention_data", "compare"], ["dialogue"]]),
        (["attention_data", "attention_train"], [["attention_data", "attention_train"]]),
        (["dialogue", "digits", "attention"], [["dialogue", "digits", "attention"]]),
        (["dialogue", "atention"], [["dialogue", "atention"]]),
        (["dialogue", "__default__"], [["dialogue", "__default__"]]),
        ([], [[]]),
    ],
)  # fmt: skip
def test_pipelines_of_several_tasks_run_task_by_task(names, turns):
    assert by_task(names) == turns
