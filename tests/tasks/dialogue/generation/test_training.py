"""Trainings whose replies an engine draws: what is corrected, what a resumed run draws, who evaluates, and what is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny_talk as tiny
import torch
from tiny_environments import ECHO, Ending
from tiny_folders import byte_folder, byte_network
from tiny_server import TinyServer

from grpo_pipeline.core.storage.checkpoint import NoCheckpoint
from grpo_pipeline.pipelines.training import nodes
from grpo_pipeline.pipelines.training.loop import StepRunner
from grpo_pipeline.pipelines.training.start import build_state

DISTINCT = {"own": {"distinct": {"function": "tiny_rewards:distinct", "weight": 1.0}}}
LIBRARY = {"kind": "transformers"}
CAPPED = {"kind": "truncate", "level": "decision", "cap": 2.0}
NOWHERE = {"kind": "openai_server", "base_url": "http://127.0.0.1:9/v1", "model": "tiny"}


def make_task(generation: dict[str, Any], *, kind: str = "qwen2", **changes: Any) -> Any:
    """Return a task over a folder; every second byte ends a reply."""
    network = {"kind": "folder", "path": byte_folder(kind)}
    sections = {"language_model": network, "replies": {"generation": generation}, "reward": DISTINCT}
    return replace(tiny.make_task(**tiny.merge(sections, changes)), tokenizer=Ending())


def run(task: Any, algorithm: Any, *, resume: str = "never", start: Any = None) -> Any:
    """Train four steps; return (train rows, checkpoints)."""
    training, data = tiny.training_params(epochs=4, checkpoint_every_steps=1, validate_every_epochs=4), tiny.make_data(task)
    state = build_state(algorithm, training, 0, task, data)
    found = [*nodes.train(algorithm, training, resume, task, data, state, start or NoCheckpoint("none"), {})]
    rows = [row for part, _ in found for row in part if row["split"] == "train"]
    return rows, [checkpoint for _, checkpoint in found if checkpoint is not False]


def step(task: Any, **changes: Any) -> Any:
    algorithm, training = tiny.algorithm_params(**changes), tiny.training_params()
    state = build_state(algorithm, training, 0, task, tiny.make_data(task))
    return StepRunner(task, algorithm, training)(state, task.make_batch(tiny.make_data(task), np.arange(4)))


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
@pytest.mark.parametrize("level", ["decision", "sequence"])
def test_the_library_draws_a_step_that_hardly_needs_its_correction(kind: str, level: str) -> None:
    _, metrics = step(make_task(LIBRARY, kind=kind, replies={"top_p": 0.9}), correction=CAPPED | {"level": level})
    assert 0 < metrics["engine/mismatch_max"] < 1e-4
    assert metrics["engine/weights_capped"] == 0
    assert metrics["policy/ratio_first"] == pytest.approx(1.0, abs=1e-5)


def test_a_resumed_run_draws_the_same() -> None:
    task, algorithm = make_task(LIBRARY), tiny.algorithm_params(correction=CAPPED)
    rows, checkpoints = run(task, algorithm)
    assert all("engine/mismatch_kl" in row for row in rows)
    _, again = run(task, algorithm, resume="auto", start=checkpoints[1])
    assert all(torch.equal(again[-1].policy[name], tensor) for name, tensor in checkpoints[-1].policy.items())


def test_a_server_with_other_weights_draws_for_steps_alone() -> None:
    """Validation asks it nothing; a resumed run asks the same."""
    with TinyServer(byte_network(seed=5)) as server:
        task = make_task(NOWHERE | {"base_url": server.base_url})
        rows, checkpoints = run(task, tiny.algorithm_params(correction=CAPPED | {"level": "sequence"}))
        asked = [*server.asked]
        assert len(asked) == 4 * 8  # steps and prompts
        assert all(row["engine/mismatch_kl"] > 1e-4 for row in rows)
        assert all(row["policy/ratio_first"] == pytest.approx(1.0, abs=1e-5) for row in rows)
        algorithm = tiny.algorithm_params(correction=CAPPED | {"level": "sequence"})
        _, again = run(task, algorithm, resume="auto", start=checkpoints[1])
    assert all(torch.equal(again[-1].policy[name], tensor) for name, tensor in checkpoints[-1].policy.items())
    seeds = [sorted(body["seed"] for body in part) for part in (asked[16:], server.asked[32:])]
    assert seeds[0] == seeds[1]
    assert len({body["seed"] for body in asked}) == 32


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no correction": (lambda: make_task(LIBRARY), {}, "algorithm.correction must be given with dialogue.replies.generation.kind"),
    "an encoder": (
        lambda: tiny.make_task(replies={"generation": NOWHERE}),
        {"correction": CAPPED},
        "must be own with a network with an encoder, got openai_server",
    ),
    "a new network": (
        lambda: tiny.make_task(language_model={"kind": "llama", "max_positions": 256}, replies={"generation": LIBRARY}),
        {"correction": CAPPED},
        "must be own with network.kind = llama, got transformers",
    ),
    "an environment": (
        lambda: make_task(LIBRARY, reward={"environment": {"weight": 1.0, "environment": ECHO, "turns": 3}}),
        {"correction": CAPPED},
        "must be own with reward.environment, got transformers",
    ),
    "a server that cuts": (
        lambda: make_task(NOWHERE, replies={"top_p": 0.9}),
        {"correction": CAPPED},
        "must be own with replies.top_k or top_p, got openai_server",
    ),
}


@pytest.mark.parametrize(("make", "changes", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_an_engine_cannot_draw_for_is_refused(make: Any, changes: dict[str, Any], sentence: str) -> None:
    task = make()
    with pytest.raises(ValueError, match=sentence):
        task.check_algorithm(tiny.algorithm_params(**changes))
    task.check_algorithm(tiny.algorithm_params("supervised"))  # which draws nothing


def test_a_checkpoint_agrees_on_the_engine_and_not_on_its_address() -> None:
    data = tiny.make_data()
    own, here, there, other = (
        make_task(one).fingerprint(data)
        for one in ({"kind": "own"}, NOWHERE, NOWHERE | {"base_url": "https://there/v1", "retries": 9}, NOWHERE | {"model": "x"})
    )
    assert "generation" not in own
    assert here == there
    assert here != other
    assert "generation" not in make_task(NOWHERE).describe(make_task(NOWHERE).build_policy(0))["replies"]
