"""List the settings on which a checkpoint of the dialogue task and the run that resumes it must agree."""

from typing import TYPE_CHECKING, Any

from grpo_pipeline.core.agreement import decisive
from grpo_pipeline.core.storage.weights import digest_of_tensors
from grpo_pipeline.tasks.dialogue.dialogue_data import DialogueData
from grpo_pipeline.tasks.dialogue.folder_digest import digest_of_folder
from grpo_pipeline.tasks.dialogue.language_model.params import (
    FolderModelParams,
    NewModelParams,
)

if TYPE_CHECKING:
    from grpo_pipeline.tasks.dialogue.task import DialogueTask


def fingerprint(task: "DialogueTask", data: DialogueData, *, draws: bool = True) -> dict[str, Any]:
    """Describe model, objective, initial weights and data as JSON-able values.

    Left out: where a folder lies, and what only says how it is executed. Where no replies are drawn, neither their rewards nor
    their distribution decide anything: of ``replies`` only the length stays, to which reference replies are cut.
    """
    shared = {
        "language_model": _describe_language_model(task.language_model),
        "prompt": decisive(task.prompt),
        "supervised_loss": decisive(task.supervised),
        "examples": data.examples.digest,
        "start": None if task.start is None else digest_of_tensors(task.start.tensors),
    }
    if not draws:
        return shared | {"replies": {"max_tokens": task.replies.max_tokens}}
    return shared | {
        "replies": decisive(task.replies),
        "rewards": decisive(task.rewards),
        "reward_functions": {
            name: measure.digest for name, measure in task.rewards.measures.items()
        },
    }


def _describe_language_model(params: NewModelParams | FolderModelParams) -> dict[str, Any]:
    """Describe the language model by its parameters: source, lora, and the section that the source chooses."""
    chosen = decisive(params, without=["source", "lora", "path"])
    if isinstance(params, FolderModelParams):
        chosen["content"] = digest_of_folder(params.path)
    lora = None if params.lora is None else decisive(params.lora)
    return {"source": params.source, "lora": lora, params.source: chosen}
