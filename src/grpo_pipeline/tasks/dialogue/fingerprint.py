"""What a checkpoint of the dialogue task must agree on to be gone on with."""

from typing import TYPE_CHECKING, Any

from grpo_pipeline.tasks.dialogue.dialogue_data import DialogueData
from grpo_pipeline.tasks.dialogue.folder_digest import digest_of_folder
from grpo_pipeline.tasks.dialogue.reader_params import FolderReaderParams, NewReaderParams
from grpo_pipeline.tasks.weights_digest import digest_of_weights

if TYPE_CHECKING:
    from grpo_pipeline.tasks.dialogue.task import DialogueTask


def fingerprint(task: "DialogueTask", data: DialogueData) -> dict[str, Any]:
    """Return model, objective, start and data, as JSON-able values.

    Left out: where a folder lies, how rewards are measured (``pool``), and how many tokens are scored at a time.
    """
    return {
        "reader": _reader(task.reader),
        "prompt": task.prompt.model_dump(mode="json"),
        "replies": task.replies.model_dump(mode="json", exclude={"tokens_per_batch"}),
        "rewards": task.rewards.model_dump(mode="json", exclude={"pool"}),
        "reward_functions": {name: measure.digest for name, measure in task.rewards.measures.items()},
        "supervised_loss": task.supervised.model_dump(mode="json"),
        "examples": data.examples.digest,
        "start": None if task.start is None else digest_of_weights(task.start),
    }


def _reader(params: NewReaderParams | FolderReaderParams) -> dict[str, Any]:
    dumped = params.model_dump(mode="json", exclude={"path"})
    return dumped | ({"content": digest_of_folder(params.path)} if isinstance(params, FolderReaderParams) else {})
