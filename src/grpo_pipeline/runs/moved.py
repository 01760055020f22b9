"""Old names of modules that people hold (in a catalogue, a reward's path, a loop of their own): the error says the new one."""

from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PACKAGE = "grpo_pipeline."
# Below the package: where a module was -> where its names are.
MOVED = {
    "core.accumulator": "core.backprop.terms",
    "core.advantages": "core.policy_gradient.advantages",
    "core.algorithms": "core.policy_gradient.algorithms",
    "core.atomic": "core.storage.files",
    "core.bandit": "core.diagnostics.bandit",
    "core.checkpoint": "core.storage.checkpoint",
    "core.chunked": "core.sampling.linear_logprobs",
    "core.decision_terms": "core.backprop.terms",
    "core.denominators": "core.policy_gradient.denominators",
    "core.dynamic": "core.sampling.dynamic",
    "core.entropy": "core.policy_gradient.entropy",
    "core.execution": "core.training.execution",
    "core.gradient_flow": "core.diagnostics.statistics",
    "core.groups": "core.types",
    "core.kl": "core.policy_gradient.kl",
    "core.losses": "core.policy_gradient.losses",
    "core.micro_batches": "core.training.micro_batches",
    "core.optim": "core.training.optim",
    "core.precision": "core.training.execution",
    "core.recomputed": "core.training.micro_batches",
    "core.reductions": "core.policy_gradient.losses",
    "core.reference": "core.training.optim",
    "core.replay": "core.training.replay",
    "core.responses": "core.backprop",
    "core.returns": "core.policy_gradient.returns",
    "core.stopping": "core.sampling.stopping",
    "core.surrogates": "core.policy_gradient.losses",
    "core.tensorfiles": "core.storage.files",
    "core.truncation": "core.sampling.truncation",
    "core.units": "core.policy_gradient.losses",
    "core.weights": "core.storage.weights",
    "datasets.dialogue_examples": "datasets.json_lines",
    "datasets.dialogue_folder": "datasets.raw_file",
    "datasets.figure_folder": "datasets.figure",
    "datasets.molecule_examples": "datasets.json_lines",
    "datasets.trained_arms": "datasets.checkpoint",
    "tasks.audit_plan": "tasks.defaults",
    "tasks.dialogue.bleu": "tasks.dialogue.scores",
    "tasks.dialogue.f1": "tasks.dialogue.scores",
    "tasks.dialogue.rouge": "tasks.dialogue.scores",
    "tasks.metric": "statistics.metric",
    "tasks.molecules.reward_functions": "tasks.molecules.graphs.properties",
    "tasks.protocol": "tasks.base",
    "tasks.reward_measure": "rewards.functions",
}


class MovedNames(MetaPathFinder):
    """The last of Python's finders: asked for what no other one knows."""

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
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
