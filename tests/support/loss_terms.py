"""The terms of an arm's loss for an experience, from the nodes of its step."""

from typing import Any

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Scores
from grpo_pipeline.pipelines.step import recipe
from grpo_pipeline.pipelines.step.arm_parts import Parts
from grpo_pipeline.pipelines.step.experience import Experience, LossTerms
from grpo_pipeline.pipelines.step.wire import ALGORITHM, TRAINING, fold


def mixed_losses(
    algorithm: AlgorithmParams, training: TrainingParams, task: Any, state: TrainState, experience: Experience, epoch: int
) -> tuple[LossTerms, Scores | None]:
    """Run the learn half of a step up to the sum of its terms; returns them, and the scores of an arm that learns."""
    nodes = [node for node in recipe.learn(Parts.of(algorithm)).nodes if "report" not in node.outputs]
    given = {ALGORITHM: algorithm, TRAINING: training, "task": task, "state": state, "experience": experience}
    found = fold(nodes, given | {"update_epoch": epoch})
    return found["losses"], found.get("scores")
