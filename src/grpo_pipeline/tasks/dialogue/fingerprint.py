"""List the settings on which a checkpoint of the dialogue task and the run that resumes it must agree."""

from typing import TYPE_CHECKING, Any

from grpo_pipeline.core.agreement import decisive
from grpo_pipeline.core.storage.weights import digest_of_tensors
from grpo_pipeline.tasks.dialogue.dialogue_data import DialogueData
from grpo_pipeline.tasks.dialogue.folder_digest import digest_of_folder
from grpo_pipeline.tasks.dialogue.language_model.params import FolderParams, LanguageModelParams

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
        "reward": decisive(task.rewards),
        "reward_pool": {"failure": task.pool.failure},
        "reward_functions": {
            name: measure.digest for name, measure in task.rewards.measures.items()
        },
    }


def _describe_language_model(params: LanguageModelParams) -> dict[str, Any]:
    """Describe the language model by its parameters, and a folder by its content."""
    network = decisive(params.network, without=["path"])
    if isinstance(params.network, FolderParams):
        network["content"] = digest_of_folder(params.network.path)
    return decisive(params, without=["network"]) | {"network": network}
