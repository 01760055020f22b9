"""The figures are saved before the run stops, and what is saved is what the command prints."""

import json

import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner
from kedro_datasets.json import JSONDataset
from kedro_datasets.text import TextDataset

from grpo_pipeline.core import self_check as core
from grpo_pipeline.core.self_check import Check, SelfCheckError, SelfCheckResult, VariantResult
from grpo_pipeline.pipelines.audit import self_check


def measured(seed, hit_rate):
    grpo = VariantResult("grpo", False, (Check("hit_rate", hit_rate, 0.98),), steps=40)
    return SelfCheckResult(seed=seed, variants=(grpo,))


def run(folder, seed):
    catalog = DataCatalog(
        {
            "params:seed": MemoryDataset(seed),
            "self_check.result": JSONDataset(filepath=str(folder / "result.json"), save_args={"allow_nan": False}),
            "self_check.table": TextDataset(filepath=str(folder / "table.txt")),
        }
    )
    SequentialRunner().run(self_check.create_pipeline(), catalog)


def test_figures_and_table_are_saved(monkeypatch, tmp_path):
    monkeypatch.setattr(core, "run_self_check", lambda seed: measured(seed, 0.99))
    run(tmp_path, seed=5)
    saved = json.loads((tmp_path / "result.json").read_text())
    assert saved == measured(5, 0.99).to_dict()
    assert (tmp_path / "table.txt").read_text() == core.format_table(saved)
    assert (tmp_path / "table.txt").read_text().endswith("self-check passed, seed 5")


def test_a_failure_stops_the_run_after_its_figures_are_saved(monkeypatch, tmp_path):
    monkeypatch.setattr(core, "run_self_check", lambda seed: measured(seed, 0.5))
    with pytest.raises(SelfCheckError, match="the installed code must pass its self-check, got grpo: DOES NOT LEARN; reinstall"):
        run(tmp_path, seed=5)
    assert json.loads((tmp_path / "result.json").read_text())["variants"]["grpo"]["checks"]["hit_rate"]["value"] == 0.5
    assert not (tmp_path / "table.txt").exists()


def test_the_pipeline_needs_the_seed_alone():
    pipeline = self_check.create_pipeline()
    assert pipeline.inputs() == {"params:seed"}
    assert pipeline.all_outputs() == {"self_check.result", "self_check.table"}
    assert [node.name for node in pipeline.nodes] == ["run_self_check", "report_self_check"]
