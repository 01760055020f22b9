"""Nodes beside the loop, on tasks that only note what they are asked: frames, tables of many batches, replayed groups, starts."""

import logging
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tiny_attention import algorithm_params, section, training_params
from tiny_choices import ChoicePolicy, TinyChoices, own_rates

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.rng import Stream, numpy_generator, step_generator
from grpo_pipeline.core.storage.checkpoint import Checkpoint, NoCheckpoint
from grpo_pipeline.core.storage.weights import ModelWeights, digest_of_tensors, save_weights
from grpo_pipeline.core.training.stored_groups import StoredGroup
from grpo_pipeline.core.types import Advantages, Credits, Rollouts
from grpo_pipeline.pipelines.evaluation import nodes as evaluation
from grpo_pipeline.pipelines.params import SamplingParams
from grpo_pipeline.pipelines.step.experience import Replayed
from grpo_pipeline.pipelines.training import (
    export,
    nodes,
    prediction,
    replayed_batches,
    short_training,
    shown_samples,
    stages,
)
from grpo_pipeline.pipelines.training.film import Film
from grpo_pipeline.pipelines.training.frames import develop
from grpo_pipeline.pipelines.training.loop import StepRunner, quiet_nodes
from grpo_pipeline.pipelines.training.resuming import run_parameters
from grpo_pipeline.pipelines.training.start import build_state, pick_probe_batch
from grpo_pipeline.pipelines.training.step_metrics import merge_metrics, to_floats
from grpo_pipeline.rewards.late_calls import LATE
from grpo_pipeline.tasks.trained_arms import TrainedArms

BLANK = Checkpoint(policy={}, optimizer={}, reference=None, rng={}, progress={})
TRAIN, VAL, TEST = np.arange(100, 123), np.arange(40, 60), np.arange(200, 333)  # 23, 20 and 133 rows


class Asked(TinyChoices):
    """Rows of unequal splits; notes frames, batches and samples that it is asked for."""

    device = torch.device("cpu")

    def __init__(self, **more: Any) -> None:
        self.frames: list[tuple[int, ...]] = []
        self.drawn: list[dict[str, Any]] = []
        self.more = more

    def rows(self, data: Any, split: str) -> np.ndarray:
        return {"train": TRAIN, "val": VAL, "test": TEST, "none": TRAIN[:0]}[split]

    def training_frame(self, policy: Any, data: Any, rows: np.ndarray, *, seed: int) -> dict[str, torch.Tensor]:
        self.frames.append((seed, *rows.tolist()))
        torch.rand(1)  # of no stream of training
        return {"shown": torch.tensor([len(self.frames)])}

    def make_batch(self, data: Any, rows: np.ndarray, *, generator: Any = None) -> Any:
        return super().make_batch(data, rows % 8, generator=generator), rows

    def encode(self, policy: Any, batch: Any) -> Any:
        return super().encode(policy, batch[0])

    def sample(self, policy: Any, context: Any, group: int, **options: Any) -> Rollouts:
        drawn = super().sample(policy, context, group, **options)
        seed = options.pop("generator").initial_seed()
        self.drawn.append({"group": group, "seed": seed, "prompts": len(context.features), **options})
        return drawn

    def tabulate(self, data: Any, batch: Any, rollouts: Rollouts) -> pd.DataFrame:
        group = rollouts.actions.shape[1]
        first = rollouts.actions[:, :, 0].flatten().tolist()
        return pd.DataFrame({"row": np.repeat(batch[1], group), "first": first})

    def describe(self, policy: Any) -> dict[str, Any]:
        return {"task": "tiny"}

    def evaluate(self, policy: Any, data: Any, rows: np.ndarray, *, seed: int, n_samples: int) -> pd.DataFrame:
        return pd.DataFrame({"row": rows, "seed": seed, "n": n_samples, "weight": policy.head[0, 0].item()})

    def showcase(self, policy: Any, data: Any, rows: np.ndarray, *, seed: int) -> dict[str, np.ndarray]:
        return {"rows": rows, "seed": np.array([seed]), "weight": np.array([policy.head[0, 0].item()])}


def state_at(step: int, total: int, seed: int = 5) -> Any:
    return SimpleNamespace(step=step, total_steps=total, generator_seed=seed, policy=ChoicePolicy(0))


@pytest.mark.parametrize(
    ("total", "count", "taken"),
    [
        (24, 4, [0, 8, 16, 24]),
        (28, 4, [0, 9, 18, 28]),  # 28 / 3 = 9 1/3, 18 2/3: a moment within a step is its beginning
        (24, 2, [0, 24]),
        (3, 9, [0, 1, 2, 3]),
        (12, 1, [12]),
        (12, 0, []),
    ],
)
def test_frames_come_at_even_steps_of_six_rows_of_the_seed(total: int, count: int, taken: list[int]) -> None:
    task = Asked()
    film = Film(task, None, training_params(batch_size=5, animation_frames=count), state_at(0, total), {})
    before = torch.get_rng_state()
    for step in range(1, total + 1):
        film.take(state_at(step, total))
    assert [int(name.partition("/")[0]) for name in film.frames] == taken
    assert all(name.partition("/")[2] == "shown" and len(name.partition("/")[0]) == 9 for name in film.frames)
    rows = tuple(sorted(numpy_generator(5, Stream.FRAME_ROWS).permutation(VAL)[:6].tolist()))
    assert set(task.frames) <= {(5, *rows)}
    assert not taken or torch.equal(before, torch.get_rng_state())


def test_a_film_that_goes_on_has_the_frames_before_and_none_of_its_first_step() -> None:
    task = Asked()
    film = Film(
        task, None, training_params(batch_size=5, animation_frames=4), state_at(8, 24), {"000000000/shown": torch.tensor(7)}
    )
    assert list(film.frames) == ["000000000/shown"]
    film.take(state_at(9, 24))
    assert task.frames == []
    film.take(state_at(16, 24))
    assert list(film.frames) == ["000000000/shown", "000000016/shown"]


def weights(seed: int) -> ModelWeights:
    return ModelWeights(ChoicePolicy(seed).state_dict(), {"task": "tiny"})


def test_a_table_of_samples_is_drawn_in_batches_of_64_with_noise_of_their_own() -> None:
    """133 rows: 64, 64 and 5, each with the generator of its number."""
    task, algorithm = Asked(), algorithm_params("supervised", proposal="uniform")
    predictions, table, shown = prediction.predict(algorithm, training_params(group_size=3), 9, task, None, weights(4))
    seeds = [step_generator(9, number, stream=Stream.SAMPLE_TABLE).initial_seed() for number in range(3)]
    expected = {"group": 3, "temperature": 1.0, "proposal": "uniform"}
    assert task.drawn == [{**expected, "seed": seed, "prompts": n} for seed, n in zip(seeds, (64, 64, 5), strict=True)]
    assert table["row"].tolist() == np.repeat(TEST, 3).tolist()
    assert table.index.tolist() == list(range(399))
    weight = ChoicePolicy(4).head[0, 0].item()
    assert predictions.drop_duplicates(["seed", "n", "weight"]).iloc[0].to_dict() == {
        "row": 200,
        "seed": 9,
        "n": 3,
        "weight": weight,
    }
    assert predictions["row"].tolist() == TEST.tolist()
    few = sorted(numpy_generator(9, Stream.SHOWCASE_ROWS).permutation(TEST)[:12].tolist())
    assert (shown["rows"].tolist(), shown["seed"][0], shown["weight"][0]) == (few, 9, weight)


def test_a_prediction_draws_in_batches_at_its_own_temperature(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    task = Asked()
    monkeypatch.setattr(TrainedArms, "load", lambda self, arm, *, parameter: weights({"own": 4}[arm]))
    monkeypatch.setattr(TrainedArms, "find", lambda self, arm, *, parameter: tmp_path / arm)
    params = SamplingParams(arm="own", split="test", samples=2, temperature=0.7, seed=3)
    table, report = evaluation.sample_split(params, task, None, TrainedArms(tmp_path))
    seeds = [step_generator(3, number, stream=Stream.PREDICTED_SAMPLES).initial_seed() for number in range(3)]
    expected = {"group": 2, "temperature": 0.7, "proposal": "policy"}
    assert task.drawn == [{**expected, "seed": seed, "prompts": n} for seed, n in zip(seeds, (64, 64, 5), strict=True)]
    assert table["row"].tolist() == np.repeat(TEST, 2).tolist()
    policy = ChoicePolicy(4)
    last, _ = task.make_batch(None, TEST[128:])
    generator = step_generator(3, 2, stream=Stream.PREDICTED_SAMPLES)
    drawn = TinyChoices().sample(
        policy, TinyChoices().encode(policy, last), 2, temperature=0.7, proposal="policy", generator=generator
    )
    assert table["first"].tolist()[-10:] == drawn.actions[:, :, 0].flatten().tolist()
    counts = ("rows", "scored", "quarantined", "samples", "temperature", "seed", "split", "arm")
    assert [report[name] for name in counts] == [133, 133, 0, 2, 0.7, 3, "test", "own"]


def rollouts_of(prompts: int) -> Rollouts:
    actions = torch.arange(prompts * 4).reshape(prompts, 2, 2)
    return Rollouts(actions, actions / 10, torch.ones_like(actions, dtype=torch.bool))


def group(row: int, step: int) -> StoredGroup:
    one = rollouts_of(1)
    return StoredGroup(row, one.actions[0], one.logprobs[0], one.is_valid[0], step, 0.5, 1.0)


REPLAY = {"capacity": 20, "max_age_steps": 9, "share": 0.5, "importance_cap": 2.0}


@pytest.mark.parametrize(
    ("prompts", "share", "stored", "replayed"), [(5, 0.5, 9, 2), (5, 0.7, 9, 3), (4, 0.9, 9, 3), (6, 0.5, 2, 2), (6, 0.1, 9, 0)]
)
def test_stored_groups_stand_at_the_last_places_of_a_batch(prompts: int, share: float, stored: int, replayed: int) -> None:
    algorithm = algorithm_params(replay=REPLAY | {"share": share})
    state = build_state(algorithm, own_rates(training_params(), 0.1), 2, TinyChoices(), None)
    state.replay.add([group(900 + n, 3) for n in range(stored)])
    fresh = np.arange(10, 10 + prompts)
    given = fresh.copy()
    planned, found = replayed_batches.plan_batch(algorithm, replace(state, step=6, total_steps=10), fresh)
    assert len(found.groups) == replayed
    assert found.positions == tuple(range(prompts - replayed, prompts))
    assert planned.tolist() == [*given[: prompts - replayed].tolist(), *(one.row for one in found.groups)]
    assert fresh.tolist() == given.tolist()  # not written into
    assert all(one.row >= 900 for one in found.groups)


def test_fresh_groups_are_remembered_with_what_they_taught() -> None:
    algorithm = algorithm_params(replay=REPLAY)
    state = build_state(algorithm, own_rates(training_params(), 0.1), 2, TinyChoices(), None)
    rows = np.array([11, 12, 13, 14])
    values = torch.tensor([[1.0, -3.0], [0.0, 0.0], [0.5, -0.5], [9.0, 9.0]])
    experience = SimpleNamespace(rollouts=rollouts_of(4), advantages=SimpleNamespace(values=values), temperature=0.7)
    replayed_batches.remember(replace(state, step=6), experience, rows, Replayed((group(14, 3),), (3,)))
    found = {one.row: one for one in state.replay.groups}
    assert {row: (one.signal, one.step, one.temperature) for row, one in found.items()} == {11: (2.0, 6, 0.7), 13: (0.5, 6, 0.7)}
    assert found[13].actions.tolist() == [[8, 9], [10, 11]]
    assert found[13].behaviour_logprobs.flatten().tolist() == pytest.approx([0.8, 0.9, 1.0, 1.1])
    weights = SimpleNamespace(importance=torch.tensor([[1.0, 1.0], [0.5, 1.5], [0.2, 0.4]]))
    metrics = replayed_batches.replay_metrics(9, weights, Replayed((group(1, 3), group(2, 8)), (1, 2)))
    assert metrics == pytest.approx({"replay/groups": 2.0, "replay/importance_mean": 0.65, "replay/age_steps": 3.5})
    assert replayed_batches.replay_metrics(9, weights, Replayed()) == {}


@pytest.mark.parametrize(
    ("batch_size", "epochs", "max_steps", "total"),
    [(5, 3, None, 12), (5, 3, 7, 7), (5, 3, 12, 12), (5, 3, 99, 12), (50, 3, None, 3)],
)
def test_a_run_has_the_whole_batches_of_its_epochs_or_its_most_steps(
    batch_size: int, epochs: int, max_steps: Any, total: int
) -> None:
    training = own_rates(training_params(batch_size=batch_size, epochs=epochs, max_steps=max_steps, precision="bf16"), 0.1)
    state = build_state(algorithm_params(), training, 8, Asked(), None)
    assert (state.total_steps, state.step, state.epoch, state.generator_seed, state.precision) == (total, 0, 0, 8, "bf16")
    assert torch.equal(state.policy.head, ChoicePolicy(8).head)
    assert torch.equal(state.reference.head, ChoicePolicy(8).head)
    assert state.reference.head is not state.policy.head
    assert state.replay is None
    assert build_state(algorithm_params(losses={"kl": None}), training, 8, Asked(), None).reference is None
    replay = build_state(algorithm_params(replay=REPLAY), training, 8, Asked(), None).replay
    assert (replay.capacity, replay.max_age_steps) == (20, 9)


class Batched(Asked):
    """A batch says of which data, rows and noise it is."""

    def make_batch(self, data: Any, rows: np.ndarray, *, generator: Any = None) -> Any:
        return data, rows.tolist(), generator.initial_seed()

    def with_oracle(self, data: Any) -> Any:
        return f"{data} with the truth"


@pytest.mark.parametrize("step", [0, 3, 6])
def test_a_short_training_reads_the_batches_and_the_noise_of_a_run(step: int) -> None:
    """Step 6 of batches of 5 out of 23 rows is the third one of the second epoch."""
    state = SimpleNamespace(step=step, generator_seed=9)
    epoch, place = divmod(step, 4)
    rows = TRAIN[numpy_generator(9, Stream.ORDER, epoch).permutation(23)[5 * place : 5 * place + 5]].tolist()
    found = short_training.pick_batch(algorithm_params(), training_params(batch_size=5), Batched(), "data", state)
    assert found == ("data", rows, step_generator(9, step, stream=Stream.BATCH).initial_seed())


@pytest.mark.parametrize(("micro_batch_size", "prompts"), [(None, 5), (3, 3), (9, 5)])
def test_a_probe_reads_the_first_batch_of_the_run_or_its_first_piece(micro_batch_size: Any, prompts: int) -> None:
    training = training_params(batch_size=5, micro_batch_size=micro_batch_size)
    first = TRAIN[numpy_generator(9, Stream.ORDER, 0).permutation(23)[:5]].tolist()
    noise = step_generator(9, 0, stream=Stream.BATCH).initial_seed()
    for algorithm, data in (
        (algorithm_params(), "data"),
        (algorithm_params("supervised", proposal="oracle"), "data with the truth"),
    ):
        found = pick_probe_batch(algorithm, training, 9, Batched(), "data")
        assert found == (data, first[:prompts], noise)


def test_a_run_whose_probe_began_at_another_ratio_does_not_start() -> None:
    task, algorithm, training = Asked(), algorithm_params(), own_rates(training_params(), 0.1)
    task.fingerprint = lambda *args, **kwargs: {}

    def begun(metrics: Any) -> Any:
        state = build_state(algorithm, training, 0, task, None)
        return next(nodes.train(algorithm, training, "never", task, None, state, NoCheckpoint("x"), metrics))

    assert begun({"policy/ratio_mean": 1.0}) == begun({}) == begun(None) == ([], False)
    with pytest.raises(ValueError, match="1.01"):
        begun({"policy/ratio_mean": 1.01})


class Resumable(Asked):
    def fingerprint(self, data: Any, *, draws: bool = True) -> dict[str, Any]:
        return {"draws": draws}

    def make_batch(self, data: Any, rows: np.ndarray, *, generator: Any = None) -> Any:
        return TinyChoices.make_batch(self, data, rows % 8, generator=generator)

    def encode(self, policy: Any, batch: Any) -> Any:
        return TinyChoices.encode(self, policy, batch)

    def validate(self, *args: Any, n_samples: int, **kwargs: Any) -> dict[str, float]:
        return {"n_samples": n_samples}


def steps_of(task: Any, algorithm: AlgorithmParams, **changes: Any) -> list[Any]:
    training = own_rates(training_params(**{"batch_size": 5, "epochs": 1, "animation_frames": 0} | changes), 0.1)
    state = build_state(algorithm, training, 4, task, None)
    return list(nodes.train(algorithm, training, "never", task, None, state, NoCheckpoint("x"), {}))


def test_a_checkpoint_knows_a_frozen_reference_by_its_own_weights(tmp_path: Any) -> None:
    """A reference from a file is not the policy at its start; one that moves is stored whole."""
    save_weights(tmp_path / "w", weights(33))
    reference = {"update": "frozen", "path": str(tmp_path / "w")}
    last = steps_of(Resumable(), algorithm_params(losses={"kl": {"reference": reference, "estimator": "k3"}}))[-1][1]
    assert last.frozen_reference == digest_of_tensors(ChoicePolicy(33).state_dict())
    seen = []
    told = Resumable()
    told.with_reference = lambda data, reference: seen.append(reference.head.clone()) or data
    steps_of(told, algorithm_params(losses={"kl": {"reference": reference, "estimator": "k3"}}))
    assert torch.equal(torch.stack(seen), ChoicePolicy(33).head[None])  # what is computed once is computed from the reference
    assert last.reference is None
    copied = {"kl": {"reference": reference | {"update": "copy"}, "estimator": "k3"}}
    moving = steps_of(Resumable(), algorithm_params(losses=copied))[-1][1]
    assert moving.frozen_reference is None
    assert moving.reference is not None


@pytest.mark.parametrize("is_other", [False, True])
def test_a_run_that_goes_on_with_another_version_of_the_code_says_so(is_other: bool, caplog: pytest.LogCaptureFixture) -> None:
    task, algorithm = Resumable(), algorithm_params("supervised")
    last = steps_of(task, algorithm)[-1][1]
    assert last.code
    written = {name: f"{version}+1" if is_other else version for name, version in last.code.items()}
    training = own_rates(training_params(batch_size=5, epochs=2, animation_frames=0), 0.1)
    state = build_state(algorithm, training, 4, task, None)
    with caplog.at_level("WARNING", logger="grpo_pipeline.pipelines.training.resuming"):
        rows = [row for rows, _ in nodes.train(algorithm, training, "auto", task, None, state, replace(last, code=written), {})
                for row in rows if row["split"] == "train"]  # fmt: skip
    assert [row["step"] for row in rows] == [4, 5, 6, 7]
    assert [f"{version}+1" in caplog.text for version in last.code.values()] == [is_other] * len(written)


@pytest.mark.parametrize(("every", "epochs", "steps"), [(1, 2, [3, 7]), (2, 5, [7, 15, 19]), (3, 2, [7])])
def test_validation_comes_every_few_epochs_and_at_the_end_with_its_own_samples(every: int, epochs: int, steps: list[int]) -> None:
    """23 rows in batches of 5 are 4 steps an epoch."""
    more = {"validate_every_epochs": every, "validation_samples": 7, "group_size": 4, "log_every_steps": 99}
    yielded = steps_of(Resumable(), algorithm_params("supervised"), epochs=epochs, **more)
    rows = [row for rows, _ in yielded for row in rows if row["split"] == "val"]
    assert rows == [{"step": step, "epoch": step // 4, "split": "val", "n_samples": 7} for step in steps]


def test_a_checkpoint_says_how_far_the_run_is_in_steps_epochs_and_its_epoch() -> None:
    yielded = steps_of(Resumable(), algorithm_params("supervised"), epochs=2, checkpoint_every_steps=3, log_every_steps=99)
    found = [checkpoint.progress for _, checkpoint in yielded if checkpoint is not False]
    places = ((3, 0, 3), (6, 1, 2), (8, 2, 0))
    assert found == [
        {"step": step, "epoch": epoch, "seed": 4, "position": position, "total_steps": 8} for step, epoch, position in places
    ]


def test_the_advantage_of_a_credited_sample_is_the_mean_over_the_decisions_taken() -> None:
    f64 = torch.float64
    is_valid = torch.tensor([[[True, True, False], [True, False, False]]])
    credits = Credits(torch.tensor([[[1.0, 3.0, 0.0], [5.0, 0.0, 0.0]]], dtype=f64), is_valid)
    rewards = replace(combine_rewards({"hit": torch.tensor([[4.0, 5.0]], dtype=f64)}, {"hit": 2.0}), credits=credits)
    taught = Advantages(torch.tensor([[[-2.0, 3.0, 0.0], [2.0, 0.0, 0.0]]], dtype=f64), torch.tensor([False]))
    found = shown_samples.add_rewards(pd.DataFrame({"row": [7, 7]}), rewards, taught)
    assert found.to_dict("list") == {
        "row": [7, 7], "reward_hit": [4.0, 5.0], "credit_0": [1.0, 5.0], "credit_1": [3.0, 0.0], "credit_2": [0.0, 0.0],
        "reward": [8.0, 10.0], "advantage": [0.5, 2.0], "group_is_tied": [False, False],
    }  # fmt: skip


def test_a_sample_with_credited_turns_has_the_mean_advantage_of_its_decisions() -> None:
    f64 = torch.float64
    turns = torch.tensor([[[0, 0, -1, 1], [0, -1, -1, -1]]])
    is_valid = torch.tensor([[[True, True], [True, False]]])
    credits = Credits(torch.tensor([[[4.0, 3.0], [5.0, 0.0]]], dtype=f64), is_valid, turns)
    rewards = replace(combine_rewards({"hit": torch.tensor([[4.0, 5.0]], dtype=f64)}, {"hit": 1.0}), credits=credits)
    taught = Advantages(torch.tensor([[[-1.0, -1.0, 0.0, 5.0], [2.0, 0.0, 0.0, 0.0]]], dtype=f64), torch.tensor([False]))
    found = shown_samples.add_rewards(pd.DataFrame({"row": [7, 7]}), rewards, taught)
    shown = found[["credit_0", "credit_1", "advantage"]].to_dict("list")
    assert shown == {"credit_0": [4.0, 5.0], "credit_1": [3.0, 0.0], "advantage": [1.0, 2.0]}


@pytest.mark.parametrize("calibration", [None, {"temperature": 1.5}])
def test_a_model_is_exported_with_its_weights_its_progress_and_what_was_fitted(calibration: Any) -> None:
    trained = replace(BLANK, policy=ChoicePolicy(12).state_dict(), progress={"step": 8, "epoch": 2})
    found = export.export_model(Asked(), trained, calibration)
    fitted = {} if calibration is None else {"calibration": calibration}
    assert found.config == {"task": "tiny", "training": {"step": 8, "epoch": 2}} | fitted
    assert torch.equal(found.tensors["head"], ChoicePolicy(12).head)
    assert (found.beside, found.folders) == ({}, {})


def test_the_film_of_a_run_says_the_steps_of_its_frames() -> None:
    frames = {f"{step:09d}/{name}": torch.full((2,), 10.0 * step + at) for step in (8, 0, 12) for at, name in enumerate("ab")}
    found = develop(replace(BLANK, frames=frames))
    assert {name: shown.tolist() for name, shown in found.items()} == {
        "step": [0, 8, 12], "a": [[0.0] * 2, [80.0] * 2, [120.0] * 2], "b": [[1.0] * 2, [81.0] * 2, [121.0] * 2],
    }  # fmt: skip
    assert develop(BLANK) == {}


def test_calls_out_of_time_are_added_up_while_a_run_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []

    @contextmanager
    def shown(total: int, title: str) -> Any:
        yield SimpleNamespace(update=lambda steps, **values: told.append(values))

    late = iter([{}, {"reward/late_calls": 2.0}, {}, {"reward/late_calls": 3.0}])
    step = nodes._Loop.step

    def delayed(self: Any, *given: Any) -> Any:
        state, rows = step(self, *given)
        return state, [rows[0] | next(late), *rows[1:]]

    monkeypatch.setattr(nodes, "progress", shown)
    monkeypatch.setattr(nodes._Loop, "step", delayed)
    steps_of(Resumable(), algorithm_params())
    assert [one.get("reward calls out of time") for one in told] == [None, 2.0, 2.0, 5.0]


def test_every_refusal_of_a_start_is_asked_for() -> None:
    class Strict(Asked):
        repeats_prompts = False

        def check_algorithm(self, algorithm: AlgorithmParams) -> None:
            if algorithm.update_epochs == 7:
                raise ValueError("the task says no")

    training = own_rates(training_params(), 0.1)
    build_state(algorithm_params(), training, 0, Strict(), None)
    for changes, said in (
        ({"update_epochs": 7}, "the task says no"),
        ({"replay": REPLAY}, "replay must be null where a row of tiny is not the same prompt"),
    ):
        with pytest.raises(ValueError, match=said):
            build_state(algorithm_params(**changes), training, 0, Strict(), None)
    rates = training.optimizer.model_copy(update={"learning_rates": {"encoder": 0.1}})
    with pytest.raises(ValueError, match=r"learning_rates must name \['encoder', 'head'\], got nothing for \['head'\]; add them"):
        build_state(algorithm_params(), training.model_copy(update={"optimizer": rates}), 0, Asked(), None)
    state = build_state(algorithm_params(), training, 0, Asked(), None)
    task = Asked()
    task.fingerprint = lambda *args, **kwargs: {}
    with pytest.raises(ValueError, match="resume must be never or auto, got 'yes'; use --params resume=auto to go on"):
        next(nodes.train(algorithm_params(), training, "yes", task, None, state, NoCheckpoint("x"), {}))


def test_metrics_become_numbers_and_the_first_ratio_is_that_of_the_first_epoch() -> None:
    given = {"a": torch.tensor(0.1, dtype=torch.float64), "b": 2, "c": torch.tensor(0.5, requires_grad=True)}
    assert to_floats(given) == {"b": 2.0, "a": 0.1, "c": 0.5}
    assert to_floats({"b": 1}) == {"b": 1.0}
    merged = merge_metrics([{"policy/ratio_max": 5.0, "x": 1.0}, {"policy/ratio_max": 2.0, "y": 3.0}])
    assert merged == {"policy/ratio_max": 5.0, "x": 1.0, "y": 3.0}


def test_a_logger_that_says_less_than_warnings_stays_as_quiet() -> None:
    logger = logging.getLogger("kedro")
    before = logger.level
    try:
        for level, inside in ((logging.INFO, logging.WARNING), (logging.ERROR, logging.ERROR)):
            logger.setLevel(level)
            with quiet_nodes():
                assert logger.level == inside
            assert logger.level == level
    finally:
        logger.setLevel(before)


def test_a_step_tells_the_calls_that_ran_out_of_time_in_it_alone() -> None:
    class Hanging(TinyChoices):
        late = 0

        def reward(self, *given: Any) -> Any:
            for _ in range(self.late):
                LATE.add("mine:part", seconds=1.0)
            return super().reward(*given)

    training = own_rates(training_params(batch_size=8, group_size=4), 0.1)
    algorithm, task = algorithm_params(), Hanging()
    state, runner = build_state(algorithm, training, 0, task, None), StepRunner(task, algorithm, training)
    LATE.add("mine:part", seconds=1.0)  # before the run
    told = []
    for late in (0, 2, 0, 1):
        task.late = late
        state, metrics = runner(replace(state, total_steps=9), task.make_batch(None, np.arange(8)))
        told.append(metrics.get("reward/late_calls"))
    assert told == [None, 2.0, None, 1.0]


@pytest.mark.parametrize(("proposal", "draws"), [("policy", True), ("uniform", True), ("oracle", True), ("none", False)])
def test_a_run_is_known_by_its_seed_and_by_what_its_proposal_reads(proposal: str, draws: bool) -> None:
    algorithm = algorithm_params(*(() if proposal == "policy" else ("supervised",)), proposal=proposal)
    short, longer = (training_params(epochs=epochs, max_steps=epochs) for epochs in (2, 3))
    found = run_parameters(algorithm, short, Resumable(), None, seed=8)
    assert (found["seed"], found["task"]) == (8, {"draws": draws})
    assert found == run_parameters(algorithm, longer, Resumable(), None, seed=8)
    for other in (training_params(group_size=5), training_params(validate_every_epochs=7)):
        assert run_parameters(algorithm, other, Resumable(), None, seed=8)["training"] != found["training"]


class Staged:
    """A task that notes which checks and changes were asked of it, in their order."""

    def __init__(self, said: list[Any], name: str = "tiny") -> None:
        self.said, self.name = said, name

    def __getattr__(self, name: str) -> Any:
        def note(*args: Any, **kwargs: Any) -> "Staged":
            self.said.append((name, *args, *kwargs.values()))
            return Staged(self.said)

        return note


def arm(name: str, **changes: Any) -> dict[str, Any]:
    return section(name)["algorithm"] | changes


def test_every_arm_is_checked_with_its_own_sections_before_a_stage_is_trained() -> None:
    said: list[Any] = []
    task = Staged(said)
    sections = {"a__algorithm": arm("grpo", update_epochs=5), "a__model": {"points": 2}, "b__algorithm": arm("supervised")}
    opened = stages.check_arms("a", task, "data", **sections)
    assert opened is not task
    asked = [one if one[0] != "check_algorithm" else (one[0], one[1].name, one[1].update_epochs) for one in said]
    assert asked == [
        ("check_data", "data"),
        ("open_stage", "a"),
        ("with_sections", {"model": {"points": 2}}, "tiny.a"),
        ("check_algorithm", "grpo", 5),
        ("with_sections", {}, "tiny.b"),
        ("check_algorithm", "supervised", 1),
    ]
    with pytest.raises(ValueError, match="tiny.a.algorithm"):
        stages.check_arms("pre", task, "data", a__algorithm=arm("grpo", update_epoch=5))


def test_the_algorithm_of_a_stage_is_checked_by_the_task_that_it_trains() -> None:
    said: list[Any] = []

    class Opening(Staged):
        def open_stage(self, name: str) -> Staged:
            return Staged(opened, name)

    opened: list[Any] = []
    sections = {"pre__algorithm": arm("supervised"), "a__algorithm": arm("grpo")}
    assert stages.check_arms("pre", Opening(said), "data", **sections).name == "pre"
    assert [one[1].name for one in said if one[0] == "check_algorithm"] == ["grpo"]
    assert [one[1].name for one in opened if one[0] == "check_algorithm"] == ["supervised"]


def test_arms_take_the_weights_of_a_stage_and_sections_of_their_own() -> None:
    said: list[Any] = []
    model = weights(0)
    stages.begin_with(Staged(said), model)
    stages.take_sections(Staged(said), reward={"x": 1})
    assert said == [("begin_with", model), ("with_sections", {"reward": {"x": 1}}, "tiny")]
