"""The weights of the best validation are kept beside the last ones, by the validation split alone."""

from pathlib import Path
from typing import Any

import pytest
from tiny_attention import algorithm_params, differing, make_data, make_task, training_params

from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.storage.checkpoint import Checkpoint, NoCheckpoint
from grpo_pipeline.datasets.checkpoint import CheckpointDataset
from grpo_pipeline.pipelines.arms import keeping_one
from grpo_pipeline.pipelines.evaluation.comparison import best_validation
from grpo_pipeline.pipelines.training import export, nodes
from grpo_pipeline.pipelines.training.start import build_state
from grpo_pipeline.tasks import find_task
from grpo_pipeline.tasks.attention.task import AttentionTask

TASK, DATA, NOTHING, SEED = make_task(), make_data(), NoCheckpoint("nowhere"), 3
NAN = float("nan")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Values of the validations to come, one for each two steps; what else a validation reads is left alone."""
    values: list[float] = []
    monkeypatch.setattr(AttentionTask, "validate", lambda *_, **__: {"auroc": values.pop(0), "reward/mean": -1.0})
    return values


def run(*, keep: str = "both", start: Any = NOTHING, resume: str = "never") -> list[tuple[list[dict[str, Any]], Any]]:
    """Train 4 epochs of 2 steps: validated, and stored, after steps 2, 4, 6 and 8."""
    training = training_params(epochs=4, batch_size=4, keep=keep)
    state = build_state(algorithm_params(), training, SEED, TASK, DATA)
    return list(nodes.train(algorithm_params(), training, resume, TASK, DATA, state, start, None))


def stored(yielded: list[tuple[list[dict[str, Any]], Any]]) -> dict[int, Checkpoint]:
    return {one.progress["step"]: one for _, one in yielded if one is not False}


def noted(yielded: list[tuple[list[dict[str, Any]], Any]]) -> dict[int, dict[str, float]]:
    """Step of a validation row -> its entries that say which model its weights are."""
    rows = [row for rows, _ in yielded for row in rows if row["split"] == "val"]
    return {row["step"]: {name: row[name] for name in row if name.startswith(("best/", "model/"))} for row in rows}


# The best is after step 4: the equal value after step 6 comes second, and the undefined one is none.
VALUES = [0.25, 0.75, 0.75, 0.5]


def test_the_best_weights_are_a_model_beside_the_last_ones(script: list[float]) -> None:
    script += VALUES
    yielded = run()
    found = stored(yielded)
    assert noted(yielded) == {1: {"best/auroc": 0.25}, 3: {"best/auroc": 0.75}, 5: {}, 7: {}}
    last, model = found[8], export.export_model(TASK, found[8])
    best = export.export_best(SEED, TASK, DATA, last, model)
    assert differing(dict(model.tensors), dict(last.policy)) == []
    assert differing(dict(best.tensors), dict(found[4].policy)) == []
    assert differing(dict(best.tensors), dict(last.policy)) != []
    assert best.config["validation"] == {"metric": "auroc", "value": 0.75, "step": 4}
    assert model.config["validation"] == {"metric": "auroc", "value": 0.5, "step": 8}
    assert (best.config["training"]["step"], model.config["training"]["step"]) == (4, 8)
    # Its calibration and its training inputs are its own.
    assert best.config["calibration"] == export.calibrate(SEED, TASK, DATA, found[4])
    assert "inputs" in best.config
    assert [bool(found[step].best) for step in (2, 4, 6, 8)] == [False, False, True, True]  # not stored twice


def test_an_undefined_validation_is_no_best_one(script: list[float]) -> None:
    script += [NAN, 0.5, NAN, NAN]
    found = stored(run())
    assert [found[step].progress.get("best", {}).get("step") for step in (2, 4, 6, 8)] == [None, 4, 4, 4]
    assert "validation" not in export.export_model(TASK, found[8]).config  # not one of other weights
    model = export.export_model(TASK, found[4], {"method": "none"})
    assert export.export_best(SEED, TASK, DATA, found[4], model) == model  # the best are the last ones: nothing is done again


@pytest.mark.parametrize(("keep", "step", "prefix"), [("last", 8, None), ("best", 4, "model"), ("both", 8, "best")])
def test_which_weights_become_the_model(script: list[float], keep: str, step: int, prefix: str | None) -> None:
    script += VALUES
    yielded = run(keep=keep)
    found, model = stored(yielded), export.export_model(TASK, stored(yielded)[8])
    assert model.config["validation"] == {"metric": "auroc", "value": VALUES[step // 2 - 1], "step": step}
    assert model.config["training"]["step"] == step
    assert bool(found[8].best) == (keep != "last")
    names = {name for row in noted(yielded).values() for name in row}
    assert names == (set() if prefix is None else {f"{prefix}/auroc"})


def test_keeping_the_best_changes_nothing_of_the_training(script: list[float]) -> None:
    script += VALUES * 2
    both, last = (stored(run(keep=keep))[8] for keep in ("both", "last"))
    assert differing(dict(both.policy), dict(last.policy)) == []
    assert differing(dict(both.optimizer["tensors"]), dict(last.optimizer["tensors"])) == []


@pytest.mark.parametrize("stop", [4, 6])
def test_a_run_that_goes_on_knows_what_was_best_before(tmp_path: Path, script: list[float], stop: int) -> None:
    script += VALUES
    unbroken = stored(run())
    path = str(tmp_path / "checkpoint")
    CheckpointDataset(path).save(unbroken[stop])
    script += VALUES[stop // 2 :]
    again = stored(run(start=CheckpointDataset(path).load(), resume="auto"))[8]
    assert again.progress == unbroken[8].progress
    assert differing(dict(again.best), dict(unbroken[8].best)) == []


def test_where_no_validation_has_the_metric_the_last_weights_are_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AttentionTask, "validate", lambda *_, **__: {"reward/mean": -1.0})
    yielded = run()
    found = stored(yielded)[8]
    model = export.export_model(TASK, found)
    assert export.export_best(SEED, TASK, DATA, found, model) == model


def test_a_comparison_says_after_which_step_the_weights_were_best() -> None:
    import pandas as pd

    rows = pd.DataFrame(
        [
            {"step": 0, "split": "train", "reward/mean": 0.5},
            {"step": 1, "split": "val", "auroc": 0.25, "best/auroc": 0.25},
            {"step": 3, "split": "val", "auroc": 0.75, "best/auroc": 0.75},
            {"step": 5, "split": "val", "auroc": NAN},
        ]
    )
    assert best_validation(rows) == {
        "metric": "auroc", "kind": "best", "best": {"step": 4, "value": 0.75}, "last": {"step": 6, "value": None},
    }  # fmt: skip
    assert best_validation(rows.drop(columns="best/auroc")) is None


def test_arms_that_keep_one_model_have_no_second_one() -> None:
    spec = find_task("attention")
    section = {"arms": ["a", "b", "c"], "training": {"keep": "last"}, "a": {"algorithm": {}}}
    section |= {"b": {"algorithm": {}, "training": {"keep": "both"}}, "c": {"algorithm": {}, "training": {"keep": "best"}}}
    assert keeping_one(spec, {"attention": section}) == ("a", "c")
    assert keeping_one(spec, {"attention": section | {"training": {}}}) == ("c",)
    assert keeping_one(spec, {}) == ()


def test_the_default_is_no_part_of_what_a_checkpoint_must_agree_on() -> None:
    """Trials and checkpoints of before stay usable."""
    assert "keep" not in TrainingParams.model_validate(training_params().model_dump()).model_dump()
    assert training_params(keep="best").model_dump()["keep"] == "best"
