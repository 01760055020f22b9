"""One function reads a trained model of any task back from its folder, and what it gives does what the policy did."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny_chemist
import tiny_predictor
import torch
from tiny import tiny
from tiny_attention import export

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.storage.weights import ModelWeights, load_weights, save_weights
from grpo_pipeline.tasks.attention.data.preprocessing_params import ModelPreprocessing
from grpo_pipeline.tasks.exported import load_exported
from grpo_pipeline.tasks.molecules import prompt_answers
from grpo_pipeline.tasks.molecules.exported_model import draw_molecules
from grpo_pipeline.tasks.molecules.params import PredictParams
from grpo_pipeline.tasks.molecules.pipelines.prediction import draw_sizes
from grpo_pipeline.tasks.molecules.prompt_answers import answer, answer_request
from grpo_pipeline.tasks.trained_arms import TrainedArms, version_of


@pytest.mark.parametrize("prompt", [{}, {"conditions": ["logp", "qed"]}], ids=["sizes", "properties"])
def test_a_denoiser_draws_the_same_molecules(tmp_path: Path, prompt: dict[str, Any]) -> None:
    task, data = tiny_chemist.make_task(prompt=prompt), tiny_chemist.make_data(**prompt)
    policy = export(tmp_path / "model", tiny_chemist, task, data)
    rows = np.arange(12)
    batch = task.make_batch(data, rows)
    generator = torch.Generator().manual_seed(5)
    drawn = task.draw(policy, batch.prompts, 1, temperature=0.7, generator=generator)
    expected = [group[0] for group in task.molecules(drawn)]

    targets = {name: data.targets[rows, i] for i, name in reversed([*enumerate(task.prompt.conditions)])}
    model = load_exported(tmp_path / "model")
    sizes = batch.prompts.sizes.tolist()
    found = draw_molecules(model, sizes, generator=torch.Generator().manual_seed(5), targets=targets, temperature=0.7)
    assert found == expected
    assert len({molecule.smiles for molecule in found}) > 3
    said = r"\['logp', 'qed'\] with 12 values each, got" if targets else "empty: its prompts name no property, got"
    for wrong in ({"qed": [0.5] * 12}, {name: values[:1] for name, values in targets.items()} or {"logp": [1.0]}):
        with pytest.raises(ValueError, match=f"targets must be {said}"):
            draw_molecules(model, sizes, generator=torch.Generator(), targets=wrong)


def test_an_older_denoiser_loads_where_it_had_the_width_that_is_now_a_constant(tmp_path: Path) -> None:
    policy = export(tmp_path / "model", tiny_chemist, tiny_chemist.make_task(), tiny_chemist.make_data())
    weights = load_weights(tmp_path / "model")
    for expansion in (2, 3):
        config = {**weights.config, "denoiser": {**weights.config["denoiser"], "expansion": expansion}}
        save_weights(tmp_path / f"older{expansion}", replace(weights, config=config))
    loaded = load_exported(tmp_path / "older2").policy.state_dict()
    assert all(torch.equal(value, loaded[name]) for name, value in policy.state_dict().items())
    with pytest.raises(ValueError, match="expansion\n.*Extra inputs"):
        load_exported(tmp_path / "older3")


@pytest.mark.parametrize("prompt", [{}, {"conditions": ["logp"]}], ids=["sizes", "properties"])
def test_sizes_and_counts_get_molecules_row_by_row(tmp_path: Path, prompt: dict[str, Any]) -> None:
    export(tmp_path / "model", tiny_chemist, tiny_chemist.make_task(prompt=prompt), tiny_chemist.make_data(**prompt))
    model, wanted = load_exported(tmp_path / "model"), dict.fromkeys(prompt.get("conditions", ()), 1.5)
    asked = pd.DataFrame({"size": [4, 2], "count": [70, 2]}).assign(**wanted)
    found = answer(model, asked, seed=4)
    assert found["row"].tolist() == [0] * 70 + [1] * 2
    assert found["sample"].tolist() == [*range(70), 0, 1]
    assert found["size"].tolist() == [4] * 70 + [2] * 2  # 4 is the largest of the training
    # The second part of the first row: six molecules with a generator of their own.
    generator = step_generator(4, 0, 1, stream=Stream.PREDICTION, device="cpu")
    expected = draw_molecules(model, [4] * 6, generator=generator, targets={name: [1.5] * 6 for name in wanted})
    assert found["smiles"].tolist()[64:70] == [one.smiles for one in expected]
    generator = step_generator(4, 1, 0, stream=Stream.PREDICTION, device="cpu")  # so has the second row
    expected = draw_molecules(model, [2] * 2, generator=generator, targets={name: [1.5] * 2 for name in wanted})
    assert found["smiles"].tolist()[70:] == [one.smiles for one in expected]
    assert found["is_valid"].tolist() == [bool(text) for text in found["smiles"]]
    assert answer(model, asked.drop(columns="count"), seed=4)["sample"].tolist() == [0, 0]
    assert not answer(model, asked, seed=5).equals(found)
    table, report = draw_sizes(
        PredictParams(arm="model", sizes=(3, 2), count=2, targets=wanted, seed=4), TrainedArms(put_under(tmp_path))
    )
    assert table["size"].tolist() == [3, 3, 2, 2]
    said = f"{table['is_valid'].sum()} of 4 molecules are valid; cause says why the others are not"
    assert (report["rows"], report["notes"]) == (4, [said])


def put_under(path: Path) -> Path:
    """Give the exported model the place that an arm's has."""
    (path / "arms/model").mkdir(parents=True)
    (path / "model").rename(path / "arms/model/model")
    return path / "arms"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"atoms": [3]}, r"the prompts must have a column 'size', got \['atoms'\]; add it"),
        ({"size": [3, 900]}, "row 1 of the prompts: size must be from 1 to [0-9]+, the largest molecule of the training, got"),
        ({"size": ["3.5"]}, "row 0 of the prompts: size must be a whole number from 1, got '3.5'; correct it"),
        ({"size": [3], "count": [0]}, "row 0 of the prompts: count must be a whole number from 1, got 0; correct it"),
    ],
)
def test_a_size_that_cannot_be_drawn_is_named(tmp_path: Path, table: dict[str, Any], message: str) -> None:
    export(tmp_path / "model", tiny_chemist, tiny_chemist.make_task(), tiny_chemist.make_data())
    with pytest.raises(ValueError, match=message):
        answer(load_exported(tmp_path / "model"), pd.DataFrame(table), seed=0)
    with pytest.raises(ValueError, match="a request must ask for at most 1024 molecules, got 1025; send several"):
        answer_request(load_exported(tmp_path / "model"), pd.DataFrame({"size": [3, 3], "count": [1024, 1]}), seed=0)


def test_a_request_of_exactly_as_many_molecules_as_allowed_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(tmp_path / "model", tiny_chemist, tiny_chemist.make_task(), tiny_chemist.make_data())
    model, asked = load_exported(tmp_path / "model"), pd.DataFrame({"size": [2, 3], "count": [3, 1]})
    monkeypatch.setattr(prompt_answers, "MOST_MOLECULES", 4)
    assert len(answer_request(model, asked, seed=0)) == 4
    monkeypatch.setattr(prompt_answers, "MOST_MOLECULES", 3)
    with pytest.raises(ValueError, match="a request must ask for at most 3 molecules, got 4; send several"):
        answer_request(model, asked, seed=0)


SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("attention", {}),
    ("attention", {"class_decoder": {"kind": "global"}, "policy": {"stop": {"min_points": 1}}}),
    (
        "attention",
        {"class_decoder": {"kind": "statistics"}, "policy": {"prior": {"kind": "dark_blobs"}, "stop": {"min_points": 1}}},
    ),
    ("attention", {"encoder": {"tuning": {"kind": "adapter", "rank": 2}}}),
    ("dialogue", {}),
    ("dialogue", {"language_model": {"kind": "llama", "max_positions": 400, "tuning": {"kind": "lora", "rank": 2, "alpha": 4}}}),
    ("molecules", {}),
    ("molecules", {"prompt": {"conditions": ["qed"]}, "noise": {"limit": "uniform"}}),
]


@pytest.mark.parametrize(("name", "settings"), SETTINGS)
def test_every_task_gives_the_weights_back(tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    kit = tiny(name)
    task = kit.make_task(**settings)
    data = {"dialogue": lambda: kit.make_data(task), "molecules": lambda: kit.make_data(**settings.get("prompt", {}))}
    if name == "attention":
        task = replace(task, preprocessing=ModelPreprocessing.model_validate(tiny_predictor.preprocessing()))
    policy = export(tmp_path / "model", kit, task, data.get(name, kit.make_data)(), tiny_predictor.CALIBRATION)
    model = load_exported(tmp_path / "model")
    assert not model.policy.training
    found, expected = model.policy.state_dict(), policy.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key].cpu(), expected[key].cpu()) for key in expected)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"must hold model.json, got nothing there"):
        load_exported(tmp_path)
    for task in ("paintings", "os; import", None):
        (tmp_path / "model.json").write_text(json.dumps({"crc32": {}, "config": {"task": task}}))
        with pytest.raises(ValueError, match=r"must hold a model of a task of this project, got"):
            load_exported(tmp_path)


def save(folder: Path, value: float) -> None:
    save_weights(folder, ModelWeights({"w": torch.tensor([value])}, {"value": value}))


def test_the_newest_complete_version_of_an_arm_is_found_or_named(tmp_path: Path):
    for number, version in enumerate(("2026-01-02T00.00.00.000Z", "2026-01-10T00.00.00.000Z")):
        save(tmp_path / "grpo/model" / version / "model", float(number))
    (tmp_path / "grpo/model/2026-02-01T00.00.00.000Z").mkdir()
    (tmp_path / "other").mkdir()
    arms = TrainedArms(tmp_path)
    assert list(arms.newest()) == ["grpo"]
    assert arms.load("grpo", parameter="x").config == {"value": 1.0}
    assert version_of(arms.find("grpo", parameter="x")) == "2026-01-10T00.00.00.000Z"
    save(tmp_path / "single/grpo/model", 3.0)
    path = TrainedArms(tmp_path / "single").find("grpo", parameter="x")
    assert (path, version_of(path)) == (tmp_path / "single/grpo/model", "model")
    assert json.loads((path / "model.json").read_text())["config"] == {"value": 3.0}
    message = r"attention.predict.arm must name an arm .* got 'ppo' and it has \['grpo'\]; choose one of them or train it first"
    with pytest.raises(FileNotFoundError, match=message):
        arms.load("ppo", parameter="attention.predict.arm")
    with pytest.raises(FileNotFoundError, match=r"got 'grpo' and there is no model at all; train it first: grpo run"):
        TrainedArms(tmp_path / "none").find("grpo", parameter="attention.predict.arm")
