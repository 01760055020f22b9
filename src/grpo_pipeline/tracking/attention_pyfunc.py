"""The attention model as MLflow loads it: this file is the model's code, and its weights are safetensors beside it.

MLflow copies the file into the model's folder and executes it to load the model ("models from code"): nothing is pickled.
"""

import os
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.pyfunc.model import PythonModel

from grpo_pipeline.core.storage.weights import load_weights
from grpo_pipeline.tasks.attention.inference.predictor import Predictor, build_predictor
from grpo_pipeline.tasks.attention.inference.request import answer

ROOT_VARIABLE = "GRPO_IMAGE_ROOT"


class AttentionPyfunc(PythonModel):
    """Answers tables of images; paths must lie below the folder ``GRPO_IMAGE_ROOT``, else below the current one."""

    _predictor: Predictor

    def load_context(self, context: Any) -> None:
        """Build the model from its folder; a server's log needs no progress of single requests."""
        os.environ.setdefault("GRPO_PROGRESS", "off")
        self._predictor = build_predictor(load_weights(Path(context.artifacts["model"])), name="in MLflow")

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Score every row; see ``tasks.attention.inference.request.answer``."""
        given = params or {}
        root = Path(os.environ.get(ROOT_VARIABLE) or ".")
        try:
            return answer(
                self._predictor,
                model_input,
                root=root,
                seed=int(given.get("seed", 0)),
                n_samples=int(given.get("sets", 8)),
                with_heatmap=bool(given.get("heatmap", False)),
                abstain=bool(given.get("abstain", False)),
            )
        except ValueError as error:
            # A server answers this with status 400 and the sentence; any other error with 500 and a traceback.
            raise MlflowException(str(error), error_code=INVALID_PARAMETER_VALUE) from error


set_model(AttentionPyfunc())
