"""Changes that a resumed run accepts, those that it refuses by name, and what it says about the rest."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_talk
import torch
from tiny_attention import algorithm_params, differing, make_data, make_examples, make_task, section, training_params

from grpo_pipeline.core.agreement import execution_fields
from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import LENGTH, TrainingParams
from grpo_pipeline.core.storage.checkpoint import Checkpoint, CheckpointError, NoCheckpoint
from grpo_pipeline.datasets.checkpoint import CheckpointDataset
from grpo_pipeline.pipelines import training as training_package
from grpo_pipeline.pipelines.training import frames, nodes
from grpo_pipeline.pipelines.training.resuming import run_digest
from grpo_pipeline.pipelines.training.start import build_state
from grpo_pipeline.rewards.params import PoolParams
from grpo_pipeline.tasks.attention.build import build_task
from grpo_pipeline.tasks.attention.losses.params import SupervisedParams
from grpo_pipeline.tasks.attention.model.params import ModelParams as AttentionModelParams
from grpo_pipeline.tasks.attention.rewards.params import RewardParams

DATA, NOTHING = make_data(), NoCheckpoint("nowhere")
SECTIONS = {"algorithm": "attention.grpo.algorithm", "training": "attention.training", "task": "attention"}
CONSTANT = {"kind": "constant", "start": 1.0, "end": 1.0, "warmup_steps": 0}
# Each key that only says how, a value that differs from the tiny task's, and how close the weights end (0: the same bits).
HOW: dict[str, tuple[Any, float]] = {
    "device": ("auto", 0.0), "memory_format": ("channels_last", 1e-4),
    "activation_checkpointing": ("encoder", 0.0), "micro_batch_size": (2, 1e-4), "log_every_steps": (3, 0.0),
    "checkpoint_every_steps": (1, 0.0), "gradient_report_every_steps": (4, 0.0),
    "animation_frames": (0, 0.0),
}  # fmt: skip
WHAT: dict[str, Any] = {
    "precision": "bf16", "float32_products": "ieee", "batch_size": 3, "group_size": 3, "encoder_refresh": "every_epoch",
    "temperature": CONSTANT | {"start": 0.5, "end": 0.5}, "optimizer": {"weight_decay": 0.5}, "validate_every_epochs": 2,
    "validation_samples": 3, "keep": "best",
}  # fmt: skip


def loop(**changes: Any) -> TrainingParams:
    """Return 3 epochs of 2 steps, checkpoints after steps 2, 4 and 6, on the CPU."""
    usual = {"epochs": 3, "batch_size": 4, "device": "cpu", "encoder_refresh": "once", "animation_frames": 12}
    return training_params(**usual | changes)


def train(training: TrainingParams, *, start: Any = NOTHING, algorithm: AlgorithmParams | None = None) -> list[Any]:
    """Train with a task that is built for this loop; return what is yielded."""
    models = (AttentionModelParams, "model"), (RewardParams, "reward"), (SupervisedParams, "supervised_loss")
    task = build_task(*(model.model_validate(section(name)) for model, name in models), make_examples(), training)
    algorithm = algorithm or algorithm_params()
    state = build_state(algorithm, training, 0, task, DATA)
    return list(nodes.train(algorithm, training, "auto", task, DATA, state, start, None, sections=SECTIONS))


def run(training: TrainingParams, **options: Any) -> list[Checkpoint]:
    return [checkpoint for _, checkpoint in train(training, **options) if checkpoint is not False]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], str]]:
    """Return what was logged since the last call; the package's own loggers do not pass on to the root."""
    logger = logging.getLogger(training_package.__name__)
    logger.addHandler(caplog.handler)
    level = logger.level
    logger.setLevel(logging.INFO)

    def read() -> str:
        text = "\n".join(dict.fromkeys(record.getMessage() for record in caplog.records))
        caplog.clear()
        return text

    yield read
    logger.setLevel(level)
    logger.removeHandler(caplog.handler)


@pytest.fixture(scope="module")
def unbroken() -> list[Checkpoint]:
    return run(loop())


def test_what_says_how_may_change_when_a_run_goes_on(unbroken: list[Checkpoint]):
    """That a compiled encoder computes the same is the subject of test_encoder_execution; here, that the checkpoint lets it."""
    assert execution_fields(TrainingParams) == HOW.keys()
    assert execution_fields(PoolParams) == {"workers", "timeout_seconds", "chunk_size", "cache_size"}
    assert {*HOW, *WHAT, *LENGTH} == TrainingParams.model_fields.keys()
    changed = [loop(**{key: value}) for key, (value, _) in HOW.items()]
    assert loop() not in changed
    own = {"reads": {"encoder": "own"}}
    assert {run_digest(algorithm_params(), one, make_task(policy=own), DATA, seed=0) for one in changed} == {
        unbroken[0].config_digest
    }
    exact, near = ({key: value for key, (value, close) in HOW.items() if bool(close) == rounds} for rounds in (False, True))
    if torch.cuda.is_available():
        del exact["device"]  # auto is another device here
    last = run(loop(**exact), start=unbroken[0])[-1]
    assert last.progress == unbroken[-1].progress
    assert differing(dict(last.policy), dict(unbroken[-1].policy)) == []
    # Advantages divide by the spread of nearly equal rewards, and AdamW turns the rounding of a gradient near 0 into a whole
    # step: what is compared is the first step, before either.
    first, expected = (next(r for rows, _ in train(one, start=unbroken[0]) for r in rows) for one in (loop(**near), loop()))
    for name in ("supervised/loss", "reward/mean", "policy/entropy", "kl/reference"):
        assert first[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6)


def test_a_run_that_goes_on_has_the_frames_of_one_that_was_never_stopped(unbroken: list[Checkpoint], tmp_path: Path):
    """6 steps, and more frames than that: one before each step, and one at the end; of 2 frames those are all."""
    whole = frames.develop(unbroken[-1])
    assert whole["step"].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert len(whole["image"]) == 7
    assert (np.abs(np.diff(whole["attention"], axis=0)).max((1, 2, 3)) > 0).all()  # the policy moves
    dataset = CheckpointDataset(str(tmp_path / "checkpoint"))
    dataset.save(unbroken[1])
    going_on = frames.develop(run(loop(), start=dataset.load())[-1])
    assert going_on.keys() == whole.keys()
    assert all(going_on[name].tobytes() == whole[name].tobytes() for name in whole)
    two, none = (run(loop(animation_frames=count))[-1] for count in (2, 0))
    assert frames.develop(two)["step"].tolist() == [0, 6]
    assert frames.develop(none) == {}
    assert differing(dict(two.policy), dict(unbroken[-1].policy)) == differing(dict(none.policy), dict(two.policy)) == []
    assert none.rng == unbroken[-1].rng  # taking frames draws from no stream of training


@pytest.mark.parametrize("key", WHAT)
def test_what_decides_the_weights_is_refused_by_name(unbroken: list[Checkpoint], key: str):
    with pytest.raises(CheckpointError, match=rf"got attention\.training\.{key}[^;]* here, [^;]* in the checkpoint"):
        run(loop(**{key: WHAT[key]}), start=unbroken[0])


def test_the_sentence_names_arm_key_values_and_folder_and_no_run_is_made_shorter(tmp_path: Path, unbroken: list[Checkpoint]):
    dataset = CheckpointDataset(str(tmp_path / "grpo" / "checkpoint"))
    dataset.save(unbroken[0])
    with pytest.raises(CheckpointError) as refused:
        run(loop(batch_size=3), start=dataset.load(), algorithm=algorithm_params(update_epochs=5))
    assert str(refused.value) == (
        f"the checkpoint {tmp_path}/grpo/checkpoint must be of a run with these parameters, got "
        "attention.grpo.algorithm.update_epochs: 5 here, 2 in the checkpoint; attention.training.batch_size: 3 here, 4 in the "
        "checkpoint; go on with the checkpoint's values, or remove its folder to train this part anew"
    )
    with pytest.raises(CheckpointError, match="at least as long as its checkpoint, got 4 steps after 6; give it more epochs"):
        run(loop(epochs=2), start=unbroken[-1])


@pytest.mark.parametrize("is_steady", [True, False])
def test_training_longer_follows_the_schedules_of_the_present_length_and_says_so(said: Callable[[], str], is_steady: bool):
    """Where no schedule depends on the length, it is training at once."""
    moving = {"learning_rate_schedule": {"kind": "cosine", "start": 1.0, "end": 0.1, "warmup_steps": 0}}
    steady = {"optimizer": {"learning_rate_schedule": CONSTANT}, "temperature": CONSTANT}
    options = steady if is_steady else {"optimizer": moving}
    held = {name: {"weight": 0.5} for name in ("supervised", "policy", "entropy", "kl")} if is_steady else {}
    algorithm = algorithm_params(losses=held)
    short, whole = (run(loop(epochs=epochs, **options), algorithm=algorithm)[-1] for epochs in (1, 3))
    said()
    longer = run(loop(epochs=3, **options), algorithm=algorithm, start=short)[-1]
    text = said()
    assert longer.progress == whole.progress
    assert (differing(dict(longer.policy), dict(whole.policy)) == []) == is_steady
    of_schedules = (
        "from step 2 on ",
        "attention.training.optimizer.learning_rate_schedule",
        "not those of a run that had 6 from",
    )
    for part in ("no schedule depends on it",) if is_steady else of_schedules:
        assert part in text.partition("the run now has 6 steps instead of 2; ")[2]


def test_an_early_end_and_other_code_are_named_and_not_refused(
    unbroken: list[Checkpoint], said: Callable[[], str], monkeypatch: pytest.MonkeyPatch
):
    stopped = run(loop(max_steps=3), start=unbroken[0])
    early = "attention.training.max_steps = 3: training ends at step 3 of the 6 steps of 3 epochs"
    assert said().splitlines()[-1] == early
    assert stopped[-1].progress["step"] == 3
    assert run(loop(max_steps=6), start=unbroken[1])[-1].progress["step"] == 6
    assert said() == ""
    monkeypatch.setattr("grpo_pipeline.pipelines.training.resuming.code_version", lambda: {"package": "9.9.9"})
    assert run(loop(), start=unbroken[1])[-1].progress["step"] == 6
    code = unbroken[1].code
    expected = f"was written by package {code['package']}, torch {code['torch']}, source {code['source']}, this is package 9.9.9"
    assert expected in said()


def test_the_start_of_the_arms_depends_on_no_reward():
    data, training = tiny_talk.make_data(), TrainingParams.model_validate(tiny_talk.section("warm_start")["training"])

    def digest(stage: str = "warm_start", seed: int = 0, **sections: Any) -> str:
        return run_digest(tiny_talk.algorithm_params(stage), training, tiny_talk.make_task(**sections), data, seed=seed)

    for change in ({"reward": {"f1": {"weight": 2.0}}}, {"replies": {"temperature": 0.5}}):
        assert digest(**change) == digest()
        assert digest("grpo", **change) != digest("grpo")
    changes = {"language_model": {"width": 16}, "replies": {"max_tokens": 5}, "prompt": {"max_tokens": 50}}
    assert len({digest(), digest(seed=1), *(digest(**{name: value}) for name, value in changes.items())}) == 5
