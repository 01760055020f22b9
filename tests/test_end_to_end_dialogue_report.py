"""`kedro run --pipelines dialogue_evaluate` on what the arms of a run have left."""

import json
from pathlib import Path

from mlflow.tracking import MlflowClient
from stored_replies import ARMS, leave_results


def newest(project: Path, name: str) -> Path:
    return sorted((project / "data/08_reporting/dialogue_smoke" / name).glob(f"*/{name}"))[-1]


def test_the_arms_are_compared_drawn_and_told_to_mlflow(project: Path, kedro_run) -> None:
    expected = leave_results(project)
    done = kedro_run(project, "--pipelines", "dialogue_evaluate")
    assert done.returncode == 0, done.stderr
    comparison = json.loads(newest(project, "comparison.json").read_text(encoding="utf-8"))
    assert comparison | {"commit": "abc"} == expected
    assert list(comparison["arms"]) == list(ARMS)
    page = (project / "data/08_reporting/dialogue_smoke/report.html").read_text(encoding="utf-8")
    assert "the right reply is “a ring”" in page
    assert comparison["verdict"][0] in page
    assert "the reward is &lt;b&gt;dead&lt;/b&gt;" in page
    assert comparison["verdict"][0] in " ".join(done.stdout.split())
    assert logged(project) >= {"comparison.json", "report.html", "scores_by_need.json", "learning_curves.json"}


def logged(project: Path) -> set[str]:
    """The files of all runs of the project's store."""
    client = MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    return {name for run in runs for name in files_of(client, run.info.run_id, "")}


def files_of(client: MlflowClient, run: str, folder: str) -> set[str]:
    found = client.list_artifacts(run, folder)
    deeper = (files_of(client, run, entry.path) for entry in found if entry.is_dir)
    return {Path(entry.path).name for entry in found if not entry.is_dir}.union(*deeper)
