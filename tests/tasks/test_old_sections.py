"""Parameters of dialogues and molecules of an older version mean the same in the present form."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_pipeline.migrate import is_old, migrate
from grpo_pipeline.tasks import find_task
from grpo_pipeline.tasks.molecules.rewards.params import MoleculeReward

BASE = Path(__file__).resolve().parents[2] / "conf/base"
POOL = {"workers": 2, "timeout_seconds": 10.0, "chunk_size": 32, "cache_size": 100000}
NEW = {"architecture": "t5", "width": 64, "layers": 2, "heads": 4, "max_positions": None}
FOLDER = {"path": "x", "tokenizer": "bytes"}
DENSE = {"folder": "x", "batch_size": 8, "max_tokens": 9}
OWN = {"function": "my_rewards:mine", "weight": 0.5}
WINDOW = {"low": 2.0, "high": 3.0, "width": 1.0}
CSV = {"smiles": "s", "name": None}
OLD: dict[str, dict[str, Any]] = {"dialogue": {
    "language_model": {"source": "new", "new": NEW, "folder": None, "lora": None},
    "rewards": {
        "weights": {"f1": 1.0, "rouge_l": 1.0, "bleu": 1.0}, "own": None, "failure": {"rule": "exclude"}, "pool": POOL
    },
    "data": {
        "source": "generated", "root": "r", "stories_from": "file", "splits_from": "drawn", "max_question_bytes": 160,
        "on_bad_row": "fail", "conversations": None,
    },
    "retrieval": {"top_n": 1, "query": "persona", "encoder": "tfidf", "dense": None},
}, "molecules": {
    "rewards": {
        "weights": {"validity": 1.5, "logp": 1.0, "batch_uniqueness": 4.0, "novelty": 0.5}, "logp": WINDOW, "size": None,
        "wanted": None, "forbidden": None, "own": None, "invalid": {"rule": "group_mean", "penalty": None},
        "failure": {"rule": "exclude"}, "pool": POOL | {"workers": 1, "chunk_size": 64},
    },
    "data": {
        "source": "generated", "root": "r", "columns": None, "bonds": "kekulised", "atoms": None, "charges": None, "min_atoms": 2,
        "max_atoms": None, "workers": None, "on_bad_row": "fail",
    },
}}  # fmt: skip
CHANGES: dict[tuple[str, str], list[tuple[dict[str, Any], dict[str, Any]]]] = {
    ("dialogue", "rewards"): [
        ({"weights": {"f1": 2.0, "bleu": 0}}, {"reward": {"f1": {"weight": 2.0}, "rouge_l": None, "bleu": None}}),
        ({"own": {"mine": OWN, "off": OWN | {"weight": 0}}}, {"reward": {"own": {"mine": OWN, "off": None}}}),
        ({"failure": {"rule": "penalty", "penalty": -1.0}}, {"reward_pool": {"failure": -1.0}}),
        ({"pool": {"workers": 1}}, {"reward_pool": {"workers": 1}}),
    ],
    ("dialogue", "language_model"): [
        ({"new": {"width": 16}}, {"network": {"width": 16}}),
        ({"source": "folder", "folder": FOLDER}, {"network": {"kind": "folder"} | FOLDER}),
        ({"new": {"architecture": "gpt2", "max_positions": 64}}, {"network": {"kind": "gpt2", "max_positions": 64}}),
        ({"lora": {"rank": 8, "alpha": 16}}, {"tuning": {"kind": "lora", "rank": 8, "alpha": 16}}),
        ({"lora": None}, {"tuning": None}),
    ],
    ("molecules", "noise"): [({"steps": 8, "smoothing": 1.0}, {"steps": 8}), ({"smoothing": 0.5}, {"smoothing": 0.5})],
    ("molecules", "sampling"): [({"temperature": 1.0, "prompts": 6}, {"prompts": 6})],
    ("molecules", "denoiser"): [({"features": "cycles"}, {}), ({"features": "none"}, {"features": "none"})],
    ("dialogue", "data"): [
        ({"on_bad_row": "fail"}, {"on_bad_row": "fail"}),
        ({"conversations": {"every": 5}}, {"source": {"every": 5}}),
        (
            {"source": "conversations", "stories_from": "personas", "splits_from": "drawn", "conversations": {"every": 5}},
            {"source": {"kind": "conversations", "stories_from": "personas", "every": 5}},
        ),
        ({"source": "jsonl", "splits_from": "file"}, {"source": {"kind": "jsonl", "splits_from": "file"}}),
    ],
    ("dialogue", "retrieval"): [
        ({"encoder": "dense", "dense": DENSE}, {"encoder": {"kind": "dense"} | DENSE}),
        ({"top_n": 3}, {"top_n": 3}),
    ],
    ("molecules", "rewards"): [
        (
            {"weights": {"qed": 1.0, "logp": 2.0, "wanted": 0.5, "size": 0}, "logp": WINDOW, "size": WINDOW, "wanted": ["C"]},
            {"reward": dict.fromkeys(MoleculeReward.names()) | {
                "qed": {"weight": 1.0}, "logp": {"weight": 2.0} | WINDOW, "wanted": {"weight": 0.5, "patterns": ["C"]}
            }},
        ),
        ({"logp": {"low": 4.0}}, {"reward": {"logp": {"low": 4.0}}}),
        ({"invalid": {"rule": "penalty", "penalty": -1.0}}, {"reward": {"invalid_penalty": -1.0}}),
        ({"failure": {"rule": "stop"}}, {"reward_pool": {"failure": "stop"}}),
    ],
    ("molecules", "data"): [
        ({"source": "csv", "columns": CSV}, {"source": {"kind": "csv"} | CSV}),
        ({"source": "smiles", "columns": None, "workers": 2}, {"source": {"kind": "smiles"}}),
        ({"columns": CSV}, {"source": CSV}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("task", OLD)
def test_the_defaults_of_before_are_those_of_today(task: str) -> None:
    today: dict[str, Any] = {}
    for name in ("training", "data"):
        today |= yaml.safe_load((BASE / task / f"parameters_{name}.yml").read_text())[task]
    today["data"]["root"] = "r"
    found, sections = migrate({task: OLD[task]})[task], find_task(task).sections
    assert found.keys() == {*OLD[task], "reward", "reward_pool"} - {"rewards"}
    for name, section in found.items():
        assert sections[name].model_validate(section) == sections[name].model_validate(today[name])


@pytest.mark.parametrize(("task", "section"), CHANGES)
def test_a_change_of_a_base_stays_a_change_wherever_it_stands_and_is_changed_once(task: str, section: str) -> None:
    for change, changed in CHANGES[task, section]:
        wanted = changed if section == "rewards" else {section: changed}
        assert migrate({task: {section: change}}) == {task: wanted}
        found = migrate({task: {"compare": {"arms": {"mine": {"set": {section: change}}}}}})
        assert found == {task: {"compare": {"arms": {"mine": {"set": wanted}}}}}
        assert migrate(found) == found


def test_an_old_name_is_known_as_one() -> None:
    for path in ("dialogue.rewards", "dialogue.language_model.new", "dialogue.retrieval.dense", "molecules.data.columns"):
        assert is_old(path), path
    for path in ("dialogue.reward", "dialogue.language_model.network", "molecules.data.root", "attention.rewards"):
        assert not is_old(path), path
