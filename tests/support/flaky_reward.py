"""A reward of the user's that misbehaves, and a run with it that is stopped by Ctrl-C and then finished."""

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from kedro_processes import reward_processes, start, trained_steps

REWARD = '''"""A reward that raises, gives no number, and hangs once."""

import time
from pathlib import Path


def flaky(subjects, references, *, marker):
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        return [one(text) for text in subjects]
    time.sleep(1000)


def one(text):
    if len(text) % 5 == 0:
        raise KeyError(text)
    return float("nan") if len(text) % 5 == 1 else len(text) / 24
'''


@dataclass(frozen=True)
class Stopped:
    """A run that was stopped by Ctrl-C: how it ended, and what it had done by then.

    Attributes:
        code: the exit status.
        said: its standard error.
        seen, left: ids of its reward processes just before Ctrl-C, and after its end.
        steps: of the last checkpoint, by stage.
        warm_start: the weights of the warm start, as bytes.
    """

    code: int
    said: str
    seen: list[int]
    left: list[int]
    steps: dict[str, int]
    warm_start: bytes


def write_reward(project: Path, task: str, *, failure: str) -> None:
    """Put the reward beside the package, and its parameters into ``smoke``; it hangs until the file ``it_hung`` exists."""
    (project / "src" / "my_rewards.py").write_text(REWARD)
    own = {"flaky": {"function": "my_rewards:flaky", "weight": 1.0, "options": {"marker": str(project / "it_hung")}}}
    file = project / f"conf/smoke/{task}/parameters_training.yml"
    parameters = yaml.safe_load(file.read_text())
    parameters[task]["reward"] = {"own": own}
    parameters[task]["reward_pool"] = {"workers": 1, "timeout_seconds": 2.0, "chunk_size": 8, "failure": failure}
    file.write_text(yaml.safe_dump(parameters))


def stop_and_finish(project: Path, task: str, *, stages: Sequence[str], within: Sequence[str]) -> Stopped:
    """Run a task, press Ctrl-C as soon as one of the arms ``within`` has made two steps, and let a second run finish it."""
    process, deadline = start(project, "--pipelines", task), time.monotonic() + 600
    while max(trained_steps(project, task, arm) for arm in within) < 2 and process.poll() is None:
        assert time.monotonic() < deadline, f"none of {', '.join(within)} made two steps in time"
        time.sleep(0.02)
    seen = reward_processes(project)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=600)[1]
    left = reward_processes(project)
    steps = {stage: trained_steps(project, task, stage) for stage in stages}
    stopped = Stopped(process.returncode, said, seen, left, steps, warm_weights(project, task))
    again = start(project, "--pipelines", task, "--params", "resume=auto")
    said = again.communicate(timeout=600)[1]
    assert again.returncode == 0, said
    return stopped


def warm_weights(project: Path, task: str) -> bytes:
    """Return the weights of the warm start's last checkpoint."""
    return (project / f"data/06_models/{task}_smoke/warm_start/checkpoint/policy.safetensors").read_bytes()
