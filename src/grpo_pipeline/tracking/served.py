"""Write models that MLflow can load and serve: a folder with weights, code, signature and requirements, no pickle."""

import io
import logging
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from grpo_pipeline.core.storage.tensor_folder import read_header
from grpo_pipeline.core.storage.weights import HEADER
from grpo_pipeline.tasks.serving import Column, Serving, serving_of

PACKAGE = Path(__file__).resolve().parents[1]
CODE = Path(__file__).with_name("pyfunc.py")
"""The file that MLflow executes to load a model."""


def described(model: Path) -> dict[str, Any]:
    """Read the description in a model's folder; empty without a model."""
    return dict(read_header(model / HEADER).get("config", {})) if (model / HEADER).is_file() else {}


@dataclass(frozen=True)
class KeptModel:
    """A model of an arm, as its folder describes it.

    Attributes:
        task: name of the task.
        arm: name of the arm.
        kind: ``model`` (the last weights, or what ``training.keep`` chose) or ``best``.
        path: folder of the weights.
        step: steps of training after which they were kept.
        metric: of the validation split, by which it can be chosen; empty where it is undefined.
        value: of this metric.
    """

    task: str
    arm: str
    kind: str
    path: Path
    step: int
    metric: str = ""
    value: float = 0.0

    @property
    def name(self) -> str:
        """Name of the logged model, which MLflow wants without a dot: ``<task>-<arm>-best``."""
        return "-".join([self.task, self.arm, *([self.kind] if self.kind != "model" else [])])

    @property
    def text(self) -> str:
        """Describe the weights: ``grpo after 60 steps, auroc 0.850 on the validation split``."""
        score = f", {self.metric} {self.value:.3f} on the validation split" if self.metric else ""
        return f"{self.arm} after {self.step} steps{score}"

    @classmethod
    def of(
        cls, task: str, arm: str, kind: str, *, path: Path, described: Mapping[str, Any]
    ) -> "KeptModel":
        """Read the step and the validation from the description in a model's folder."""
        score = described.get("validation", {})
        step = int(described.get("training", {}).get("step", 0))
        return cls(task, arm, kind, path, step, score.get("metric", ""), score.get("value", 0.0))


def registered_name(experiment: str, task: str) -> str:
    """Build the name under which a task's models are registered, ``grpo_pipeline.<task>``."""
    return re.sub(r"[/:]", "_", f"{experiment}.{task}")


def can_be_served(model: Path) -> bool:
    """Check whether a model's folder suffices to use it alone, and its task answers requests."""
    config = described(model)
    serving = serving_of(str(config.get("task")))
    return serving is not None and serving.needs <= config.keys()


def save_served(model: Path, target: Path, *, model_id: str | None = None) -> None:
    """Write a model as a folder for ``mlflow.pyfunc.load_model`` and ``mlflow models serve``.

    Requirements are given with their versions, so that MLflow neither imports the model to guess them nor asks an index.

    Args:
        model: folder of the weights, as ``<task>.<arm>.model`` writes it.
        target: folder to write; must not exist.
        model_id: of the logged model that it becomes, of one that is logged.

    Raises:
        ValueError: if the model's task answers no requests, or the model cannot be used alone.
    """
    config = described(model)
    serving = serving_of(str(config.get("task")))
    if config and serving is None:
        raise ValueError(
            f"{model} must be a model of a task that answers requests, got one of {config.get('task')}; "
            "use it in Python with grpo_pipeline.tasks.exported.load_exported"
        )
    if serving is None or not serving.needs <= config.keys():
        raise ValueError(
            f"{model} must be a model with {', '.join(sorted(serving.needs if serving else ()))}, got one that cannot be used "
            "alone; train again"
        )
    import mlflow.pyfunc
    from mlflow.models import Model

    with quiet_mlflow(), TemporaryDirectory(prefix="grpo-code-") as folder:
        code = Path(folder) / "grpo_pipeline.zip"
        code.write_bytes(packed_code())
        mlflow.pyfunc.save_model(
            str(target),
            python_model=str(CODE),
            artifacts={"model": str(model)},
            code_paths=[str(code)],
            mlflow_model=Model(model_id=model_id),
            signature=signature(serving, config),
            input_example=serving.example().rename(columns=dict(serving.names(config))),
            pip_requirements=requirements(serving.requirements),
            metadata={
                "task": config["task"],
                "calibration": config.get("calibration", {}).get("method", "none"),
                "optional_requirements": [*serving.optional],
            },
        )


def example_row(model: Path) -> dict[str, Any]:
    """Make a row of a request with the columns that it must have; a text stands for a path or a question of the user's."""
    config = described(model)
    serving = serving_of(str(config["task"]))
    assert serving is not None
    names = serving.names(config)
    needed = [column for column in serving.inputs(config) if column.is_required]
    made = {"string": "…", "boolean": True}
    return {names.get(one.name, one.name): made.get(one.type, 5) for one in needed}


@cache
def packed_code() -> bytes:
    """Pack this package into an archive that Python can import; the same sources give the same bytes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(PACKAGE.rglob("*.py")):
            name = str(path.relative_to(PACKAGE.parent))
            archive.writestr(zipfile.ZipInfo(name), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def requirements(names: Sequence[str]) -> list[str]:
    """List the requirements of the model in their installed versions, without a build such as +cpu, which no index has."""
    return [f"{name}=={version(name).partition('+')[0]}" for name in names]


def signature(serving: Serving, config: Mapping[str, Any]) -> Any:
    """Build the columns of a request and of its answer, and the parameters with their defaults."""
    from mlflow.models.signature import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import Array

    def spec(column: Column) -> Any:
        kind: Any = column.type.removesuffix("[]" * column.type.count("[]"))
        for _ in range(column.type.count("[]")):
            kind = Array(kind)
        return ColSpec(kind, column.name, required=column.is_required)

    kinds = {bool: "boolean", int: "long"}
    return ModelSignature(
        inputs=Schema([spec(column) for column in serving.asked(config)]),
        outputs=Schema([spec(column) for column in serving.outputs(config)]),
        params=ParamSchema(
            [
                ParamSpec(name, kinds[type(default)], default)
                for name, default in serving.options.items()
            ]
        ),
    )


@contextmanager
def quiet_mlflow() -> Iterator[None]:
    """Silence MLflow's remarks about type hints that the code does not need; errors are still raised."""
    logger = logging.getLogger("mlflow")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
