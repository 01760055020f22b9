"""Old names of modules that people hold (in a catalogue, a reward's path, a loop of their own): the error says the new one."""

from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PACKAGE = "grpo_pipeline."
# Below the package: where names are now -> the modules that held them.
PLACES = {
    "core.backprop": "core.responses",
    "core.backprop.terms": "core.accumulator core.decision_terms",
    "core.diagnostics.statistics": "core.gradient_flow",
    "core.policy_gradient.advantages": "core.advantages",
    "core.policy_gradient.algorithms": "core.algorithms",
    "core.policy_gradient.denominators": "core.denominators",
    "core.policy_gradient.entropy": "core.entropy",
    "core.policy_gradient.kl": "core.kl",
    "core.policy_gradient.losses": "core.losses core.reductions core.surrogates core.units",
    "core.policy_gradient.returns": "core.returns",
    "core.sampling.dynamic": "core.dynamic",
    "core.sampling.linear_logprobs": "core.chunked",
    "core.sampling.stopping": "core.stopping",
    "core.sampling.truncation": "core.truncation",
    "core.storage.checkpoint": "core.checkpoint",
    "core.storage.files": "core.atomic core.tensorfiles",
    "core.storage.weights": "core.weights",
    "core.training.execution": "core.execution core.precision",
    "core.training.micro_batches": "core.micro_batches core.recomputed",
    "core.training.optim": "core.optim core.reference",
    "core.training.replay": "core.replay",
    "core.types": "core.groups",
    "datasets.checkpoint": "datasets.trained_arms",
    "datasets.examples": "datasets.dialogue_examples datasets.molecule_examples",
    "datasets.figure": "datasets.figure_folder",
    "datasets.trials": "datasets.cells",
    "pipelines.data.attention.features": "datasets.features",
    "pipelines.data.attention.image_folder": "datasets.heatmaps datasets.image_folder pipelines.data.attention.heatmaps",
    "pipelines.data.dialogue.datasets": "datasets.dialogue_folder datasets.story_index",
    "pipelines.evaluation.nodes": "pipelines.inference",
    "pipelines.experiments.trials.records": "pipelines.experiments.trials.cells",
    "pipelines.experiments.trials.setup": "pipelines.experiments.trials.kit",
    "pipelines.experiments.trials.setups": "pipelines.experiments.trials.kits",
    "rewards.functions": "tasks.reward_measure",
    "statistics.metric": "tasks.metric",
    "tasks.attention.evaluation.metrics": "tasks.attention.metrics",
    "tasks.attention.model.encoder.encoder_tuning": "tasks.attention.model.encoder_tuning",
    "tasks.base": "tasks.protocol",
    "tasks.defaults": "tasks.audit_plan",
    "tasks.dialogue.scores": "tasks.dialogue.bleu tasks.dialogue.f1 tasks.dialogue.rouge",
    "tasks.molecules.graphs.properties": "tasks.molecules.reward_functions",
    "tasks.params": "tasks.attention.data.folds",
}
MOVED = {old: new for new, olds in PLACES.items() for old in olds.split()}
# Classes that left a module which is still there: those that a catalogue names.
CLASSES = {
    "datasets.json_lines.DialogueExamplesDataset": "datasets.examples.ExamplesDataset",
    "datasets.json_lines.MoleculeExamplesDataset": "datasets.examples.ExamplesDataset",
    "datasets.raw_file.DialogueFolderDataset": "pipelines.data.dialogue.datasets.DialogueFolderDataset",
    "pipelines.reward_audit.warnings.RewardAuditParams": "pipelines.params.RewardAuditParams",
}

# Below a task: the old name of a parameter -> the new one.
RENAMED = {
    "reader": "language_model",
    "predict.sets": "predict.n_samples",
    "reward_audit.sets": "reward_audit.n_samples",
}


class MovedNames(MetaPathFinder):
    """The last of Python's finders: asked for what no other one knows."""

    def find_spec(
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find nothing.

        Raises:
            ModuleNotFoundError: for an old name; its sentence says the new one.
        """
        if fullname.startswith(PACKAGE) and (new := MOVED.get(fullname.removeprefix(PACKAGE))):
            # Without the attribute ``name``: with it Kedro takes a dataset's module for a misspelt one, and hides the sentence.
            raise ModuleNotFoundError(
                f"the module {fullname} must be named by its new place, got its old one; write {PACKAGE}{new}"
            )
        return None


def moved_names(module: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module that classes have left."""

    def refuse(name: str) -> Any:
        """Refuse a name that is not there.

        Raises:
            ModuleNotFoundError: for a class that has moved; its sentence says the new name, and Kedro shows it.
            AttributeError: for any other name.
        """
        if new := CLASSES.get(f"{module.removeprefix(PACKAGE)}.{name}"):
            raise ModuleNotFoundError(
                f"the class {module}.{name} must be named by its new place, got its old one; write {PACKAGE}{new}"
            )
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return refuse
