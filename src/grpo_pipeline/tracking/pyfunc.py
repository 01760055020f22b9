"""Define the model that MLflow loads: this file is the model's code, and its weights are safetensors beside it.

MLflow copies the file into the model's folder and executes it to load the model ("models from code"), without pickles. The
package lies there as a single archive, not as hundreds of files that a server would read one by one.
"""

import os
import sys
from pathlib import Path
from typing import Any

PACKED = Path(__file__).with_name("code") / "grpo_pipeline.zip"
if PACKED.is_file() and "grpo_pipeline" not in sys.modules:
    sys.path.insert(0, str(PACKED))

import pandas as pd  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402
from mlflow.models import set_model  # noqa: E402
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE  # noqa: E402
from mlflow.pyfunc.model import PythonModel  # noqa: E402

from grpo_pipeline.core.storage.tensor_folder import read_header  # noqa: E402
from grpo_pipeline.core.storage.weights import HEADER  # noqa: E402
from grpo_pipeline.tasks.serving import Serving, serving_of  # noqa: E402


class ServedModel(PythonModel):
    """Answers tables as its task does (``tasks.exported.Serving``)."""

    _serving: Serving
    _config: dict[str, Any]
    _model: Any

    def load_context(self, context: Any) -> None:
        """Build the model from its folder; a server's log needs no progress of single requests."""
        os.environ.setdefault("GRPO_PROGRESS", "off")
        folder = Path(context.artifacts["model"])
        config = read_header(folder / HEADER).get("config", {})
        serving = serving_of(str(config.get("task")))
        if serving is None:
            raise ValueError(
                f"the task of a served model must answer requests, got {config.get('task')}; export it anew"
            )
        self._serving, self._config, self._model = serving, config, serving.load(folder)

    def predict(
        self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Answer every row, or none of them after an error."""
        given = params or {}
        options = {
            name: type(default)(given.get(name, default))
            for name, default in self._serving.options.items()
        }
        try:
            return self._serving.answer(
                self._model, self._serving.request(model_input, self._config), **options
            )
        except ValueError as error:
            # A server answers this with status 400 and the sentence; any other error with 500 and a traceback.
            raise MlflowException(str(error), error_code=INVALID_PARAMETER_VALUE) from error


set_model(ServedModel())
