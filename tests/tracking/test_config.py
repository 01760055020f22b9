"""mlflow.yml is checked key by key, and the committed one is valid."""

from pathlib import Path

import pytest
import yaml

from grpo_pipeline.tracking.mlflow_config import MlflowConfig, parse_config

ROOT = Path(__file__).parents[2]


def test_an_empty_file_gives_the_defaults():
    config = parse_config({})
    assert config == MlflowConfig()
    assert config.tracking.experiment.name == "grpo_pipeline"
    assert config.server.mlflow_tracking_uri is None


@pytest.mark.parametrize("env", ["base", "smoke"])
def test_the_committed_files_are_valid(env):
    parse_config(yaml.safe_load((ROOT / "conf" / env / "mlflow.yml").read_text()))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"tracking": {"experimnt": {"name": "x"}}}, r"tracking\.experimnt must follow .*\(extra inputs are not permitted\)"),
        ({"tracking": {"experiment": {"name": ""}}}, r"tracking\.experiment\.name must follow .*got ''"),
        ({"ui": {"port": "five"}}, r"ui\.port must follow .*got 'five'"),
        ({"tracking": {"params": {"long_params_strategy": "fail"}}}, r"long_params_strategy must follow .*got 'fail'"),
        ({"artifacts": "*.report"}, r"artifacts must follow .*got '\*\.report'"),
    ],
)
def test_a_wrong_key_is_named(raw, message):
    with pytest.raises(ValueError, match=r"^mlflow\.yml: .*" + message):
        parse_config(raw)
