"""Parameters of an older version are printed in the present form, and mean the same."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.migrate import is_old, main, migrate, migrate_algorithm

ADVANTAGE = {"method": "group", "std": "sample"}
LOSS = {"clip_low": 0.1, "clip_high": 0.3, "ratio_level": "decision", "reduction": "per_sequence"}
CONTROL = {
    "name": "supervised", "supervised_weight": 0.7, "policy_weight": 0.0, "entropy_weight": 0.0, "kl_weight": 0.0,
    "value_weight": 0.0, "update_epochs": 1, "advantage": ADVANTAGE, "policy_loss": None,
}  # fmt: skip
GRPO = {
    "name": "grpo", "supervised_weight": 0.0, "policy_weight": {"kind": "constant", "start": 0.9, "warmup_steps": 4},
    "entropy_weight": {"kind": "linear", "start": 0.05, "end": 0.0}, "kl_weight": 0.2, "kl_estimator": "k3", "value_weight": 0.1,
    "value_clip": 0.5, "rollout_kl_weight": 0.0, "update_epochs": 3, "advantage": ADVANTAGE, "policy_loss": LOSS,
    "reference": {"update": "ema", "decay": 0.8}, "dynamic_sampling": {"max_retries": 2},
    "entropy_target": {"target": 2.5, "learning_rate": 0.01, "minimum": 0.1, "maximum": 0.2},
}  # fmt: skip


def test_a_control_has_one_term() -> None:
    found = migrate_algorithm(CONTROL)
    assert found == {
        "losses": {"supervised": {"weight": 0.7}}, "proposal": "uniform", "update_epochs": 1, "advantage": ADVANTAGE
    }  # fmt: skip
    assert AlgorithmParams.model_validate(found).name == "supervised"


def test_every_number_arrives_at_its_part() -> None:
    params = AlgorithmParams.model_validate(migrate_algorithm(GRPO))
    losses = params.losses
    assert (params.name, params.update_epochs, params.dynamic_sampling.max_retries) == ("grpo", 3, 2)
    assert losses.supervised is None
    assert (losses.policy.weight.start, losses.policy.weight.warmup_steps) == (0.9, 4)
    assert (losses.policy.clip_low, losses.policy.clip_high, losses.policy.ratio_level) == (0.1, 0.3, "decision")
    assert (losses.kl.weight.start, losses.kl.estimator, losses.kl.reference.update, losses.kl.reference.decay) == (
        0.2,
        "k3",
        "ema",
        0.8,
    )
    assert (losses.value.weight.start, losses.value.clip) == (0.1, 0.5)
    assert migrate_algorithm({"rollout_kl_weight": 0.3}) == {"losses": {"rollout_kl": {"weight": 0.3}}}  # is refused
    assert (losses.entropy.weight.start, losses.entropy.weight.end, losses.entropy.target.nats) == (0.05, 0.0, 2.5)


def test_a_kl_in_the_reward_is_a_part_of_its_own() -> None:
    paid = GRPO | {"kl_placement": "reward", "reference": {"update": "frozen", "path": None}}
    params = AlgorithmParams.model_validate(migrate_algorithm(paid))
    assert params.losses.kl is None
    assert (params.kl_in_reward.weight.start, params.kl_in_reward.estimator) == (0.2, "k3")
    assert migrate_algorithm(GRPO | {"kl_placement": "reward"})["kl_in_reward"]["reference"] == GRPO["reference"]  # is refused


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"kl_weight": 0.0}, {"losses": {"kl": None}}),
        ({"kl_weight": 0.5}, {"losses": {"kl": {"weight": 0.5}}}),
        ({"losses": {"rollout_kl": None, "kl": None}}, {"losses": {"kl": None}}),
        ({"losses": {"policy": {"kind": "sapo", "tau_positive": 1.0}}}, {"losses": {"policy": {"kind": "sapo"}}}),
        ({"kl_in_reward": {"weight": 0.1, "reference": {"update": "frozen"}}}, {"kl_in_reward": {"weight": 0.1}}),
        ({"name": "dapo", "policy_loss": {"reduction": "per_decision"}},
         {"losses": {"policy": {"kind": "dapo", "reduction": "per_decision"}}}),
        ({"name": "reinforce"}, {"losses": {"policy": {"kind": "reinforce", "clip_low": None, "clip_high": None}}}),
        ({"advantage": {"method": "batch", "std": "sample"}}, {"advantage": {"method": "batch", "std": "sample"}}),
        ({"advantage": {"method": "opo", "std": "sample", "eps": 0.1, "clip": 2}}, {"advantage": {"method": "opo", "clip": 2}}),
        ({"policy_loss": None, "supervised_weight": 0.4}, {"losses": {"supervised": {"weight": 0.4}, "policy": None}}),
        ({"name": "supervised", "policy_weight": 0.0},
         {"losses": dict.fromkeys(("policy", "kl", "value", "entropy")), "proposal": "uniform"}),
    ],
)  # fmt: skip
def test_what_an_arm_changes_of_its_base(change: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert migrate({"attention": {"compare": {"arms": {"one": {"base": "grpo", "set": {"algorithm": change}}}}}}) == {
        "attention": {"compare": {"arms": {"one": {"base": "grpo", "set": {"algorithm": wanted}}}}}
    }


@pytest.mark.parametrize("task", ["attention", "dialogue", "molecules"])
def test_how_batches_were_made_is_left_out_of_every_training(task: str) -> None:
    old = {"epochs": 3, "loader": {"prefetch": 0, "workers": 1}, "compile": "none"}
    assert migrate({task: {"training": old, "compare": {"arms": {"one": {"set": {"training": old}}}}}}) == {
        task: {"training": {"epochs": 3}, "compare": {"arms": {"one": {"set": {"training": {"epochs": 3}}}}}}
    }
    assert not is_old(f"{task}.training.epochs")
    assert is_old(f"{task}.training.loader")


def test_the_command_prints_what_changes_and_nothing_of_the_present_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = {"attention": {"grpo": {"algorithm": {"kl_weight": 0.5}}, "training": {"epochs": 3}}}
    (tmp_path / "old.yml").write_text(yaml.safe_dump(old))
    (tmp_path / "new.yml").write_text(yaml.safe_dump(migrate(old)))
    assert main([str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert yaml.safe_load(printed.out) == migrate(old) != old
    assert printed.out.startswith(f"# {tmp_path / 'old.yml'}\n")
    assert printed.err.startswith("1 files change")
    assert main([str(tmp_path / "none.yml")]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'none.yml'} must exist, got no such file or folder\n"
