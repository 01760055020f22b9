"""Facts that the engine of trials must know of the dialogue task: its data without their tokens."""

from dataclasses import replace

from grpo_pipeline.pipelines.experiments.trials.kit import TaskKit
from grpo_pipeline.tasks.dialogue.batch import DialogueData
from grpo_pipeline.tasks.dialogue.language_model.tokens import stack_rows


def adapt_kit(kit: TaskKit) -> TaskKit:
    """Return the kit whose digests need no tokens."""
    nothing = stack_rows([])
    return replace(kit, without_features=lambda examples: DialogueData(examples, nothing, nothing))
