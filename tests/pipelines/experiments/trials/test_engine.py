"""A grid on the tiny attention task: what is trained, kept, tried again, and what a trial is equal to."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from tiny import SERIAL
from tiny_attention import make_data, make_examples, make_task
from tiny_grid import SHORT, Memory, resolve_tiny, run_in_memory, tiny_bench, tiny_plan

import grpo_pipeline
from grpo_pipeline.core.storage.checkpoint import NoCheckpoint
from grpo_pipeline.pipelines.experiments.trials import digest, executor
from grpo_pipeline.pipelines.experiments.trials.digest import trial_digest
from grpo_pipeline.pipelines.experiments.trials.engine import run_trials
from grpo_pipeline.pipelines.experiments.trials.records import CompareError, Trial
from grpo_pipeline.pipelines.experiments.trials.task_lookup import find_preparation
from grpo_pipeline.pipelines.step.arm_parts import Parts
from grpo_pipeline.pipelines.training.pipeline import create_pipeline
from grpo_pipeline.tasks.attention import frozen_features
from grpo_pipeline.tasks.attention.model.classifiers import fit_baselines


def run(plan, bench, store):
    """Run a plan as the catalogue would; returns the keys that were trained."""
    trained = []
    for record in run_trials(plan, bench, store):
        if record is not False:
            store.keep(record)
            trained.append(record.header.key)
    return trained


class Spy:
    """Call a function and keep what it returned."""

    def __init__(self, function):
        self.function, self.returned = function, []

    def __call__(self, *args):
        self.returned.append(self.function(*args))
        return self.returned[-1]


@pytest.fixture(scope="module")
def whole():
    store = Memory()
    assert run(tiny_plan(), tiny_bench(), store) == ["supervised.seed0", "grpo.seed0", "supervised.seed1", "grpo.seed1"]
    return store


def ordinary_predictions(arm, *, seed):
    """Predictions of the same arm as an ordinary run of the training pipeline makes them."""
    name = f"attention.{arm.name}"
    given = {
        "attention.task": make_task(policy={"reads": {"encoder": "own"}}), "attention.data": make_data(),
        "params:attention.training": arm.training,
        "params:seed": seed, "params:resume": "never", "params:executor": SERIAL, f"params:{name}.algorithm": arm.algorithm,
        f"{name}.resume_from": NoCheckpoint("none"),
    }  # fmt: skip
    return run_in_memory(create_pipeline("attention", arm.name, parts=Parts.of(arm.algorithm)), given).load(f"{name}.predictions")


def test_a_cell_is_what_an_ordinary_run_of_its_arm_gives_and_its_record_says_so(whole):
    expected = ordinary_predictions(resolve_tiny()["grpo"], seed=1)
    pd.testing.assert_frame_equal(whole.predictions("grpo.seed1"), expected, check_exact=True)
    record = whole.records["grpo.seed1"]
    header = record.header
    assert (header.arm, header.seed, header.fold, header.status, header.reason) == ("grpo", 1, None, "finished", None)
    assert header.metrics == {"rows": 5.0}
    assert header.parameters["algorithm"]["losses"]["policy"]["kind"] == "grpo"
    assert header.seconds > 0
    assert [row["step"] for row in record.metric_rows if row["split"] == "train"] == [0]
    assert record.weights is None


def test_finished_cells_are_kept_and_a_changed_arm_alone_is_trained_again(whole, monkeypatch, capsys):
    monkeypatch.setenv("GRPO_PROGRESS", "lines")
    store = Memory()
    stopped = run_trials(tiny_plan(), tiny_bench(), store)
    assert next(stopped) is False
    store.keep(next(stopped))
    stopped.close()
    capsys.readouterr()
    assert run(tiny_plan(), tiny_bench(), store) == ["grpo.seed0", "supervised.seed1", "grpo.seed1"]
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "1 of 4 trials are finished and kept: supervised.seed0"
    assert said[-1].startswith("attention: 3 trials: 100%")
    for key in whole.records:
        pd.testing.assert_frame_equal(store.predictions(key), whole.predictions(key), check_exact=True)
    changed = tiny_plan(grpo={"base": "grpo", "set": {"training": {"epochs": 1}, "algorithm": {"update_epochs": 2}}})
    assert run(changed, tiny_bench(), store) == ["grpo.seed0", "grpo.seed1"]
    assert run(changed, tiny_bench(), store) == []


def test_a_baseline_stands_as_an_arm_fitted_on_the_training_split_of_its_trial(monkeypatch):
    """Rows are those of ``fit_baselines`` on the same split, whatever the base's stages; another baseline is another trial."""
    arm = {"base": "grpo", "baseline": "picture", "set": {"training": SHORT["training"]}}
    plan, store = tiny_plan((3,), picture=arm), Memory()
    plan = replace(plan, trials=plan.trials[-1:])
    assert plan.arms["picture"].description.rule == "picture"
    monkeypatch.setattr(executor, "open_trial", spy := Spy(executor.open_trial))
    assert run(plan, tiny_bench(keeps_weights=True), store) == ["picture.seed3"]
    found = store.records["picture.seed3"]
    assert (found.header.status, found.header.metrics, found.weights) == ("finished", {"rows": 5.0}, None)
    data = make_data()
    expected = fit_baselines(make_task(), data, ["picture"], data.examples.rows("test"), seed=3)
    pd.testing.assert_frame_equal(found.predictions, expected)
    assert run(plan, tiny_bench(), store) == []
    other = replace(tiny_plan((3,), picture=arm | {"baseline": "texture"}), trials=plan.trials)
    assert run(other, tiny_bench(), store) == ["picture.seed3"]
    # On a fold it learns from the fold's training part alone.
    ids = data.examples.table["core_id"].tolist()
    split = {name: "test" if name in ids[:5] else "train" for name in ids if name != ids[-1]}
    [record] = [r for r in run_trials(replace(plan, trials=(Trial("picture", 3, "0", split),)), tiny_bench(), Memory()) if r]
    assert record.predictions["core_id"].tolist() == ids[:5]
    there = spy.returned[-1].data.examples
    assert there.table["split"].tolist() == ["test"] * 5 + ["train"] * 9 + [""]


def test_a_cell_that_raises_stops_no_other_and_is_tried_again(whole, monkeypatch, capsys):
    monkeypatch.setenv("GRPO_PROGRESS", "lines")
    store, train = Memory(dict(whole.records)), executor.train_trial

    def broken(preparation, arm, opened, *, seed, split):
        if seed == 1:
            raise ValueError("loss must be finite,\n got nan")
        return train(preparation, arm, opened, seed=seed, split=split)

    monkeypatch.setattr(executor, "train_trial", broken)
    plan = tiny_plan(seeds=(0, 1, 2))
    kept = whole.records["grpo.seed1"]
    store.records["grpo.seed1"] = replace(kept, header=replace(kept.header, digest="of other code"))
    assert run(plan, tiny_bench(), store) == ["grpo.seed1", "supervised.seed2", "grpo.seed2"]
    lost = store.records["grpo.seed1"]
    assert (lost.header.status, lost.header.reason) == ("failed", "loss must be finite, got nan")
    assert "Traceback" in lost.traceback
    assert lost.predictions is None
    said = capsys.readouterr().err
    assert "trial grpo.seed1 failed, the others go on: loss must be finite, got nan" in said
    assert said.splitlines()[-1] == "1 of 6 trials failed and are tried again by the next run: grpo.seed1"
    monkeypatch.setattr(executor, "train_trial", train)
    assert run(plan, tiny_bench(), store) == ["grpo.seed1"]
    assert store.headers["grpo.seed1"].status == "finished"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_ctrl_c_and_sigterm_stop_at_once_and_all_cells_failing_is_an_error(monkeypatch, error):
    def stopped(preparation, arm, opened, *, seed, split):
        raise error

    monkeypatch.setattr(executor, "train_trial", stopped)
    store, message = Memory(), "at least one trial must finish, got 4 failures; the first is supervised.seed0: RuntimeError"
    with pytest.raises(CompareError if error is RuntimeError else error, match=message if error is RuntimeError else None):
        run(tiny_plan(), tiny_bench(), store)
    assert [header.status for header in store.headers.values()] == ["failed"] * (4 if error is RuntimeError else 0)


def test_features_of_a_frozen_encoder_are_handed_on(monkeypatch):
    encoded = []
    monkeypatch.setattr(frozen_features, "track", lambda starts, _: encoded.append(starts.stop) or starts)
    frozen = {"base": "grpo", "set": SHORT | {"model": {"encoder": {"tuning": {"kind": "frozen"}}}}}
    store = Memory()
    run(tiny_plan(seeds=(0,), grpo=frozen, again=frozen), tiny_bench(), store)
    assert encoded == [15]
    pd.testing.assert_frame_equal(store.predictions("grpo.seed0"), store.predictions("again.seed0"), check_exact=True)


PACKAGE = Path(grpo_pipeline.__file__).parent
KIT, EXAMPLES = find_preparation("attention"), make_examples()
SPLIT = dict(zip(EXAMPLES.table["core_id"], EXAMPLES.table["split"], strict=True))


def of(trial=Trial("grpo", 0), examples=EXAMPLES, **changes):  # noqa: B008 - frozen
    arm = resolve_tiny(**changes)[trial.arm]
    return trial_digest(KIT, arm, trial, examples, split="test")


def test_whatever_decides_the_result_changes_the_digest_and_other_arms_do_not():
    def arm(**changes):
        return of(grpo={"base": "grpo", "set": changes})

    changed = [
        of(Trial("grpo", 1)), of(Trial("supervised", 0)), of(Trial("grpo", 0, split=SPLIT | {"c00": "val"})),
        arm(algorithm={"losses": {"kl": {"weight": 0.002}}}), arm(reward={"heatmap": {"weight": 0.1}}),
        arm(training={"epochs": 3}),
        of(examples=make_examples(seed=1)), of(examples=replace(EXAMPLES, table=EXAMPLES.table.assign(split="train"))),
    ]  # fmt: skip
    same = of(), of(other={"base": "grpo", "set": {"training": {"epochs": 1}}}), of(Trial("grpo", 0, split=SPLIT))
    assert set(same) == {of()}
    assert len({of(), *changed}) == 9
    assert arm(training={"epochs": 1}) != arm(training={"epochs": 2})  # a length that a resumed run may change


def test_the_digest_reads_shared_code_and_the_tasks_own_folder_alone(monkeypatch):
    read, before = set(), of()

    def recorded(package, names, *, salt=""):
        for name in names:
            path = package / name
            read.update([path] if path.is_file() else path.rglob("*.py"))
        return salt

    with monkeypatch.context() as patch:
        patch.setattr(digest, "digest_of_sources", recorded)
        digest.source_digest.__wrapped__("attention")
    found = {str(path.relative_to(PACKAGE)) for path in read}
    assert {"core/types.py", "tasks/base.py", "tasks/attention/task.py", "tasks/attention/pipelines/nodes.py"} <= found
    assert not [name for name in found if "molecules" in name or "dialogue" in name]
    assert not [name for name in found if name.startswith(("pipelines/reporting", "pipelines/evaluation", "tracking"))]
    monkeypatch.setattr(digest, "source_digest", lambda task: f"other code of {task}")
    assert of() != before
