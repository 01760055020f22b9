"""Tiny grids for the tests of this folder."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import yaml
from kedro.io import DataCatalog, MemoryDataset
from kedro.pipeline import Pipeline
from kedro.runner import SequentialRunner
from tiny_attention import CONF, make_examples, section

from grpo_pipeline.pipelines.experiments.trials.arms import ResolvedArm, resolve_arms
from grpo_pipeline.pipelines.experiments.trials.engine import Bench
from grpo_pipeline.pipelines.experiments.trials.records import Plan, TrialHeader, TrialRecord, plan_grid
from grpo_pipeline.pipelines.experiments.trials.task_lookup import find_preparation
from grpo_pipeline.pipelines.experiments.trials.trial_params import CompareParams

SECTIONS = ("supervised", "grpo", "training", "model", "reward", "supervised_loss")
SHORT = {"training": {"epochs": 1, "validation_samples": 2}, "algorithm": {"update_epochs": 1}}


@dataclass
class Memory:
    """Stored trials in memory: what the dataset would hold."""

    records: dict[str, TrialRecord] = field(default_factory=dict)

    @property
    def headers(self) -> Mapping[str, TrialHeader]:
        return {key: record.header for key, record in self.records.items()}

    def predictions(self, key: str) -> pd.DataFrame:
        return self.records[key].predictions

    def metric_rows(self, key: str) -> pd.DataFrame:
        return pd.DataFrame(list(self.records[key].metric_rows))

    def keep(self, record: TrialRecord) -> None:
        self.records[record.header.key] = record


def tiny_parameters() -> dict[str, Any]:
    """The task's parameters as Kedro would read them."""
    data = yaml.safe_load((CONF / "base/attention/parameters_data.yml").read_text())["attention"]["data"]
    return {name: section(name) for name in SECTIONS} | {"data": data | {"root": "tiny", "image_size": 32}}


def resolve_tiny(**arms: dict) -> dict[str, ResolvedArm]:
    base = {name: {"base": name, "set": SHORT if name == "grpo" else {"training": SHORT["training"]}} for name in SECTIONS[:2]}
    params = CompareParams(
        seeds=(0, 1), control="supervised", arms=base | arms, primary_metrics=("auroc",), baseline_rules=(), keep="predictions",
        split="test",
    )  # fmt: skip
    return resolve_arms(params, tiny_parameters(), task="attention", models=find_preparation("attention").models)


def tiny_plan(seeds: tuple[int, ...] = (0, 1), **arms: dict) -> Plan:
    return plan_grid("attention", resolve_tiny(**arms), seeds)


def tiny_bench(**changes) -> Bench:
    return Bench(
        find_preparation("attention"),
        make_examples(),
        lambda rows, rule: {"rows": float((rows["rule"] == rule).sum())},
        **changes,
    )


def run_in_memory(pipeline: Pipeline, given: Mapping[str, Any]) -> DataCatalog:
    """Run a pipeline on values that are handed on by reference; returns the catalogue with all that was made."""
    made = {name: MemoryDataset(copy_mode="assign") for name in pipeline.datasets() - given.keys()}
    catalog = DataCatalog({name: MemoryDataset(value, copy_mode="assign") for name, value in given.items()} | made)
    SequentialRunner().run(pipeline, catalog)
    return catalog
