"""Wiring of one arm, the same template for every task: build -> probe -> train -> calibrate -> export -> predict.

Beside it, the frames of an animation of the training come out of the last checkpoint.
"""

import base64
from collections.abc import Collection, Iterator, Mapping
from functools import partial, wraps
from importlib.resources import files
from typing import Any

from kedro.pipeline import Node, Pipeline
from kedro.pipeline.preview_contract import ImagePreview

from grpo_pipeline.pipelines.step import recipe
from grpo_pipeline.pipelines.step.arm_parts import ALL, Parts
from grpo_pipeline.pipelines.step.wire import ALGORITHM, TRAINING
from grpo_pipeline.pipelines.training import at_once, export, frames, nodes, prediction, start


def create_pipeline(
    task: str,
    arm: str,
    *,
    own: Collection[str] = (),
    keeps_both: bool = True,
    parts: Parts = ALL,
) -> Pipeline:
    """Wire one arm under the namespace ``<task>.<arm>``.

    Shared with the other arms: ``<task>.task``, ``<task>.data``, ``params:<task>.training``, ``params:seed`` and
    ``params:resume``. The arm's own: ``params:<task>.<arm>.algorithm`` and everything it writes.

    Args:
        task: prefix of the catalogue names.
        arm: its name.
        own: sections of parameters that it has for itself: ``training``, its loop; with any other, ``<task>.<arm>.task``.
        parts: of its step.
        keeps_both: whether the best weights become a model of their own beside the last ones (``training.keep``).
    """
    sections = {
        "algorithm": f"{task}.{arm}.algorithm",
        "training": f"{task}.{arm}.training" if "training" in own else f"{task}.training",
    }
    inputs = [ALGORITHM, TRAINING, "params:seed", "task", "data", "model"]
    outputs = ["predictions", "rollouts", "showcase"]  # what the evaluation and the report read
    predict = Node(prediction.predict, inputs, outputs, name="predict", namespace="results")
    develop = Node(
        frames.develop, ["checkpoint"], "frames", name="develop_frames", namespace="results"
    )
    best = Node(
        export.export_best,
        ["params:seed", "task", "data", "checkpoint", "model"],
        "best",
        name="export_best",
        namespace="export",
    )
    return Pipeline(
        _start(parts)
        + _training_of_arm({**sections, "task": task})
        + _export()
        + Pipeline([predict, develop, *([best] if keeps_both else [])]),
        namespace=f"{task}.{arm}",
        inputs=shared_inputs(task, own),
        parameters={
            **shared_training(task, own),
            "params:seed": "params:seed",
            "params:resume": "params:resume",
            "params:executor": "params:executor",
        },
        tags=[task, arm],
    )


def shared_inputs(task: str, own: Collection[str]) -> dict[str, str]:
    """Return what an arm's template reads that is not in the arm's namespace."""
    return {"data": f"{task}.data"} | ({"task": f"{task}.task"} if {*own} <= {"training"} else {})


def shared_training(task: str, own: Collection[str]) -> dict[str, str]:
    """Return the parameters of the loop, unless they are in the arm's namespace."""
    return {} if "training" in own else {TRAINING: f"params:{task}.training"}


def create_stage(task: str, stage: str, *, parts: Parts = ALL) -> Pipeline:
    """Wire a stage that comes before the arms, under the namespace ``<task>.<stage>``: build -> probe -> train -> export.

    Not its own: the dataset ``<task>.data``, ``params:seed`` and ``params:resume``. Its own: ``<task>.<stage>.task``,
    ``params:<task>.<stage>.training``, ``params:<task>.<stage>.algorithm`` and everything it writes, ``model`` at the end.
    """
    sections = {
        "algorithm": f"{task}.{stage}.algorithm",
        "training": f"{task}.{stage}.training",
        "task": task,
    }
    return Pipeline(
        _start(parts) + _training_of_stage(sections) + _export(),
        namespace=f"{task}.{stage}",
        inputs={"data": f"{task}.data"},
        parameters={"params:seed": "params:seed", "params:resume": "params:resume"},
        tags=[task, stage],
    )


def picture_loop() -> ImagePreview:
    """Return the picture of the loop that Kedro-Viz shows beside its node."""
    drawing = base64.b64encode(files(__package__).joinpath("loop.svg").read_bytes()).decode()
    return ImagePreview(f"data:image/svg+xml;base64,{drawing}")


# What a training needs, in the order of ``nodes.train``.
NEEDED = ["task", "data", "initial_state", "resume_from", "probe_step_metrics"]


def _training_of_arm(sections: Mapping[str, str]) -> Pipeline:
    """Wire the training of an arm; ``sections`` are the names that errors about a checkpoint use."""
    of_sections = partial(at_once.make_ready, sections=sections)

    @wraps(at_once.make_ready)  # a function, so that Kedro-Viz shows its code
    def make_ready(*given: Any) -> at_once.Training:
        return of_sections(*given)

    return Pipeline(
        [
            Node(
                make_ready,
                [ALGORITHM, TRAINING, "params:resume", "params:executor", *NEEDED],
                "ready",
                name="make_ready",
            ),
            Node(
                at_once.train,
                "ready",
                ["metric_rows", "checkpoint"],
                name="train",
                preview_fn=picture_loop,
            ),
        ]
    )


def _training_of_stage(sections: Mapping[str, str]) -> Pipeline:
    """Wire the training of a stage, which nothing else is trained beside."""
    of_sections = partial(nodes.train, sections=sections)

    @wraps(nodes.train)
    def train(*given: Any) -> Iterator[Any]:
        yield from of_sections(*given)

    return Pipeline(
        [
            Node(
                train,
                [ALGORITHM, TRAINING, "params:resume", *NEEDED],
                ["metric_rows", "checkpoint"],
                name="train",
                preview_fn=picture_loop,
            )
        ]
    )


def _start(parts: Parts) -> Pipeline:
    """Wire task and data -> the start of a training, and its first step, which is made once before it."""
    begin = [
        Node(
            start.build_state,
            [ALGORITHM, TRAINING, "params:seed", "task", "data"],
            "initial_state",
            name="build_state",
            namespace="start",
        ),
        # Built a second time: the probe updates its weights, training must start from the untouched ones.
        Node(
            start.build_probe_state,
            [ALGORITHM, TRAINING, "params:seed", "task", "data"],
            "probe_state",
            name="copy_state",
            namespace="start",
        ),
        Node(
            start.pick_probe_batch,
            [ALGORITHM, TRAINING, "params:seed", "task", "data"],
            "probe_batch",
            name="take_first_batch",
        ),
        Node(
            start.tabulate_probe,
            ["task", "data", "probe_batch", "probe_rollouts", "probe_rewards", "probe_advantages"],
            "probe_table",
            name="tabulate_first_step",
            namespace="probe.advantage",
        ),
    ]
    probe = Pipeline(
        recipe.whole(parts),
        namespace="probe",
        inputs={"task": "task", "state": "probe_state", "batch": "probe_batch"},
        outputs={
            name: f"probe_{name}" for name in ("rollouts", "rewards", "advantages", "step_metrics")
        },
        parameters={ALGORITHM: ALGORITHM, TRAINING: TRAINING},
    )
    return Pipeline(begin) + probe


def _export() -> Pipeline:
    """Wire the checkpoint of a training -> the model."""
    return Pipeline(
        [
            Node(
                export.calibrate,
                ["params:seed", "task", "data", "checkpoint"],
                "calibration",
                name="calibrate",
                namespace="export",
            ),
            Node(
                export.export_model,
                ["task", "checkpoint", "calibration", "data"],
                "model",
                name="export_model",
                namespace="export",
            ),
        ]
    )
