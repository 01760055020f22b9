"""Report a Kedro run to MLflow: the parent run, the arms' child runs, and what each of them logs."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from kedro.io import DataCatalog
from kedro.pipeline import Pipeline
from kedro.pipeline.node import Node

from grpo_pipeline.pipelines.experiments.trials.records import TrialRecord
from grpo_pipeline.runs.code_version import source_tags
from grpo_pipeline.runs.process import process_tags
from grpo_pipeline.statistics.answer import Answer
from grpo_pipeline.tasks import TASKS, find_task
from grpo_pipeline.tasks.frames import frame_table
from grpo_pipeline.tracking.addresses import redact
from grpo_pipeline.tracking.arm_runs import (
    Arm,
    Key,
    dataset_key,
    end_statuses,
    find_arms,
    is_stage,
    node_key,
    status_of,
)
from grpo_pipeline.tracking.catalog_text import catalog_text
from grpo_pipeline.tracking.comparison_scores import (
    arm_scores,
    comparison_table,
    parent_scores,
    shown_metrics,
)
from grpo_pipeline.tracking.dataset_files import dataset_path, matches
from grpo_pipeline.tracking.flat_parameters import flatten, sanitise, to_plain
from grpo_pipeline.tracking.frame_pictures import draw_frames
from grpo_pipeline.tracking.logged_parameters import (
    arm_parameters,
    parameters_read,
    resolved_sections,
    run_parameters,
)
from grpo_pipeline.tracking.metric_points import chosen_metrics
from grpo_pipeline.tracking.mlflow_config import MlflowConfig, artifact_location
from grpo_pipeline.tracking.served import KeptModel, can_be_served, described
from grpo_pipeline.tracking.store import lost_reason, root_cause, tracking_uri, unusable_reason
from grpo_pipeline.tracking.trial_runs import ended_run, grid_scores, grid_table, headline_of_folds

logger = logging.getLogger(__name__)

GRIDS = ("compare", "cross_validation")

RUN_ID = "mlflow_run_id"  # under this name a checkpoint remembers its child run

PARENT = ""


def _now() -> int:
    """Return the time in milliseconds."""
    return int(time.time() * 1000)


class Tracker:
    """Reports a Kedro run to MLflow; without a store that answers, it does nothing and training continues.

    Attributes:
        uri: address of the store.
        experiment: name of the experiment.
        off: the reason why nothing is logged, or None.
    """

    def __init__(
        self, config: MlflowConfig, *, project: Path, parameters: Mapping[str, Any]
    ) -> None:
        """Prepare the tracking; no run is opened yet.

        Args:
            config: content of mlflow.yml.
            project: folder of the project.
            parameters: all parameters of the run, resolved.
        """
        self.uri = tracking_uri(config, project, environ=os.environ)
        self.experiment = config.tracking.experiment.name
        self.off: str | None = None
        self._config, self._project, self._parameters = config, project, parameters
        self._arms: dict[Key, Arm] = {}
        self._current: Key | None = None
        self._inputs: set[tuple[str, str]] = set()
        self._kept: dict[Key, dict[str, KeptModel]] = {}
        self._frames: dict[Key, Mapping[str, np.ndarray]] = {}
        self._digests: dict[str, str] = {}
        self._flat, self._changed = dict[str, str](), dict[str, str]()
        self._defaults: Mapping[str, Any] = {}
        self._resolved: dict[tuple[str, str], dict[str, str]] = {}
        self._tags: dict[str, str] = {}
        self._catalog: DataCatalog | None = None
        self._runs: Any = None
        self._name, self._told = "", list[Answer]()
        self._lock, self._is_over = threading.RLock(), False

    @property
    def run_ids(self) -> dict[str, str]:
        """Map the runs of this command by name to their ids, the parent under ``""``."""
        return (
            {PARENT: self._runs.parent, **self._runs.children}
            if self._runs and not self.off
            else {}
        )

    def start(
        self,
        pipeline: Pipeline,
        catalog: DataCatalog,
        *,
        names: list[str],
        tags: Mapping[str, str],
        given: Mapping[str, Any],
        defaults: Mapping[str, Any],
    ) -> None:
        """Open the parent run, and log parameters, configuration and the code's version.

        Args:
            pipeline: that runs.
            catalog: its datasets.
            names: of the pipelines that were asked for.
            tags: of the parent; ``env`` is that of its children, too.
            given: the parameters of the run as the configuration has them.
            defaults: those of conf/base alone.
        """
        self._catalog = catalog
        self._arms = find_arms(pipeline.nodes, resume=self._parameters.get("resume") == "auto")
        # A box is ``<task>-<part>``, and below it are namespaces of its own (``pipelines.boxes``).
        boxes = (n.namespace.partition(".")[0] for n in pipeline.nodes if n.namespace)
        tasks = sorted({box.partition("-")[0] for box in boxes})
        self._flat, self._defaults = flatten(given), defaults
        read = parameters_read(pipeline, tasks, is_grid=not self._arms)
        self._changed = run_parameters(self._flat, flatten(defaults), read=read)
        self._tags = {"seed": str(self._parameters["seed"])} if "seed" in self._parameters else {}
        self._tags |= {"env": tags["env"]} if "env" in tags else {}
        tags = {"task": ",".join(tasks), **self._tags, **tags}
        if set(names) <= set(self._config.tracking.disable_tracking.pipelines):
            self.off = "not tracked, by mlflow.yml"
        elif reason := unusable_reason(self.uri):
            self._lose(reason)
        else:
            self._open(" ".join(names), tags=tags)

    def log_config(self, conf_catalog: Mapping[str, Any]) -> None:
        """Log the changed parameters, and as files all parameters and the catalogue's configuration."""
        if self._runs:
            self._log_params(PARENT, self._changed)
            self._runs.log_text(
                PARENT,
                yaml.safe_dump(to_plain(self._parameters), sort_keys=False, allow_unicode=True),
                "config/parameters.yml",
            )
            self._runs.log_text(PARENT, catalog_text(conf_catalog), "config/catalog.yml")

    def node_started(self, node: Node) -> None:
        """Open the child run of the node's arm, unless a coming checkpoint may name the run to resume.

        Kedro runs the first nodes of all arms before it trains any, so the run of a trained arm begins with its training.
        """
        self._current = key = node_key(node)
        if key in self._arms:
            arm = self._arms[key]
            arm.nodes_left -= 1
            if not arm.awaits_checkpoint and arm.trainer in ("", node.name):
                self._open_child(arm)

    def node_ended(self, node: Node) -> None:
        """Record the end of an arm that is not trained here; a trained arm ends with its last step, see ``saved``."""
        arm = self._arms.get(node_key(node) or ("", ""))
        if arm and not arm.trainer:
            arm.ended = _now()

    def loaded(self, name: str, data: Any, node: Node) -> None:
        """Take the child run's id from a checkpoint, and log the digest of input data."""
        arm = self._arms.get(dataset_key(name) or ("", ""))
        if arm and name == f"{arm.label}.resume_from" and arm.awaits_checkpoint:
            arm.resumed = str((getattr(data, "extra", None) or {}).get(RUN_ID, ""))
            arm.awaits_checkpoint = False
            # Otherwise another node reads it before the arm is trained.
            if arm.trainer in ("", node.name):
                self._open_child(arm)
        self._log_input(name, data)

    def saving(self, name: str, data: Any) -> None:
        """Store the child run's id in a checkpoint."""
        arm = self._arms.get(dataset_key(name) or ("", ""))
        extra = getattr(data, "extra", None)
        if (
            arm
            and name == f"{arm.label}.checkpoint"
            and isinstance(extra, MutableMapping)
            and (run := self._child_id(arm) or arm.resumed)
        ):
            extra[RUN_ID] = run

    def saved(self, name: str, data: Any) -> None:
        """Log a saved dataset: metric rows, a comparison, a digest, a file, a table; a failure to log ends no run."""
        if self._runs is None or self._runs.is_lost:
            return
        try:
            self._log_saved(name, data)
        except Exception as error:  # noqa: BLE001 - a result is on disk, whatever cannot be made of it for MLflow
            logger.warning(
                "MLflow is not told of %s (%s: %s); the run goes on",
                name,
                type(error).__name__,
                root_cause(error),
            )

    def _log_saved(self, name: str, data: Any) -> None:
        arm = self._arms.get(dataset_key(name) or ("", ""))
        if arm and name in (f"{arm.label}.metric_rows", f"{arm.label}.checkpoint") and data:
            # Not after its node: Kedro reports the end of a generator node before the generator begins.
            arm.ended = _now()
        if name.endswith(".metric_rows") and data and arm:
            self._with_run(arm, partial(self._runs.log_rows, rows=self._shown(data)))
        elif name.endswith(".comparison") and isinstance(data, Mapping):
            self._log_comparison(data)
        elif name.endswith(".answer") and isinstance(data, Mapping):
            self._tell(Answer.model_validate(data), is_grid=name.split(".")[-2] in GRIDS)
        elif isinstance(data, TrialRecord):
            self._log_trial(data)
        elif name.endswith(".compare.result"):
            self._log_grid(data)
        elif name.endswith(".cross_validation.result"):
            self._log_grid(headline_of_folds(data))
        elif arm and name == f"{arm.label}.frames" and data:
            self._frames[arm.task, arm.name] = data
        self._log_input(name, data)
        self._log_file(name, data, arm=arm)

    def finish(self, error: BaseException | None) -> None:
        """End all runs: FINISHED, FAILED, or KILLED for errors that are no ``Exception``; a second call does nothing."""
        if self._runs is None or self._is_over:
            return
        self._is_over = True
        for arm in self._arms.values():
            if arm.pending and error is None:
                self._open_child(arm)
            if arm.resumed and arm.is_open and (rows := self._rows_on_disk(arm)):
                self._runs.log_rows(arm.label, self._shown(rows))
        if not isinstance(error, SystemExit | KeyboardInterrupt):
            self._log_at_end()
        statuses = end_statuses(self._arms, current=self._current, error=error) | {
            PARENT: status_of(error)
        }
        reason = {
            "error.type": type(error).__name__,
            "error.message": str(error) or type(error).__name__,
        }
        for run in (run for run, status in statuses.items() if status != "FINISHED"):
            self._runs.set_tags(run, reason, is_last=True)
        # A sender of SIGTERM kills soon after; a person who pressed Ctrl-C can press it again.
        patience = (
            {"seconds": self._config.sigterm_grace_seconds} if isinstance(error, SystemExit) else {}
        )
        ends = {
            arm.label: arm.ended
            for arm in self._arms.values()
            if arm.is_open and arm.ended is not None
        }
        self._runs.end(statuses, ends=ends, **patience)

    def _open(self, names: str, *, tags: Mapping[str, str]) -> None:
        # Imports MLflow: a second that only tracked runs pay.
        from grpo_pipeline.tracking.runs import Runs

        runs = Runs(
            self.uri,
            experiment=self.experiment,
            project=self._project,
            on_lost=lambda error: self._lose(lost_reason(error)),
        )
        tags = {**source_tags(self._project, sys.argv), **tags}
        location = artifact_location(self._config, self._project, uri=self.uri)
        self._name = self._config.tracking.run.name or names
        runs.open(self._name, tags=tags, artifacts=location)
        self._runs = runs
        told = yaml.safe_dump({**process_tags(), **tags}, sort_keys=False, allow_unicode=True)
        runs.log_text(PARENT, told, "config/run.yml")

    def _open_child(self, arm: Arm) -> None:
        with self._lock:
            if self._runs is None or self._runs.is_lost or arm.is_open:
                return
            tags = {"task": arm.task, "arm": arm.name, **self._tags}
            self._runs.open_child(arm.label, tags=tags, resumed=arm.resumed or None)
            arm.is_open = True
            arms = [name for task, name in self._arms if task == arm.task]
            self._log_params(
                arm.label,
                arm_parameters(self._flat, self._changed, task=arm.task, arm=arm.name, arms=arms),
            )
            for action in arm.pending:
                action(arm.label)
            arm.pending.clear()

    def _child_id(self, arm: Arm) -> str:
        return self._runs.child_id(arm.label) if self._runs and arm.is_open else ""

    def _with_run(self, arm: Arm | None, action: Callable[[str], None]) -> None:
        """Apply an action to the arm's child run, later if it is not open yet; without an arm, to the parent."""
        if arm is None:
            action(PARENT)
        elif arm.is_open:
            action(arm.label)
        else:
            arm.pending.append(action)

    def _log_params(self, run: str, parameters: Mapping[str, str]) -> None:
        params = self._config.tracking.params
        named = {name.replace(".", params.dict_params.sep): one for name, one in parameters.items()}
        self._runs.log_params(run, named, tag_long=params.long_params_strategy == "tag")

    def _shown(self, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Select the metrics of training rows that are shown as curves; the file of the rows has all of them."""
        return [chosen_metrics(row, self._config.metrics) for row in rows]

    def _rows_on_disk(self, arm: Arm) -> list[dict[str, Any]]:
        """Read all rows of a resumed or finished arm from disk: MLflow may lack some after a kill.

        At the end of the command: then the file holds what is there to stay.
        """
        name = f"{arm.label}.metric_rows"
        if self._catalog is None or name not in self._catalog or not self._catalog.exists(name):
            return []
        return [
            {str(key): value for key, value in row.items()}
            for row in self._catalog.load(name).to_dict("records")
        ]

    def _log_comparison(self, comparison: Mapping[str, Any]) -> None:
        task = str(comparison["task"])
        prefix = self._prefix(task)
        names = shown_metrics(comparison, tasks=len({task, *(known for known, _ in self._arms)}))
        self._runs.log_scores(PARENT, parent_scores(comparison, names, prefix=prefix))
        table = comparison_table(comparison)
        self._runs.log_table(PARENT, table, f"tables/{prefix}comparison.json")
        for name, scores in arm_scores(comparison, names).items():
            key = (task, name)
            arm = self._arms.setdefault(key, Arm(*key))
            if not arm.awaits_checkpoint:
                self._open_child(arm)
            model = self._kept.get(key, {}).get("model")
            more = {"model": model.name} if model else {}
            self._with_run(arm, partial(self._runs.log_scores, scores=scores, **more))

    def _prefix(self, task: str) -> str:
        """Build the prefix of a task's metrics, if several tasks share the parent."""
        return f"{task}." if {known for known, _ in self._arms} - {task} else ""

    def _log_grid(self, document: Mapping[str, Any]) -> None:
        measured = (n for found in document["arms"].values() for n in found["metrics"])
        names = document.get("primary_metrics") or list(dict.fromkeys(measured))
        self._runs.log_scores(PARENT, grid_scores(document, names))
        self._runs.log_table(PARENT, grid_table(document), "tables/comparison.json")

    def _log_trial(self, record: TrialRecord) -> None:
        header = record.header
        paths = (f"{header.task}.{grid}.arms.{header.arm}.base" for grid in GRIDS)
        base = next((self._flat[path] for path in paths if path in self._flat), header.arm)
        headline = (
            find_task(header.task).build_suite({}).for_names(header.metrics).headline
            if header.task in TASKS
            else ()
        )
        ended = ended_run(
            record,
            defaults=self._trial_defaults(header.task, base),
            env=self._tags.get("env", ""),
            headline=headline,
            patterns=self._config.metrics,
        )
        self._runs.log_ended(ended)

    def _trial_defaults(self, task: str, base: str) -> dict[str, str]:
        """Complete the sections of conf/base for a trial of this base, in the way of the trial's own."""
        if (task, base) not in self._resolved:
            self._resolved[task, base] = resolved_sections(self._defaults.get(task, {}), task, base)
        return self._resolved[task, base]

    def _keep_model(self, arm: Arm, kind: str, path: Path) -> None:
        """Announce an arm's models; best weights that equal the last ones are no second model."""
        kept = KeptModel.of(arm.task, arm.name, kind, path=path, described=described(path))
        found = self._kept.setdefault((arm.task, arm.name), {})
        found[kind] = kept
        if "model" not in found:
            return
        for one in [one for one in found.values() if one is kept or kind == "model"]:
            if one.kind != "model" and one.step == found["model"].step:
                del found[one.kind]
                continue
            tags = self._model_tags(one)
            self._with_run(arm, partial(self._runs.open_model, kept=one, tags=tags))
            if one.metric:
                self._with_run(
                    arm,
                    partial(
                        self._runs.log_scores,
                        scores={f"validation/{one.metric}": one.value},
                        model=one.name,
                        step=one.step,
                    ),
                )

    def _model_tags(self, kept: KeptModel) -> dict[str, str]:
        own = {"task": kept.task, "arm": kept.arm, "kept": kept.kind}
        return {**own, **self._tags, "data": self._digests.get(kept.task, "")}

    def _log_at_end(self) -> None:
        """Log entries that import much or are complete only after the last node: the models, and the files of the rows."""
        for arm in self._arms.values():
            rows = self._path(f"{arm.label}.metric_rows") if arm.trainer and arm.is_open else None
            if rows is not None and rows.is_file():
                self._runs.log_file(arm.label, path=rows)
        for key, frames in self._frames.items():
            table = frame_table(frames)
            if len(table):
                self._with_run(
                    self._arms[key],
                    partial(self._runs.log_table, table=table, file="tables/samples.json"),
                )
            self._with_run(
                self._arms[key],
                partial(
                    self._runs.log_pictures,
                    draw=partial(draw_frames, frames, task=key[0], arm=key[1]),
                ),
            )
        metrics: dict[str, str] = {}
        for key, found in self._kept.items():
            for kept in found.values() if "model" in found else ():
                metrics |= {kept.task: kept.metric} if kept.metric else {}
                tags = self._model_tags(kept)
                self._with_run(
                    self._arms[key], partial(self._runs.close_model, kept=kept, tags=tags)
                )
        for task, metric in metrics.items():
            self._runs.set_champion(task, metric=metric, data=self._digests.get(task, ""))

    def _tell(self, answer: Answer, *, is_grid: bool) -> None:
        """Name and describe the parent by the answers of its tasks; for a grid, log the primary metric."""
        if self._runs is None:
            return
        self._told.append(answer)
        # The list of runs shows the first 20 letters of a name.
        command = answer.task if self._name == "__default__" else self._name
        values = "; ".join(one.short for one in self._told)
        seeds = (
            f"seed {answer.seeds[0]}" if len(answer.seeds) == 1 else f"{len(answer.seeds)} seeds"
        )
        notes = "\n\n".join(one.markdown for one in self._told)
        primary = {
            sanitise(f"{where}/{self._prefix(one.task)}{one.primary.metric}"): value
            for one in self._told
            for where, value in (
                (one.split, one.primary.after),
                ("difference", one.primary.difference),
            )
        }
        tags = {
            "verdict": ", ".join(one.verdict for one in self._told),
            "columns": ",".join(primary),
        }
        self._runs.describe(
            PARENT, f"{command} {values} · {seeds}", {**tags, "mlflow.note.content": notes}
        )
        if is_grid:
            known = {name: value for name, value in primary.items() if value is not None}
            self._runs.log_scores(PARENT, known)

    def _log_input(self, name: str, data: Any) -> None:
        """Log the digest of input data to the parent and to each arm of its task, which may read it through other datasets."""
        digest = getattr(data, "digest", None)
        if (
            self._runs is None
            or not isinstance(digest, str)
            or not matches(name, self._config.inputs)
            or ".read." in name  # the same data, handed from one box of the graph to another
        ):
            return
        source = str(self._path(name) or "memory")
        task = name.partition(".")[0]
        self._digests[task] = digest
        for owner in (None, *(arm for arm in self._arms.values() if arm.task == task)):
            if (seen := (owner.label if owner else "", name)) not in self._inputs:
                self._inputs.add(seen)
                self._with_run(
                    owner, partial(self._runs.log_input, name=name, digest=digest, source=source)
                )

    def _log_file(self, name: str, data: Any, *, arm: Arm | None) -> None:
        if matches(name, self._config.artifacts) and (path := self._path(name)) and path.exists():
            self._with_run(arm, partial(self._runs.log_file, path=path))
        if matches(name, self._config.models) and arm and (path := self._path(name)):
            if can_be_served(path) and not is_stage(arm):
                self._keep_model(arm, name.rpartition(".")[2], path)
            elif path.exists():
                self._with_run(arm, partial(self._runs.log_file, path=path))
        if matches(name, self._config.tables) and isinstance(data, pd.DataFrame):
            self._with_run(
                arm,
                partial(
                    self._runs.log_table, table=data, file=f"tables/{name.rpartition('.')[2]}.json"
                ),
            )

    def _path(self, name: str) -> Path | None:
        return dataset_path(self._catalog.get(name)) if self._catalog is not None else None

    def _lose(self, reason: str) -> None:
        self.off = reason
        logger.warning(
            "MLflow at %s %s; the run goes on, metrics are kept in %s",
            redact(self.uri),
            reason,
            self._metric_folder(),
        )

    def _metric_folder(self) -> str:
        """Find the folder of the metric rows, relative to the project if it lies inside."""
        paths = [
            path for arm in self._arms.values() if (path := self._path(f"{arm.label}.metric_rows"))
        ]
        folder = (
            Path(os.path.commonpath([path.parent for path in paths]))
            if paths
            else Path("data/07_model_output")
        )
        return str(
            folder.relative_to(self._project) if folder.is_relative_to(self._project) else folder
        )
