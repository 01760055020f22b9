"""The ingredients that decide a trial and a stage, each ingredient alone; what is said and kept of trials, worked out by hand."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_attention import algorithm_params, training_params

from grpo_pipeline.core.storage.checkpoint import Checkpoint
from grpo_pipeline.pipelines.experiments.trials import digest as digest_module
from grpo_pipeline.pipelines.experiments.trials import (
    executor,
    preparation,
    stage_training,
    trial_training,
)
from grpo_pipeline.pipelines.experiments.trials.engine import Bench, record_of, shortened
from grpo_pipeline.pipelines.experiments.trials.executor import Assignment, TrialContext, reason_of
from grpo_pipeline.pipelines.experiments.trials.records import Trial
from grpo_pipeline.pipelines.experiments.trials.stage_training import InitialWeights
from grpo_pipeline.pipelines.experiments.trials.trial_params import StageParams


def arm(*, rule: str = "policy", **parameters: Any) -> Any:
    return SimpleNamespace(
        parameters=parameters, algorithm="algorithm", training="training", description=SimpleNamespace(rule=rule, baseline=None)
    )


@pytest.fixture
def digest(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``digest(arm, seed=…, …)``: the digest of a trial whose examples, task and code are what is given."""

    def of(
        one: Any, *, seed: int = 0, examples: str = "e", run: str = "r", source: str = "s", split: Any = None, scored: str = "val"
    ) -> str:
        monkeypatch.setattr(digest_module, "examples_of", lambda preparation, trial, given: f"{given} {trial.split}")
        monkeypatch.setattr(digest_module, "open_task", lambda preparation, arm, there: f"task of {there}")
        monkeypatch.setattr(digest_module, "data_of", lambda preparation, arm, there: f"data of {there}")
        monkeypatch.setattr(digest_module, "run_digest", lambda *given, seed: f"{run} {given} {seed}")
        monkeypatch.setattr(digest_module, "source_digest", lambda task: f"{source} of {task}")
        return digest_module.trial_digest(SimpleNamespace(task="t"), one, Trial("a", seed, split=split), examples, split=scored)

    return of


def test_each_ingredient_of_a_trial_alone_changes_its_digest(digest: Any) -> None:
    base = digest(arm(model={"points": 3, "width": 8}))
    assert digest(arm(model={"width": 8, "points": 3})) == base  # the order of keys says nothing
    changed = {"seed": 1}, {"examples": "f"}, {"run": "q"}, {"source": "c"}, {"split": {"a": "val"}}, {"scored": "test"}
    others = [digest(arm(model={"points": 3, "width": 8}), **one) for one in changed]
    others += [digest(arm(model={"points": 4, "width": 8})), digest(arm(model={"points": 3}))]
    others += [digest(arm(rule="other", model={"points": 3, "width": 8}))]
    assert len({base, *others}) == 10


def test_the_code_of_a_trial_is_all_that_trains_and_the_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every folder by name; another version of this package or of torch is other code."""
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(
        digest_module, "digest_of_sources", lambda package, names, salt="": asked.append((salt, *names)) or f"{salt} {names}"
    )
    first = digest_module.source_digest.__wrapped__("attention")
    _, *shared = asked[0]
    expected = {
        *(
            "core",
            "rewards",
            "statistics",
            "pipelines/step",
            "pipelines/training",
            "tasks/base.py",
            "tasks/folds.py",
            "tasks/stored_examples.py",
        ),
        *("pipelines/experiments/trials/preparation.py", "pipelines/experiments/trials/stage_training.py"),
        *("pipelines/experiments/trials/task_lookup.py", "pipelines/experiments/trials/trial_training.py"),
    }
    assert expected <= set(shared)
    assert {names for _, *own in asked[1:] for names in own} == {"attention"}
    assert len(asked) == 2
    for module, name in ((digest_module.grpo_pipeline, "__version__"), (torch, "__version__")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, "99.0")
            assert digest_module.source_digest.__wrapped__("attention") != first


class Known:
    """A task that says of itself what it is given."""

    def __init__(self, facts: str = "f", device: str = "cpu") -> None:
        self.facts, self.device, self.asked = facts, device, list[Any]()

    def fingerprint(self, data: Any, *, draws: bool) -> dict[str, Any]:
        self.asked.append(draws)
        return {"facts": self.facts, "data": data, "draws": draws}

    def check_data(self, data: Any) -> None:
        self.asked.append(("data", data))

    def check_algorithm(self, algorithm: Any) -> None:
        self.asked.append(algorithm)

    def open_stage(self, name: str) -> "Known":
        self.asked.append(name)
        return self

    def begin_with(self, model: Any) -> Any:
        return "begun", model


LIGHTER = {"supervised": {"weight": 0.3}}


def stage(arm_name: str = "supervised", epochs: int = 1, **changes: Any) -> StageParams:
    return StageParams(algorithm=algorithm_params(arm_name, **changes), training=training_params(epochs=epochs))


def test_a_stage_is_trained_again_for_whatever_decides_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[Any] = []

    def train(algorithm: Any, training: Any, task: Any, data: Any, *, seed: int) -> Any:
        trained.append((algorithm.name, training.epochs, task.facts, data, seed))
        return f"weights {len(trained)}", []

    monkeypatch.setattr(stage_training, "train_weights", train)
    first = stage_training.train_stage(stage(), 4, Known(), "data", InitialWeights())
    assert (first.model, trained) == ("weights 1", [("supervised", 1, "f", "data", 4)])
    assert stage_training.train_stage(stage(), 4, Known(), "data", first) is first
    keys = {first.key}
    for changed in (
        (stage(epochs=2), 4, Known(), "data"), (stage(losses=LIGHTER), 4, Known(), "data"), (stage(), 5, Known(), "data"),
        (stage(), 4, Known("g"), "data"), (stage(), 4, Known(device="cuda"), "data"), (stage(), 4, Known(), "other"),
        (stage("supervised", proposal="policy"), 4, Known(), "data"),
    ):  # fmt: skip
        found = stage_training.train_stage(*changed, first)
        assert found.key not in keys
        keys.add(found.key)
    assert len(trained) == 8


@pytest.mark.parametrize(("proposal", "draws"), [("none", False), ("uniform", True), ("policy", True)])
def test_rewards_decide_a_stage_only_where_it_draws_samples(monkeypatch: pytest.MonkeyPatch, proposal: str, draws: bool) -> None:
    monkeypatch.setattr(stage_training, "train_weights", lambda *given, seed: ("weights", []))
    task = Known()
    stage_training.train_stage(stage(proposal=proposal), 0, task, "data", InitialWeights())
    assert task.asked == [draws]


def test_what_an_arm_and_its_stage_ask_for_is_checked_before_the_stage_is_trained() -> None:
    check, task, plain = stage_training.opening("pre"), Known(), Known()
    assert check("arm", stage(), task, "data") is task
    assert task.asked == [("data", "data"), "arm", "pre", stage().algorithm]
    known = InitialWeights("key", "model")
    assert stage_training.begin_with(stage(), task, known) == ("begun", "model")
    # Of an arm without the stage.
    assert check("arm", None, plain, "data") is plain
    assert plain.asked == [("data", "data"), "arm"]
    assert stage_training.train_stage(None, 0, task, "data", known) is known
    assert stage_training.begin_with(None, task, known) is task


def test_a_trial_keeps_all_rows_and_the_last_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = (Checkpoint({}, {}, None, {}, {"step": step}) for step in (1, 3))
    asked: list[Any] = []

    def train(algorithm: Any, training: Any, resume: str, task: Any, data: Any, state: Any, start: Any, probe: Any) -> Any:
        asked.append((algorithm, training.animation_frames, training.epochs, resume, task, data, state))
        yield [], False
        yield [{"step": 0}], first
        yield [{"step": 1}, {"step": 2}], last
        yield [{"step": 3}], False

    build = lambda algorithm, training, seed, task, data: f"state of {seed}"  # noqa: E731
    exported = lambda task, checkpoint: (task, checkpoint)  # noqa: E731
    for module, name, made in (("start", "build_state", build), ("nodes", "train", train), ("export", "export_model", exported)):
        monkeypatch.setattr(trial_training, module, SimpleNamespace(**{name: made}))
    weights, rows = trial_training.train_weights(
        "algorithm", training_params(epochs=7, animation_frames=9), "task", "data", seed=6
    )
    assert weights == ("task", last)
    assert rows == [{"step": step} for step in range(4)]
    assert asked == [("algorithm", 0, 7, "never", "task", "data", "state of 6")]


@pytest.mark.parametrize("keeps", [False, True])
def test_the_record_of_a_trial_says_how_it_went(monkeypatch: pytest.MonkeyPatch, keeps: bool) -> None:
    monkeypatch.setattr(executor, "open_trial", lambda *given: SimpleNamespace(memory="memory of this one"))
    done, asked = trial_training.Trained("predictions", [{"step": 0}], "weights"), []
    monkeypatch.setattr(executor, "train_trial", lambda *given, seed, split: asked.append((seed, split)) or done)
    clock = iter([10.0, 12.5])
    monkeypatch.setattr(executor.time, "perf_counter", lambda: next(clock))
    bench = Bench(SimpleNamespace(task="t"), "examples", lambda rows, rule: {f"{rows} {rule}": 0.5})
    job = Assignment(1, Trial("a", 3, "2"), arm(rule="own", x=1))
    outcome, memory = executor.train(job, TrialContext(bench.preparation, "examples", "val", keeps), "before")
    record = record_of(job, outcome, bench, digest="d")
    header = record.header
    assert (header.key, header.task, header.arm, header.seed, header.fold) == ("a.seed3.fold2", "t", "a", 3, "2")
    assert (header.status, header.seconds, header.digest, header.parameters) == ("finished", 2.5, "d", {"x": 1})
    assert (header.metrics, header.reason, record.traceback) == ({"predictions own": 0.5}, None, None)
    assert (record.predictions, record.metric_rows) == ("predictions", [{"step": 0}])
    assert (record.weights, memory, asked) == ("weights" if keeps else None, "memory of this one", [(3, "val")])


def test_a_trial_that_fails_leaves_the_memory_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("no\n  data")

    monkeypatch.setattr(executor, "open_trial", refuse)
    job, bench = Assignment(1, Trial("a", 0), arm()), Bench(SimpleNamespace(task="t"), None, dict)
    outcome, memory = executor.train(job, TrialContext(bench.preparation, None, "val", False), "before")
    record = record_of(job, outcome, bench, digest="d")
    assert (record.header.status, record.header.reason, memory) == ("failed", "RuntimeError: no data", "before")
    assert "refuse" in record.traceback


def test_rows_that_cannot_be_scored_fail_their_trial_alone() -> None:
    def score(rows: Any, rule: str) -> Any:
        raise ValueError(f"no {rule}")

    outcome = executor.Outcome(1.5, trial_training.Trained("rows", [], None))
    given, bench = Assignment(1, Trial("a", 0), arm(rule="own")), Bench(SimpleNamespace(task="t"), None, score)
    record = record_of(given, outcome, bench, digest="d")
    assert (record.header.status, record.header.reason, record.header.seconds) == ("failed", "no own", 1.5)
    assert (record.predictions, "no own" in record.traceback) == (None, True)


def test_reasons_are_one_sentence() -> None:
    errors = [ValueError("a  b\nc"), ValueError(), RuntimeError("x"), KeyError()]
    assert [reason_of(error) for error in errors] == ["a b c", "ValueError", "RuntimeError: x", "KeyError"]


def test_many_keys_are_told_by_the_first_six() -> None:
    assert shortened([*"abcdef"]) == "a, b, c, d, e, f"
    assert shortened([*"abcdefgh"]) == "a, b, c, d, e, f and 2 more"


def test_what_is_fitted_as_an_arm_gets_the_scored_rows_and_the_seed_of_its_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(trial_training, "resolve_name", lambda name: lambda *given, seed: asked.append((*given, seed)) or "rows")
    task = SimpleNamespace(rows=lambda data, split: (data, split))
    fitted = SimpleNamespace(description=SimpleNamespace(baseline="forest"))
    opened = preparation.Opened(task, "data", {})
    found = trial_training.train_trial(SimpleNamespace(task="attention"), fitted, opened, seed=7, split="val")
    assert asked == [(task, "data", ["forest"], ("data", "val"), 7)]
    assert (found.predictions, found.metric_rows, found.weights) == ("rows", [], None)


def test_an_arm_is_trained_and_predicts_with_the_seed_of_its_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        trial_training, "train_weights", lambda *given, seed: asked.append((*given, seed)) or ("weights", [{"step": 0}])
    )
    monkeypatch.setattr(trial_training.prediction, "predict", lambda *given: asked.append(given) or ("predictions", None, None))
    trained = SimpleNamespace(algorithm="algorithm", training="training", description=SimpleNamespace(baseline=None))
    found = trial_training.train_trial(
        SimpleNamespace(task="t"), trained, preparation.Opened("task", "data", {}), seed=7, split="val"
    )
    assert asked == [
        ("algorithm", "training", "task", "data", 7),
        ("algorithm", "training", 7, "task", "data", "weights", "val"),
    ]
    assert (found.predictions, found.metric_rows, found.weights) == ("predictions", [{"step": 0}], "weights")
