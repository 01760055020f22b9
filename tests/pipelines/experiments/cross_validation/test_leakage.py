"""End to end at tiny size: what the three schemes train on, trial by trial, and what they predict."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from tiny import SERIAL
from tiny_folds import EVALUATION, cross_validate, make_params, task_parameters

from grpo_pipeline.pipelines.experiments.cross_validation import nodes
from grpo_pipeline.pipelines.experiments.trials import executor
from grpo_pipeline.tasks.attention.task import AttentionTask

CANDIDATES = {"plain": {}, "global_decoder": {"model": {"class_decoder": {"kind": "global"}}}}


@dataclass
class Seen:
    """One trial as it was trained: its splits, the cores that it learned from and watched, its normalisation."""

    key: str
    split: dict[str, str]
    clinical_mean: tuple[float, ...]
    trained: set[str] = field(default_factory=set)
    watched: set[str] = field(default_factory=set)


@pytest.fixture(scope="module", params=["kfold", "nested", "leave_one_center_out"])
def traced(request):
    """A whole cross-validation and what each of its trials has looked at; batches to train on have a generator."""
    seen: list[Seen] = []
    make_batch, validate, open_trial = AttentionTask.make_batch, AttentionTask.validate, executor.open_trial

    def spy_batch(self, data, rows, *, generator=None):
        if generator is not None:
            seen[-1].trained.update(data.examples.table["core_id"].iloc[np.asarray(rows)])
        return make_batch(self, data, rows, generator=generator)

    def spy_validate(self, policy, data, rows, **options):
        seen[-1].watched.update(data.examples.table["core_id"].iloc[np.asarray(rows)])
        return validate(self, policy, data, rows, **options)

    def spy_trial(setup, arm, trial, *rest):
        opened = open_trial(setup, arm, trial, *rest)
        table = opened.data.examples.table
        seen.append(Seen(trial.key, dict(zip(table["core_id"], table["split"], strict=True)), opened.task.clinical.mean))
        return opened

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AttentionTask, "make_batch", spy_batch)
        patch.setattr(AttentionTask, "validate", spy_validate)
        patch.setattr(executor, "open_trial", spy_trial)
        candidates = CANDIDATES if request.param == "nested" else None
        return cross_validate(make_params(request.param, candidates=candidates)), seen


def patients(found, cores):
    table = found.examples.table
    return set(table.loc[table["core_id"].isin(cores), "patient_id"])


def outer_fold(found, key):
    """The outer fold of a trial and the one that it trains on, by its name: ``grpo.plain.seed0.fold1.inner0``."""
    number, _, inner = key.partition(".fold")[2].partition(".inner")
    outer = found.folds["folds"][int(number)]
    return outer, outer["inner"][int(inner)] if inner else outer


def test_a_cell_learns_from_its_own_training_part_alone(traced):
    """Neither from a patient of its test fold, of the outer one or of the held-out split; also its clinical statistics."""
    found, seen = traced
    per_fold = 2 * (1 + 2 * 2) if found.params.scheme == "nested" else 2
    assert len(seen) == 2 * per_fold == len(found.trials.records) + len(found.inner.records)
    table = found.examples.table.set_index("core_id")
    for one in seen:
        outer, fold = outer_fold(found, one.key)
        held_out = [] if fold is not outer else found.folds["held_out"]
        expected = {part: sorted(fold[part]) for part in ("train", "val")} | {"test": sorted([*fold["test"], *held_out])}
        assert {part: sorted(c for c, of in one.split.items() if of == part) for part in expected} == expected
        store = found.trials if fold is outer else found.inner
        assert sorted(set(store.predictions(one.key)["core_id"])) == expected["test"]
        forbidden = patients(found, [*fold["test"], *outer["test"], *found.folds["held_out"]])
        assert not forbidden & patients(found, one.trained | one.watched)
        # What remains of a shuffled pass after the last whole batch is left out.
        assert set() < one.trained <= set(fold["train"])
        assert one.watched == set(fold["val"]) > set()
        assert one.clinical_mean == pytest.approx(tuple(table.loc[list(fold["train"]), list(found.examples.clinical)].mean()))
    assert len({one.clinical_mean for one in seen}) > 1


def test_every_core_is_predicted_once_by_each_arm_by_the_cell_that_tested_it(traced):
    found, _ = traced
    tested, held = set(found.examples.table["core_id"]) - set(found.folds["held_out"]), sorted(found.folds["held_out"])
    assert all(by_seed[0]["core_id"].tolist() == sorted(tested) for by_seed in found.rows.tested.values())
    held_out = [core for core in held for _ in found.folds["folds"]]
    assert all(by_seed[0]["core_id"].tolist() == held_out for by_seed in found.rows.held_out.values())
    assert bool(found.rows.held_out) == (found.params.scheme == "kfold")
    chosen = {(choice.fold, choice.arm): choice.chosen for choice in found.choices}
    for number, fold in enumerate(found.folds["folds"]):
        for arm, by_seed in found.rows.tested.items():
            name = f"{arm}.{chosen[fold['name'], arm]}" if chosen else arm
            key = f"{name}.seed0.fold{number}"
            rows = found.trials.predictions(key)
            wanted = rows[(rows["rule"] == "policy") & rows["core_id"].isin(fold["test"])].sort_values("core_id")
            own = by_seed[0][by_seed[0]["fold"] == fold["name"]]
            assert own["core_id"].tolist() == wanted["core_id"].tolist() == list(fold["test"])
            np.testing.assert_array_equal(own["prob"], wanted["prob"])
            assert found.trials.headers[key].metrics["reward"] == pytest.approx(wanted["reward"].mean())


def test_the_choice_of_an_outer_fold_is_reported_and_a_second_run_keeps_every_trial(traced):
    found, _ = traced
    assert bool(found.result["choices"]) == (found.params.scheme == "nested")
    for choice in found.result["choices"]:
        number = [fold["name"] for fold in found.folds["folds"]].index(choice["fold"])
        keys = {name: [f"{choice['arm']}.{name}.seed0.fold{number}.inner{i}" for i in (0, 1)] for name in CANDIDATES}
        means = {name: np.mean([found.inner.headers[key].metrics["auroc"] for key in inner]) for name, inner in keys.items()}
        assert choice["means"] == pytest.approx(means)
        assert means[choice["chosen"]] == max(means.values())
    settings = nodes.arrange_arms(found.params, EVALUATION, task_parameters())
    given = found.params, EVALUATION, SERIAL, settings, found.folds
    assert list(nodes.train_inner_trials(*given, found.examples, found.inner)) == [False]
    assert list(nodes.train_folds(*given, found.choices, found.examples, found.trials)) == [False]
