"""Keep the weights of the best validation beside the last ones: later steps can make a policy worse."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.storage.checkpoint import Checkpoint, NoCheckpoint
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.tasks.base import Task

# Before the metric, in a validation row whose weights are the best so far: which model they become, by ``training.keep``.
KEPT = {"both": "best/", "best": "model/"}


class BestSoFar:
    """The best validated weights of one arm's training.

    The first of equal ones counts. Which weights are best depends on the validation split alone.

    Attributes:
        weights: tensors of the policy by name, on the CPU; empty before the first validation, and with ``keep: last``.
        scores: ``validated`` and ``best``, each with metric, value and step, as a checkpoint's progress holds them.
    """

    def __init__(
        self, task: Task, training: TrainingParams, before: Checkpoint | NoCheckpoint
    ) -> None:
        """Begin; with a checkpoint of a run that goes on, with what was best in it."""
        self._metric, self._keep = task.validated_by, training.keep
        self.weights: Mapping[str, Tensor] = {}
        self.scores: dict[str, Any] = {"keep": "best"} if training.keep == "best" else {}
        if isinstance(before, Checkpoint):
            found = {name: before.progress.get(name) for name in ("validated", "best")}
            self.scores |= {name: score for name, score in found.items() if score is not None}
            self.weights = before.best or (before.policy if "best" in self.scores else {})

    def take(self, state: TrainState, rows: Sequence[dict[str, Any]]) -> None:
        """Look at a step's rows; where they hold the best validation so far, copy the weights and note it in the row."""
        for row in rows:
            if row["split"] == "val":
                self._judge(state, row)

    def stored(self, state: TrainState) -> Mapping[str, Tensor]:
        """Return the weights that a checkpoint of this state holds beside the policy's; none where they are the policy's."""
        return self.weights if self.scores.get("best", {}).get("step") != state.step else {}

    def _judge(self, state: TrainState, row: dict[str, Any]) -> None:
        value = float(row.get(self._metric, math.nan))
        if not math.isfinite(value):
            return
        score = {"metric": self._metric, "value": value, "step": state.step}
        self.scores["validated"] = score
        if self._keep != "last" and value > self.scores.get("best", {"value": -math.inf})["value"]:
            self.scores["best"] = score
            policy = state.policy.state_dict()
            self.weights = {name: t.detach().to("cpu", copy=True) for name, t in policy.items()}
            row[KEPT[self._keep] + self._metric] = value
