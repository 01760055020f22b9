"""Set Kedro's settings, all by name: hooks, session, configuration rules, quiet logging, no telemetry."""

import logging
import os
from typing import Any

import yaml
from kedro.framework.project import LOGGING, configure_logging

from grpo_pipeline.hooks.arms import ArmHooks
from grpo_pipeline.hooks.devices import DeviceHooks
from grpo_pipeline.hooks.run_line import RunLineHooks
from grpo_pipeline.hooks.run_ownership import RunEndHooks, RunHooks
from grpo_pipeline.hooks.splits import DataHooks
from grpo_pipeline.hooks.summary import SummaryHooks
from grpo_pipeline.hooks.threads import ThreadHooks
from grpo_pipeline.hooks.tracking import MlflowHooks
from grpo_pipeline.hooks.watch import WatchHooks
from grpo_pipeline.runs.context import ProjectContext
from grpo_pipeline.runs.freed_memory import keep_freed_memory
from grpo_pipeline.runs.mlflow_defaults import set_mlflow_defaults
from grpo_pipeline.runs.new_project import conf_folder
from grpo_pipeline.runs.run_config_loader import RunConfigLoader
from grpo_pipeline.runs.terminal import let_printing_last
from grpo_pipeline.session import TrackedSession

set_mlflow_defaults(os.environ)
keep_freed_memory()
let_printing_last()  # before any log is opened on the streams


def _quiet_logging() -> None:
    """Apply ``conf/logging.yml`` when Kedro, which looks in the current folder only, has not found it."""
    logging.captureWarnings(True)
    path = conf_folder() / "logging.yml"
    if (
        "KEDRO_LOGGING_CONFIG" not in os.environ
        and path.is_file()
        and "project" not in LOGGING.get("handlers", {})
    ):
        configure_logging(yaml.safe_load(path.read_text(encoding="utf-8")))


_quiet_logging()

SESSION_CLASS = TrackedSession
CONTEXT_CLASS = ProjectContext
CONFIG_LOADER_CLASS = RunConfigLoader
HOOKS = (
    ThreadHooks(),
    _runs := RunHooks(),
    _mlflow := MlflowHooks(),
    _line := RunLineHooks(_runs),
    RunEndHooks(_line, _mlflow, _runs),
    WatchHooks(),
    DataHooks(),
    ArmHooks(),
    SummaryHooks(_mlflow),
    DeviceHooks(),  # the last one is asked first
)
DISABLE_HOOKS_FOR_PLUGINS = ("kedro-telemetry",)
CONFIG_LOADER_ARGS: dict[str, Any] = {
    "base_env": "base",
    "default_run_env": "local",
    "merge_strategy": {"parameters": "soft", "mlflow": "soft"},
    "config_patterns": {"mlflow": ["mlflow*", "mlflow*/**"]},
}
