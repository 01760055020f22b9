"""A grid on the tiny dialogue task: what a trial is equal to, how often the warm start is trained, what is refused."""

from typing import Any

import pandas as pd
import pytest
import yaml
from tiny import SERIAL
from tiny_attention import CONF
from tiny_dialogue import data_params
from tiny_grid import Memory, run_in_memory
from tiny_talk import make_examples, section

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.storage.checkpoint import NoCheckpoint
from grpo_pipeline.pipelines.experiments.compare import nodes
from grpo_pipeline.pipelines.experiments.trials import stage_training
from grpo_pipeline.pipelines.experiments.trials.digest import trial_digest
from grpo_pipeline.pipelines.experiments.trials.records import Trial
from grpo_pipeline.pipelines.experiments.trials.task_lookup import find_preparation
from grpo_pipeline.pipelines.experiments.trials.trial_params import CompareParams
from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.pipelines.step.arm_parts import Parts
from grpo_pipeline.pipelines.training.pipeline import create_pipeline as create_arm
from grpo_pipeline.pipelines.training.stages import create_preparation, create_stages
from grpo_pipeline.tasks import find_task
from grpo_pipeline.tasks.dialogue.pipelines.pipeline import SECTIONS

BASE = {name: yaml.safe_load((CONF / f"base/dialogue/parameters_{name}.yml").read_text()) for name in ("compare", "evaluation")}
EVALUATION = EvaluationParams.model_validate(BASE["evaluation"]["dialogue"]["evaluation"] | {"seed": 0, "resamples": 30})
ARMS = {
    "supervised": {"base": "supervised"},
    "grpo": {"base": "grpo"},
    "weighted": {"base": "grpo", "set": {"reward": {"bleu": {"weight": 2.0}, "f1": None, "rouge_l": None}}},
    "short": {"base": "grpo", "set": {"warm_start": {"training": {"epochs": 2}}}},
}


def parameters() -> dict[str, Any]:
    """The task's parameters as Kedro would read them, for a language model of 8 numbers and a warm start of four steps."""
    short = {
        "language_model": {"network": {"width": 8}}, "replies": {"max_tokens": 6}, "reward_pool": {"workers": 0},
        "warm_start": {"training": {"epochs": 4, "validate_every_epochs": 4}},
    }  # fmt: skip
    names = ({*SECTIONS} | {"warm_start", "supervised", "reinforce", "grpo"}) - {"data"}
    return {name: section(name, **short.get(name, {})) for name in sorted(names)} | {"data": data_params().model_dump()}


def grid(arms: dict[str, Any], *, seeds: tuple[int, ...] = (0, 1)) -> CompareParams:
    options = {"primary_metrics": ("f1",), "baseline_rules": ("start",), "keep": "weights", "split": "test"}
    return CompareParams(seeds=seeds, control="supervised", arms=arms, **options)


def arrange(params: CompareParams):
    return nodes.arrange_trials(params, EVALUATION, {"dialogue": parameters()})


def run(params: CompareParams) -> Memory:
    store = Memory()
    for record in nodes.train_trial(params, EVALUATION, SERIAL, arrange(params), make_examples(), store):
        if record is not False:
            store.keep(record)
    return store


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(epochs, seed) of each warm start that is trained."""
    seen, train = [], stage_training.train_weights

    def counted(algorithm, training, task, data, *, seed):
        seen.append((training.epochs, seed))
        return train(algorithm, training, task, data, seed=seed)

    monkeypatch.setattr(stage_training, "train_weights", counted)
    return seen


def ordinary_predictions(arm: str, *, seed: int) -> pd.DataFrame:
    """Predictions of an arm as an ordinary run of the task's own pipelines makes them."""
    found, models, loop = parameters(), find_preparation("dialogue").models, TrainingParams.model_validate
    given: dict[str, Any] = {"dialogue.examples": make_examples(), "params:seed": seed, "params:resume": "never"}
    given["params:executor"] = SERIAL
    given |= {f"params:dialogue.{name}": models[name].model_validate(found[name]) for name in SECTIONS if name in models}
    given["params:dialogue.training"] = loop(found["training"])
    given["params:dialogue.warm_start.training"] = loop(found["warm_start"]["training"])
    for name in ("warm_start", "supervised", "reinforce", "grpo"):
        given[f"params:dialogue.{name}.algorithm"] = AlgorithmParams.model_validate(found[name]["algorithm"])
        given[f"dialogue.{name}.resume_from"] = NoCheckpoint("none")
    spec = find_task("dialogue").with_stages_of(found)
    parts = {name: Parts.of(given[f"params:dialogue.{name}.algorithm"]) for name in ("warm_start", arm)}
    stages = create_stages(spec, {}, parts)
    whole = create_preparation(spec, spec.stages) + stages + create_arm("dialogue", arm, parts=parts[arm])
    return run_in_memory(whole, given).load(f"dialogue.{arm}.predictions")


def test_a_cell_is_what_an_ordinary_run_gives_and_a_start_is_trained_once_per_seed(trainings) -> None:
    store = run(grid(ARMS))
    assert {header.reason for header in store.headers.values()} == {None}
    # Other weights of the reward change no start; another loop before the arms does.
    assert trainings == [(4, 0), (2, 0), (4, 1), (2, 1)]
    expected = ordinary_predictions("grpo", seed=1)
    pd.testing.assert_frame_equal(store.predictions("grpo.seed1"), expected, check_exact=True)
    kept = store.records["grpo.seed1"].header
    assert kept.parameters["warm_start"]["training"]["epochs"] == 4
    assert kept.metrics["f1"] == pytest.approx(expected[expected["rule"] == "policy"]["f1"].mean())


def test_nothing_is_trained_for_a_digest_or_an_arm_that_readers_do_not_have(trainings) -> None:
    plan, preparation, examples = arrange(grid(ARMS)), find_preparation("dialogue"), make_examples()
    digests = {trial.key: trial_digest(preparation, plan.arms[trial.arm], trial, examples, split="test") for trial in plan.trials}
    assert len(set(digests.values())) == 8
    other = Trial("grpo", 0, split=dict.fromkeys(examples.table["example_id"], "train"))
    assert trial_digest(preparation, plan.arms["grpo"], other, examples, split="test") != digests["grpo.seed0"]
    assert trainings == []
    exact = {"losses": {"kl": {"estimator": "exact"}}}
    impossible = {"base": "grpo", "set": {"algorithm": exact, "warm_start": {"training": {"epochs": 3}}}}
    store = run(grid({"supervised": ARMS["supervised"], "impossible": impossible}, seeds=(0,)))
    assert trainings == [(4, 0)]
    said = "losses.kl.estimator must be k2, k3 or ratio_k3 for the dialogue task"
    assert store.headers["impossible.seed0"].reason.startswith(said)
    assert store.headers["supervised.seed0"].status == "finished"
    plan = arrange(CompareParams.model_validate(BASE["compare"]["dialogue"]["compare"] | {"split": "val"}))
    assert len(plan.trials) == 18
    assert {arm for arm, found in plan.arms.items() if found.algorithm.paid_kl is None} == {"supervised", "no_kl"}
