"""Which rows each phase of a run may read: noted row by row, and proved by changing all that it must not see.

Training learns from training rows and watches validation rows; the calibration and the limits of an exported model come from
validation rows; predictions and what is shown beside them from test rows; audits before training from training rows or those
that they are asked for. Noting finds a phase that asks for wrong rows, changed rows also one that reads them past the protocol.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny_attention as attention
import tiny_chemist as molecules
import tiny_talk as dialogue
import torch
from rdkit import Chem
from torch import Tensor

from grpo_pipeline.core.storage.checkpoint import NoCheckpoint
from grpo_pipeline.pipelines import gradient_flow
from grpo_pipeline.pipelines.params import GradientFlowParams, RewardAuditParams
from grpo_pipeline.pipelines.reward_audit import pipeline
from grpo_pipeline.pipelines.training import export, nodes, prediction
from grpo_pipeline.pipelines.training.start import build_state, pick_probe_batch
from grpo_pipeline.tasks.dialogue.build import tokenise
from grpo_pipeline.tasks.dialogue.data.examples import DialogueExamples, content_digest

SEED, TRAIN, VAL, TEST = 3, "train", "val", "test"
LENGTH = {
    "animation_frames": 5,
    "epochs": 2,
    "batch_size": 4,
    "group_size": 3,
    "max_steps": None,
    "micro_batch_size": None,
    "validation_samples": 2,
}
TIMES = ["step_seconds", "samples_per_second", "peak_memory_mb"]
Changed = tuple[str, ...]


def attention_run(changed: Changed) -> tuple[Any, Any]:
    examples = attention.make_clinical_examples()
    rows = np.flatnonzero(examples.table["split"].isin(changed))
    arrays = {name: getattr(examples, name).copy() for name in ("images", "region", "bag", "lesion")}
    arrays["images"][rows] = 255 - arrays["images"][rows]
    for name in ("region", "bag", "lesion"):
        arrays[name][rows] = arrays[name][rows].transpose(0, 2, 1)
    table = examples.table.copy()
    table.loc[rows, "label"] = 1 - table.loc[rows, "label"]
    table.loc[rows, ["involvement", "grade_group"]] = [0.95, 5.0]
    table.loc[rows, ["age", "psa", "kit"]] = [5.0, 900.0, 0.0]
    examples = replace(examples, table=table, **arrays)
    return attention.make_task(examples, clinical={"dropout": 0.25}), attention.make_data(examples)


def dialogue_run(changed: Changed) -> tuple[Any, Any]:
    examples, task = dialogue.make_examples(), dialogue.make_task()
    table = examples.table.copy()
    for row in np.flatnonzero(table["split"].isin(changed)):
        table.at[row, "answers"] = [f"nothing of that {row}", "at all"]
        table.loc[row, ["persona", "context", "question"]] = ["i am nobody.", "go away", f"persona: i am nobody. why {row}?"]
    changed_examples = DialogueExamples(table, examples.stories, content_digest(table, examples.stories))
    return task, tokenise(task, changed_examples)[0]


OTHER_MOLECULES = {TRAIN: "CCCC CCCN COC CNC C=CC CC#N C=CO OCCO", VAL: "NO N=N", TEST: "OCO NCN NC=O"}


def molecules_run(changed: Changed) -> tuple[Any, Any]:
    with pytest.MonkeyPatch.context() as patch:
        for split in changed:
            patch.setitem(molecules.SPLITS, split, [*map(Chem.CanonSmiles, OTHER_MOLECULES[split].split())])
        prompt = {"conditions": ["logp"]}
        return molecules.make_task(prompt=prompt), molecules.make_data(**prompt)


TASKS = {"attention": (attention_run, attention), "dialogue": (dialogue_run, dialogue), "molecules": (molecules_run, molecules)}
OF_ROWS = ("evaluate", "validate", "showcase", "training_frame", "calibrate", "audit")
Note = tuple[str, list[int], bool]  # method, rows, whether it is a batch to train on


@contextmanager
def noting(task: Any) -> Iterator[list[Note]]:
    """Note the rows that the methods of the task's class are given, whoever calls them."""
    notes: list[Note] = []

    def noted(name: str, function: Callable[..., Any], place: int) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            notes.append((name, np.asarray(args[place]).tolist(), kwargs.get("generator") is not None))
            return function(self, *args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("make_batch", *OF_ROWS):
            patch.setattr(type(task), name, noted(name, getattr(type(task), name), 1 if name == "make_batch" else 2))
        yield notes


@dataclass(frozen=True)
class Run:
    """One run of a task, phase by phase: what it made, and what each phase read."""

    rows: dict[str, list[int]]
    metrics: pd.DataFrame
    checkpoint: Any
    limits: tuple[Any, Any]
    predictions: tuple[Any, ...]
    notes: dict[str, list[Note]]


@cache
def run(name: str, changed: Changed = (), weights_of: Changed | None = None) -> Run:
    """Train, calibrate, export and predict; the predictions with the weights of another run, if given."""
    build, kit = TASKS[name]
    task, data = build(changed)
    algorithm, training = kit.algorithm_params(), kit.training_params(**LENGTH, validate_every_epochs=1)
    notes: dict[str, list[Note]] = {}
    with noting(task) as found:

        def phase(name: str, function: Callable[..., Any], *args: Any) -> Any:
            found.clear()
            made = function(*args)
            notes[name] = list(found)
            return made

        state = build_state(algorithm, training, SEED, task, data)
        phase("probe", pick_probe_batch, algorithm, training, SEED, task, data)
        loop = algorithm, training, "never", task, data, state, NoCheckpoint("nowhere"), {}
        yields = phase("train", lambda *args: list(nodes.train(*args)), *loop)
        checkpoint = next(last for _, last in reversed(yields) if last)
        fitted = phase("calibrate", export.calibrate, SEED, task, data, checkpoint)
        model = phase("export", export.export_model, task, checkpoint, fitted, data)
        trained = model if weights_of is None else export.export_model(task, run(name, weights_of).checkpoint)
        predictions = phase("predict", prediction.predict, algorithm, training, SEED, task, data, trained)
    rows = {split: task.rows(data, split).tolist() for split in (TRAIN, VAL, TEST)}
    metrics = pd.DataFrame([row for new, _ in yields for row in new]).drop(columns=TIMES)
    limits = ({**model.config, "training": None}, {name: dict(part) for name, part in model.beside.items()})
    return Run(rows, metrics, checkpoint, limits, predictions, notes)


def read(notes: list[Note]) -> list[int]:
    return sorted({row for _, rows, _ in notes for row in rows})


def given(notes: list[Note], method: str) -> list[list[int]]:
    return [rows for name, rows, _ in notes if name == method]


@pytest.mark.parametrize("name", TASKS)
def test_each_phase_reads_the_rows_that_it_may(name: str) -> None:
    found = run(name)
    train, val, test = (found.rows[split] for split in (TRAIN, VAL, TEST))
    assert min(map(len, (train, val, test))) > 1
    assert [trains for *_, trains in found.notes["probe"]] == [True]
    assert set(read(found.notes["probe"])) < set(train)
    # A frozen reference is asked about every row once, which teaches nothing; what is trained on has a generator.
    batches = [rows for method, rows, trains in found.notes["train"] if method == "make_batch" and trains]
    assert [len(rows) for rows in batches] == [LENGTH["batch_size"]] * 4
    assert [sorted(batches[i] + batches[i + 1]) for i in (0, 2)] == [train, train]
    assert batches[:2] != batches[2:]
    assert given(found.notes["train"], "validate") == [val, val]
    assert found.metrics.loc[found.metrics["split"] == VAL, "step"].tolist() == [1, 3]
    assert {method for method, *_ in found.notes["train"]} == {"make_batch", "validate", "training_frame"}
    frames = given(found.notes["train"], "training_frame")
    assert len(frames) == 5  # at the start, after each of 4 steps
    assert all(rows == frames[0] and set(rows) <= set(val) for rows in frames)
    assert given(found.notes["calibrate"], "calibrate") == [val]
    assert read(found.notes["calibrate"]) == val
    assert set(read(found.notes["export"])) <= {*train, *val}
    assert given(found.notes["predict"], "evaluate") == [test]
    assert read(found.notes["predict"]) == test
    assert not any(trains for phase in ("calibrate", "export", "predict") for *_, trains in found.notes[phase])


@pytest.mark.parametrize("split", [TRAIN, VAL])
@pytest.mark.parametrize("name", TASKS)
def test_audits_before_training_read_training_rows_and_the_split_asked_for(name: str, split: str) -> None:
    build, kit = TASKS[name]
    task, data = build(())
    training, control = kit.training_params(**LENGTH), kit.algorithm_params("supervised")
    params = RewardAuditParams.model_construct(split=split, warmup_steps=1, rows=2, n_samples=2)
    train = task.rows(data, TRAIN).tolist()
    with noting(task) as notes:
        pipeline.score_policies(params, control, training, SEED, task, data)
        [audited] = given(notes, "audit")
        assert set(audited) <= set(task.rows(data, split).tolist())
        assert len(audited) == 2
        assert [set(rows) <= set(train) for _, rows, trains in notes if trains] == [True]
        assert {row for _, rows, trains in notes if not trains for row in rows} == set(audited)
        notes.clear()
        state = gradient_flow.warm_up(control, training, GradientFlowParams(warmup_steps=1, expected={}), SEED, task, data)
        gradient_flow.pick_audited_batch(control, training, task, data, state)
        assert [trains and set(rows) <= set(train) for _, rows, trains in notes] == [True, True]
        assert notes[0][1] != notes[1][1]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, pd.DataFrame):
        return a.equals(b)
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.tobytes() == b.tobytes() if a.dtype != object else bool((a == b).all())
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(same(value, b[name]) for name, value in a.items())
    return a == b


@pytest.mark.parametrize(("changed", "moves"), [((TEST,), set()), ((VAL,), {VAL}), ((TRAIN,), {TRAIN, VAL, "weights"})])
@pytest.mark.parametrize("name", TASKS)
def test_a_row_that_a_phase_must_not_see_may_be_anything(name: str, changed: Changed, moves: set[str]) -> None:
    sound, other = run(name), run(name, changed, weights_of=())
    found = set() if same(sound.checkpoint.policy, other.checkpoint.policy) else {"weights"}
    for split in (TRAIN, VAL):
        a, b = (one.metrics[one.metrics["split"] == split].reset_index(drop=True) for one in (sound, other))
        found |= set() if same(a, b) else {split}
    assert found == moves
    if changed == (TEST,):
        assert all(same(a, b) for a, b in zip(sound.limits, other.limits, strict=True))
    is_seen = not all(same(a, b) for a, b in zip(sound.predictions, other.predictions, strict=True))
    assert is_seen == (changed == (TEST,)) or changed == (TRAIN,)
