"""`kedro run --pipelines molecules_evaluate` on what the arms of a run have left."""

import json
from pathlib import Path

from mlflow.tracking import MlflowClient
from stored_molecules import ARMS, leave_results

REPORTS = Path("data/08_reporting/molecules_smoke")


def newest(project: Path, name: str) -> Path:
    return sorted((project / REPORTS / name).glob(f"*/{Path(name).name}"))[-1]


def test_the_arms_are_compared_drawn_and_told_to_mlflow(project: Path, kedro_run) -> None:
    expected = leave_results(project)
    done = kedro_run(project, "--pipelines", "molecules_evaluate")
    assert done.returncode == 0, done.stderr
    comparison = json.loads(newest(project, "comparison.json").read_text(encoding="utf-8"))
    assert list(comparison["arms"]) == list(ARMS)
    for arm in ARMS:
        validity = comparison["arms"][arm]["metrics"]["validity"]["value"]
        assert validity == expected["arms"][arm]["metrics"]["validity"]["value"]
    page = (project / REPORTS / "report.html").read_text(encoding="utf-8")
    drawn = {f"{arm}_{what}.svg" for arm in ARMS for what in ("best_before", "best_after", "random_before", "random_after")}
    assert newest(project, "drawings/grpo_best_after.svg").read_text(encoding="utf-8") in page
    assert "the reward is &lt;b&gt;dead&lt;/b&gt;" in page
    said = " ".join(done.stdout.split())
    assert comparison["verdict"][0] in said
    assert "Other rules beside the policy of grpo" in said
    assert f"Page {REPORTS}/report.html" in said
    pictures = {"curves.png", "distributions.png", "validity_by_size.png"}
    assert logged(project) >= drawn | pictures | {"comparison.json", "report.html", "logp_window.json", "learning_curves.json"}


def logged(project: Path) -> set[str]:
    """The files of all runs of the project's store."""
    client = MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    return {name for run in runs for name in files_of(client, run.info.run_id, "")}


def files_of(client: MlflowClient, run: str, folder: str) -> set[str]:
    found = client.list_artifacts(run, folder)
    deeper = (files_of(client, run, entry.path) for entry in found if entry.is_dir)
    return {Path(entry.path).name for entry in found if not entry.is_dir}.union(*deeper)
