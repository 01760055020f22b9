"""Nodes of the dialogue task that run before its arms: the task object, the tokens, and the initial policy of all arms."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kedro.pipeline import Node, Pipeline
from pydantic import BaseModel, ConfigDict

from grpo_pipeline.core.agreement import digest_of
from grpo_pipeline.core.params import AlgorithmParams, TrainingParams
from grpo_pipeline.core.storage.weights import ModelWeights
from grpo_pipeline.pipelines.experiments.trials.kit import TaskKit, resplit_table, train_weights
from grpo_pipeline.tasks.dialogue import build
from grpo_pipeline.tasks.dialogue.batch import DialogueData
from grpo_pipeline.tasks.dialogue.data.examples import DialogueExamples, content_digest
from grpo_pipeline.tasks.dialogue.language_model.params import ReaderSection, ReplyParams
from grpo_pipeline.tasks.dialogue.language_model.tokens import stack_rows
from grpo_pipeline.tasks.dialogue.params import PromptParams, SupervisedParams
from grpo_pipeline.tasks.dialogue.rewards import RewardParams
from grpo_pipeline.tasks.dialogue.task import DialogueTask

SECTIONS = ("reader", "prompt", "replies", "rewards", "supervised_loss", "training")
STAGE = "warm_start"


def build_task(
    reader: ReaderSection,
    prompt: PromptParams,
    replies: ReplyParams,
    rewards: RewardParams,
    supervised_loss: SupervisedParams,
    training: TrainingParams,
) -> DialogueTask:
    """Put the task together, with fresh weights or those of the reader's folder; refuses what does not go together."""
    return build.build_task(reader.params, prompt, replies, rewards, supervised_loss, execution=training)


def check_arms(
    warm_start: AlgorithmParams,
    supervised: AlgorithmParams,
    reinforce: AlgorithmParams,
    grpo: AlgorithmParams,
    task: DialogueTask,
    examples: DialogueExamples,
) -> DialogueTask:
    """Hand the task on once every arm asks for what it has and the user's rewards answer: before the first stage is trained."""
    build.check_arms(task, (warm_start, supervised, reinforce, grpo))
    build.try_own_rewards(task, examples)
    return task


def tokenise_examples(task: DialogueTask, examples: DialogueExamples) -> tuple[DialogueData, dict[str, Any]]:
    """Turn the examples into tokens once; report what was cut."""
    return build.tokenise(task, examples)


def start_arms(task: DialogueTask, model: ModelWeights) -> DialogueTask:
    """Return the task whose policies begin with the warm start's weights."""
    return build.start_from(task, model)


def create_pipeline() -> Pipeline:
    """Wire ``dialogue.examples`` -> ``dialogue.task`` and ``dialogue.data``; ``warm_start`` is trained between them."""
    algorithms = [f"params:dialogue.{arm}.algorithm" for arm in (STAGE, "supervised", "reinforce", "grpo")]
    return Pipeline(
        [
            Node(build_task, [f"params:dialogue.{name}" for name in SECTIONS], "dialogue.untrained_task", name="build_task"),
            Node(
                check_arms,
                [*algorithms, "dialogue.untrained_task", "dialogue.examples"],
                f"dialogue.{STAGE}.task",
                name="check_arms",
            ),
            Node(
                tokenise_examples,
                ["dialogue.untrained_task", "dialogue.examples"],
                ["dialogue.data", "dialogue.token_report"],
                name="tokenise_examples",
            ),
            Node(
                start_arms,
                [f"dialogue.{STAGE}.task", f"dialogue.{STAGE}.model"],
                "dialogue.task",
                name="start_arms",
                # It stands between two stages: without it Kedro warns that they are torn apart.
                namespace="dialogue",
            ),
        ],
        tags="dialogue",
    )


# The dialogue task as the engine sees it: a seed's warm start is trained once, and every cell of the seed begins with it.

UNTRAINED = "dialogue.untrained_task"


class WarmStartParams(BaseModel):
    """The stage before the arms (``dialogue.warm_start``): its algorithm and its loop."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    algorithm: AlgorithmParams
    training: TrainingParams


@dataclass(frozen=True)
class Start:
    """A warm start that was trained.

    Attributes:
        key: of everything that decides its weights; "" before there is one.
        model: the weights.
    """

    key: str = ""
    model: ModelWeights = field(default=ModelWeights({}, {}), repr=False)


def check_arm(algorithm: AlgorithmParams, warm_start: WarmStartParams, task: DialogueTask) -> DialogueTask:
    """Hand the task on once the arm asks for what it has: before the warm start is trained, not after it."""
    build.check_arms(task, (warm_start.algorithm, algorithm))
    return task


def warm_up(warm_start: WarmStartParams, seed: int, task: DialogueTask, data: DialogueData, known: Start) -> Start:
    """Train the stage before the arms with the cell's seed, unless the cell before it began with the same start."""
    key = start_key(warm_start, seed, task, data)
    if known.key == key:
        return known
    return Start(key, train_weights(warm_start.algorithm, warm_start.training, task, data, seed=seed)[0])


def start_key(warm_start: WarmStartParams, seed: int, task: DialogueTask, data: DialogueData) -> str:
    """Return the digest of what decides a start; where no replies are drawn, their rewards and distribution do not."""
    facts = task.fingerprint(data, draws=warm_start.algorithm.proposal != "none") | {"device": str(task.device)}
    return digest_of({"stage": warm_start.model_dump(mode="json"), "seed": seed, "task": facts})


def begin_with(task: DialogueTask, start: Start) -> DialogueTask:
    """Return the task whose policies begin with the start's weights."""
    return start_arms(task, start.model)


def resplit_examples(examples: DialogueExamples, split: Mapping[str, str]) -> DialogueExamples:
    """Return the examples with another split; one that the mapping does not name is in none."""
    table = resplit_table(examples.table, split, key="example_id", noun="example")
    return replace(examples, table=table, digest=content_digest(table, examples.stories))


def prepare_cell() -> Pipeline:
    """Wire ``dialogue.examples`` -> ``dialogue.task`` and ``dialogue.data`` of a cell; its parameters are the arm's sections."""
    checked, stage = "dialogue.checked_task", f"params:dialogue.{STAGE}"
    return Pipeline(
        [
            Node(build_task, [f"params:dialogue.{name}" for name in SECTIONS], UNTRAINED, name="build_task"),
            Node(check_arm, ["params:dialogue.algorithm", stage, UNTRAINED], checked, name="check_arm"),
            Node(
                tokenise_examples,
                [checked, "dialogue.examples"],
                ["dialogue.data", "dialogue.token_report"],
                name="tokenise_examples",
            ),
            Node(
                warm_up,
                [stage, "params:seed", checked, "dialogue.data", "dialogue.known_start"],
                "dialogue.start",
                name="warm_up",
            ),
            Node(begin_with, [checked, "dialogue.start"], "dialogue.task", name="begin_with"),
        ]
    )


def dialogue_kit() -> TaskKit:
    """Return the kit of the dialogue task."""
    nothing = stack_rows([])
    return TaskKit(
        task="dialogue",
        prepare=prepare_cell(),
        resplit=resplit_examples,
        without_features=lambda examples: DialogueData(examples, nothing, nothing),
        untrained=UNTRAINED,
        reward_section="rewards",
        memory={"dialogue.known_start": Start()},
        carry={"dialogue.known_start": "dialogue.start"},
    )
