"""An older section ``model`` has the same model in today's form, whole or as a change, and today's form stays."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tiny_attention import make_examples, make_task, model_params, shake
from tiny_predictor import CALIBRATION, preprocessing

from grpo_pipeline.core.storage.weights import weights_of
from grpo_pipeline.migrate import is_old, migrate
from grpo_pipeline.tasks.attention.batch import AttentionData
from grpo_pipeline.tasks.attention.exported import request_columns
from grpo_pipeline.tasks.attention.inference.predictor import build_predictor
from grpo_pipeline.tasks.attention.migrate_model import CLASS_DECODERS, DELETED, migrate_model
from grpo_pipeline.tasks.attention.model.class_decoder.params import GlimpseParams, GlobalParams, StatisticsParams
from grpo_pipeline.tasks.attention.model.params import ModelParams

ROOT = Path(__file__).resolve().parents[3]
# The header of a model that was exported by the version before, with everything at the tiny default.
FLAT = {
    "patch_size": 8, "encoder_width": 16, "encoder_layers": 2, "encoder_heads": 2, "encoder_window": 4, "encoder": "train",
    "feature_channels": 16, "decoder_layers": 2, "decoder_heads": 2, "policy_channels": 16, "texture_channels": 4, "points": 3,
    "class_decoder": "glimpse", "glimpse_size": 16, "glimpse_channels": 4, "glimpse_pool": "mean", "value_pool": "image",
    "encoder_tuning": None, "clinical": None, "checkpoint": None, "feature_dtype": "float32", "likelihood": "plackett_luce",
    "stop": None, "reads_region": False, "decoder_folds": 1, "policy_reads": "image", "prior": "none", "prior_strength": 3.0,
    "detail_channels": 0, "box": "none",
}  # fmt: skip
# Nothing at its default, but for what excludes another one.
OTHER = {
    "patch_size": 4, "encoder_width": 24, "encoder_layers": 1, "encoder_heads": 3, "encoder_window": 2, "encoder": "adapter",
    "feature_channels": 24, "decoder_layers": 1, "decoder_heads": 4, "policy_channels": 8, "texture_channels": 5, "points": 4,
    "class_decoder": "statistics", "glimpse_size": 12, "glimpse_channels": 6, "glimpse_pool": "mean",
    "value_pool": "image", "encoder_tuning": {"rank": 2},
    "clinical": {"dropout": 0.25}, "checkpoint": None, "feature_dtype": "float32", "likelihood": "plackett_luce",
    "stop": {"min_points": 2}, "reads_region": True, "reads_mask": "seeded", "field_cells": [1, 5], "field_mm": None,
    "decoder_folds": 3, "policy_reads": "image", "policy_encoder": "own", "prior": "dark_blobs", "prior_strength": 2.0,
    "blob_widths": [0.04, 0.08], "detail_channels": 8, "heatmap": "evidence", "box": "none",
}  # fmt: skip
NESTED = {
    "patch_size": 4, "points": 4,
    "encoder": {
        "kind": "new", "width": 24, "layers": 1, "heads": 3, "window": 2, "tuning": {"kind": "adapter", "rank": 2},
    },
    "mask_decoder": {"channels": 24, "layers": 1, "heads": 4},
    "policy": {
        "reads": {"kind": "image", "encoder": "own"}, "channels": 8, "filters": 5, "stop": {"min_points": 2},
        "prior": {"kind": "dark_blobs", "strength": 2.0, "widths": [0.04, 0.08]}, "likelihood": "plackett_luce",
    },
    "class_decoder": {"kind": "statistics", "fields": [1, 5], "folds": 3, "region": True, "mask": "seeded"},
    "heatmap": "evidence", "detail": {"channels": 8}, "clinical": {"dropout": 0.25},
}  # fmt: skip
KINDS = (GlimpseParams, StatisticsParams, GlobalParams)
FILE = {"path": "sam", "kind": "huggingface", "normalisation": "medsam"}
SAM = {"kind": "sam", "path": "sam", "format": "huggingface", "normalisation": "medsam"}


def test_every_number_of_an_older_model_arrives_at_its_part() -> None:
    assert ModelParams.model_validate(migrate_model(OTHER)).model_dump(mode="json") == NESTED
    assert ModelParams.model_validate(migrate_model(FLAT)) == model_params()


def test_a_model_of_the_first_versions_reads_the_image_and_takes_k_points() -> None:
    named = ("policy_reads", "likelihood", "stop", "prior", "prior_strength", "detail_channels", "box", "clinical", "checkpoint")
    first = {name: value for name, value in FLAT.items() if name not in named}
    assert ModelParams.model_validate(migrate_model(first | DELETED)) == model_params()


@pytest.mark.parametrize(
    ("changes", "now"),
    [
        ({"encoder": "frozen"}, {"encoder": {"tuning": {"kind": "frozen"}}}),
        ({"encoder": "adapter", "encoder_tuning": {"rank": 2, "alpha": None, "targets": None}},
         {"encoder": {"tuning": {"kind": "adapter", "rank": 2}}}),
        ({"checkpoint": FILE}, {"encoder": SAM | {"tuning": None}}),
        ({"likelihood": "independent", "policy_reads": "cell", "policy_encoder": "own"},
         {"policy": {"likelihood": "independent", "reads": {"kind": "cell"}}}),
        ({"class_decoder": "global"}, {"class_decoder": {"kind": "global"}}),
        ({"class_decoder": "statistics", "policy_reads": "statistics", "reads_mask": "none"},
         {"class_decoder": {"kind": "statistics"}, "policy": {"reads": {"kind": "statistics"}}}),
    ],
    ids=["frozen", "adapter", "checkpoint", "cell", "global", "statistics"],
)  # fmt: skip
def test_every_kind_of_an_older_model(changes: dict[str, Any], now: dict[str, Any]) -> None:
    assert ModelParams.model_validate(migrate_model(FLAT | changes)) == model_params(**now)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"points": 4}, {"points": 4}),
        ({"encoder": "train"}, {"encoder": {"tuning": None}}),
        ({"encoder": "frozen"}, {"encoder": {"tuning": {"kind": "frozen"}}}),
        ({"encoder_tuning": {"rank": 4}}, {"encoder": {"tuning": {"rank": 4}}}),
        ({"encoder_width": 192, "encoder_heads": 6}, {"encoder": {"width": 192, "heads": 6}}),
        ({"checkpoint": FILE, "encoder_width": 768}, {"encoder": SAM}),
        ({"class_decoder": "statistics", "glimpse_size": 8, "decoder_folds": 5},
         {"class_decoder": {"kind": "statistics", "folds": 5}}),
        ({"reads_mask": "none", "reads_region": False}, {"class_decoder": {"mask": None, "region": False}}),
        ({"policy_reads": "statistics", "policy_encoder": "shared"}, {"policy": {"reads": {"kind": "statistics"}}}),
        ({"policy_reads": "image", "heatmap": "decoder"}, {"policy": {"reads": {"kind": "image"}}, "heatmap": None}),
        ({"prior": "none"}, {"policy": {"prior": None}}),
        ({"blob_widths": [0.05]}, {"policy": {"prior": {"widths": [0.05]}}}),
        ({"stop": None, "box": "none", "detail_channels": 0}, {"policy": {"stop": None}, "detail": None}),
        ({"value": {"pool": "image"}, "class_decoder": {"pool": "mean", "mm": None}, "box": None}, {}),
        ({"encoder": {"tuning": {"kind": "frozen", "stored": "float32"}}}, {"encoder": {"tuning": {"kind": "frozen"}}}),
        ({"value": {"pool": "region"}, "box": "points"}, {"value": {"pool": "region"}, "box": "points"}),
        ({"stop": {"min_points": 1}, "clinical": {"dropout": 0.1}},
         {"policy": {"stop": {"min_points": 1}}, "clinical": {"dropout": 0.1}}),
        ({"prior_strength": 2.0, "policy": {"prior": None, "channels": 8}},
         {"policy": {"prior": {"strength": 2.0}, "channels": 8}}),
    ],
)  # fmt: skip
def test_what_a_file_or_an_arm_changes_of_its_base(change: dict[str, Any], wanted: dict[str, Any]) -> None:
    before = json.dumps(change)
    for path in ("model", "compare.arms.one.set.model", "cross_validation.candidates.wide.model", "grpo.model"):
        old, new = change, wanted
        for name in reversed(["attention", *path.split(".")]):
            old, new = {name: old}, {name: new}
        assert migrate(old) == new
        assert migrate(new) == new
    assert json.dumps(change) == before


def test_files_of_today_stay_as_they_are_and_other_tasks_keep_their_names() -> None:
    files = sorted((ROOT / "conf").glob("*/attention/*.yml"))
    assert len(files) > 20
    for file in files:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
        assert migrate(values) == values, file
    assert migrate({"dialogue": {"model": {"prior": "none"}}}) == {"dialogue": {"model": {"prior": "none"}}}
    gone = {"pool", "mm"}  # of which the value that did nothing is dropped
    assert {kind: {*names} - gone for kind, names in CLASS_DECODERS.items()} == {
        kind.model_fields["kind"].annotation.__args__[0]: {*kind.model_fields} for kind in KINDS
    }


def test_an_old_name_is_known_wherever_a_model_is_described() -> None:
    for path in (
        "attention.model.prior",
        "attention.compare.arms.one.set.model.checkpoint",
        "attention.model.class_decoder",
        "attention.model.box",
        "attention.model.value.pool",
        "attention.augmentation.vertical_flip",
    ):
        assert is_old(path), path
    for path in ("attention.model.policy", "attention.prior.algorithm", "dialogue.model.prior", "attention"):
        assert not is_old(path), path


@pytest.mark.parametrize(
    ("flat", "nested"),
    [(FLAT, {}), (OTHER | {"clinical": None}, NESTED | {"clinical": None})],
    ids=["the default", "nothing at its default"],
)
def test_an_older_exported_model_answers_as_the_same_model_of_today(flat: dict[str, Any], nested: dict[str, Any]) -> None:
    """Its header has the flat keys: the same model takes its weights by their names, and judges an image alike."""
    examples = make_examples()
    examples = replace(examples, table=examples.table.assign(row_mm=0.2, column_mm=0.2))
    task = make_task(examples, supervised={"heatmap": None, "glimpse": None}, **nested)
    policy = task.build_policy(0)
    shake(policy, scale=0.2)
    told = {**task.describe(policy), "preprocessing": preprocessing(), "calibration": CALIBRATION}
    stored = weights_of(policy, told)
    now, old = (build_predictor(replace(stored, config={**told, "model": model}), name="tiny") for model in (told["model"], flat))
    assert old.task.model == now.task.model == task.model
    states = policy.state_dict(), old.policy.state_dict()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
    batch = task.make_batch(AttentionData(examples, None), np.array([1, 10]))
    with torch.no_grad():
        found, expected = (each.policy.propose(each.task.encode(each.policy, batch))[0] for each in (old, now))
    assert torch.equal(found.cells, expected.cells)
    columns = [{column.name for column in request_columns({**told, "model": model})} for model in (told["model"], flat)]
    assert columns[0] == columns[1]
