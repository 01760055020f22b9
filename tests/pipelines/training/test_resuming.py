"""Changes that a resumed run accepts, those that it refuses by name, and what it says about the rest."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_talk
import torch
from tiny_attention import algorithm_params, differing, make_data, make_examples, make_task, section, training_params

from grpo_pipeline.core.agreement import execution_fields
from grpo_pipeline.core.params import LENGTH, AlgorithmParams, TrainingParams
from grpo_pipeline.core.storage.checkpoint import Checkpoint, CheckpointError, NoCheckpoint
from grpo_pipeline.datasets.checkpoint import CheckpointDataset
from grpo_pipeline.pipelines.training import nodes, resuming
from grpo_pipeline.pipelines.training.resuming import run_digest
from grpo_pipeline.tasks.attention.build import build_task
from grpo_pipeline.tasks.attention.params import ModelParams as AttentionModelParams
from grpo_pipeline.tasks.attention.params import RewardParams, SupervisedParams
from grpo_pipeline.tasks.dialogue.params import RewardParams as DialogueRewardParams

DATA, NOTHING = make_data(), NoCheckpoint("nowhere")
SECTIONS = {"algorithm": "attention.grpo.algorithm", "training": "attention.training", "task": "attention"}
CONSTANT = {"kind": "constant", "start": 1.0, "end": 1.0, "warmup_steps": 0}
# Each key that only says how, a value that differs from the tiny task's, and how close the weights end (0: the same bits).
HOW: dict[str, tuple[Any, float]] = {
    "device": ("auto", 0.0),  # the CPU as well, where there is no CUDA
    "compile": ("encoder", 1e-4),
    "memory_format": ("channels_last", 1e-4),
    "activation_checkpointing": ("encoder", 0.0),
    "micro_batch_size": (2, 1e-4),
    "log_every_steps": (3, 0.0),
    "checkpoint_every_steps": (1, 0.0),
    "gradient_report_every_steps": (4, 0.0),
    "loader": ({"prefetch": 0, "workers": 1}, 0.0),
}
WHAT: dict[str, Any] = {
    "precision": "bf16",
    "float32_products": "ieee",
    "batch_size": 3,
    "group_size": 3,
    "encoder_refresh": "every_epoch",
    "temperature": CONSTANT | {"start": 0.5, "end": 0.5},
    "optimizer": {"weight_decay": 0.5},
    "validate_every_epochs": 2,
    "validation_samples": 3,
}


def loop(**changes: Any) -> TrainingParams:
    """Return 3 epochs of 2 steps, checkpoints after steps 2, 4 and 6, on the CPU."""
    return training_params(**{"epochs": 3, "batch_size": 4, "device": "cpu", "encoder_refresh": "once"} | changes)


def train(training: TrainingParams, *, start: Any = NOTHING, algorithm: AlgorithmParams | None = None) -> list[Any]:
    """Train with a task that is built for this loop; return what is yielded."""
    task = build_task(
        AttentionModelParams.model_validate(section("model")),
        RewardParams.model_validate(section("reward")),
        SupervisedParams.model_validate(section("supervised_loss")),
        make_examples(),
        training,
    )
    algorithm = algorithm or algorithm_params()
    state = nodes.build_state(algorithm, training, 0, task, DATA)
    return list(nodes.train(algorithm, training, "auto", task, DATA, state, start, None, sections=SECTIONS))


def checkpoints(yielded: list[Any]) -> list[Checkpoint]:
    return [checkpoint for _, checkpoint in yielded if checkpoint is not False]


def rows(yielded: list[Any]) -> list[dict[str, Any]]:
    return [row for found, _ in yielded for row in found]


def run(training: TrainingParams, **options: Any) -> list[Checkpoint]:
    return checkpoints(train(training, **options))


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], str]]:
    """Return what was logged since the last call; the package's own loggers do not pass on to the root."""
    logger = logging.getLogger(resuming.__name__)
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


def test_every_parameter_of_the_loop_is_of_one_kind():
    assert execution_fields(TrainingParams) == HOW.keys()
    assert {*HOW, *WHAT, *LENGTH} == TrainingParams.model_fields.keys()


@pytest.mark.parametrize("key", [key for key in HOW if key != "compile"])
def test_what_says_how_may_change_when_a_run_goes_on(unbroken: list[Checkpoint], key: str):
    if key == "device" and torch.cuda.is_available():
        pytest.skip("auto is another device here")
    value, tolerance = HOW[key]
    changed = loop(**{key: value})
    assert getattr(changed, key) != getattr(loop(), key)
    went_on = train(changed, start=unbroken[0])
    assert checkpoints(went_on)[-1].progress == unbroken[-1].progress
    if tolerance:
        # Advantages divide by the spread of nearly equal rewards, and AdamW turns the rounding of a gradient near 0 into a whole
        # step: what is compared is the first step, before either.
        first, expected = (rows(yielded)[0] for yielded in (went_on, train(loop(), start=unbroken[0])))
        for name in ("supervised/loss", "reward/mean", "policy/entropy", "kl/reference"):
            assert first[name] == pytest.approx(expected[name], rel=tolerance, abs=1e-6)
    else:
        assert differing(dict(checkpoints(went_on)[-1].policy), dict(unbroken[-1].policy)) == []


def test_a_compiled_encoder_may_be_switched_on(unbroken: list[Checkpoint]):
    """That it computes the same is the subject of test_encoder_execution; here, that the checkpoint lets it."""
    task, algorithm = make_task(), algorithm_params()
    digests = {run_digest(algorithm, loop(compile=value), task, DATA, seed=0) for value in ("none", "encoder")}
    assert digests == {unbroken[0].config_digest}


@pytest.mark.parametrize("key", WHAT)
def test_what_decides_the_weights_is_refused_by_name(unbroken: list[Checkpoint], key: str):
    with pytest.raises(CheckpointError, match=rf"got attention\.training\.{key}[^;]* here, [^;]* in the checkpoint"):
        run(loop(**{key: WHAT[key]}), start=unbroken[0])


def test_the_sentence_names_arm_key_and_values_and_the_folder(tmp_path: Path, unbroken: list[Checkpoint]):
    dataset = CheckpointDataset(str(tmp_path / "grpo" / "checkpoint"))
    dataset.save(unbroken[0])
    with pytest.raises(CheckpointError) as refused:
        run(loop(batch_size=3), start=dataset.load(), algorithm=algorithm_params(update_epochs=5))
    assert str(refused.value) == (
        f"the checkpoint {tmp_path}/grpo/checkpoint must be of a run with these parameters, got "
        "attention.grpo.algorithm.update_epochs: 5 here, 2 in the checkpoint; attention.training.batch_size: 3 here, 4 in the "
        "checkpoint; go on with the checkpoint's values, or remove its folder to train this part anew"
    )


def test_training_longer_is_training_at_once_where_no_schedule_depends_on_the_length(said: Callable[[], str]):
    rates = loop().optimizer.learning_rates
    steady = {"optimizer": {"learning_rates": rates, "learning_rate_schedule": CONSTANT}, "temperature": CONSTANT}
    algorithm = algorithm_params(**dict.fromkeys(("supervised_weight", "policy_weight", "entropy_weight", "kl_weight"), 0.5))
    short, whole = (run(loop(epochs=epochs, **steady), algorithm=algorithm)[-1] for epochs in (1, 3))
    said()
    longer = run(loop(epochs=3, **steady), algorithm=algorithm, start=short)[-1]
    assert longer.progress == whole.progress
    assert differing(dict(longer.policy), dict(whole.policy)) == []
    text = said()
    assert "the run now has 6 steps instead of 2; no schedule depends on it" in text


def test_training_longer_follows_the_schedules_of_the_present_length_and_says_so(said: Callable[[], str]):
    cosine = {"learning_rate_schedule": {"kind": "cosine", "start": 1.0, "end": 0.1, "warmup_steps": 0}}
    short, whole = (run(loop(epochs=epochs, optimizer=cosine))[-1] for epochs in (1, 3))
    said()
    longer = run(loop(epochs=3, optimizer=cosine), start=short)[-1]
    text = said()
    assert "the run now has 6 steps instead of 2; from step 2 on " in text
    assert "attention.training.optimizer.learning_rate_schedule" in text
    assert "the weights are not those of a run that had 6 from the start" in text
    assert longer.progress == whole.progress
    assert differing(dict(longer.policy), dict(whole.policy)) != []


def test_a_run_that_has_gone_further_is_not_made_shorter(unbroken: list[Checkpoint]):
    with pytest.raises(CheckpointError, match="at least as long as its checkpoint, got 4 steps after 6; give it more epochs"):
        run(loop(epochs=2), start=unbroken[-1])


def test_a_run_that_ends_early_says_which_parameter_ends_it(said: Callable[[], str]):
    run(loop(max_steps=3))
    expected = "attention.training.max_steps = 3: training ends at step 3 of the 6 steps of 3 epochs"
    assert said() == expected
    run(loop(max_steps=6))
    assert said() == ""


def test_other_code_is_named_and_not_refused(
    unbroken: list[Checkpoint], said: Callable[[], str], monkeypatch: pytest.MonkeyPatch
):
    run(loop(), start=unbroken[1])
    assert said() == ""
    monkeypatch.setattr("grpo_pipeline.pipelines.training.resuming.code_version", lambda: {"package": "9.9.9"})
    assert run(loop(), start=unbroken[1])[-1].progress["step"] == 6
    code = unbroken[1].code
    expected = f"was written by package {code['package']}, torch {code['torch']}, source {code['source']}, this is package 9.9.9"
    assert expected in said()


def test_the_start_of_the_arms_depends_on_no_reward():
    data, training = tiny_talk.make_data(), TrainingParams.model_validate(tiny_talk.section("warm_start")["training"])

    def digest(stage: str = "warm_start", training: TrainingParams = training, **sections: Any) -> str:
        task = tiny_talk.make_task(**sections)
        return run_digest(tiny_talk.algorithm_params(stage), training, task, data, seed=0)

    own = {"own": {"word": {"function": "tiny_rewards:distinct", "weight": 0.1}}}
    for change in ({"rewards": {"weights": {"f1": 2.0}}}, {"rewards": own}, {"replies": {"temperature": 0.5}}):
        assert digest(**change) == digest()
        assert digest("grpo", **change) != digest("grpo")
    rates = {name: 2 * rate for name, rate in training.optimizer.learning_rates.items()}
    faster = training.model_copy(update={"optimizer": training.optimizer.model_copy(update={"learning_rates": rates})})
    changed = [
        digest(training=faster),
        digest(language_model={"width": 16}),
        digest(replies={"max_tokens": 5}),
        digest(prompt={"max_tokens": 50}),
        digest(mean="per_sequence"),
    ]
    assert len({digest(), *changed}) == 6


def test_where_and_how_fast_rewards_are_measured_may_change():
    assert execution_fields(DialogueRewardParams) == {"pool"}
