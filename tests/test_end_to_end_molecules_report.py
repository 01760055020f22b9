"""`kedro run --pipelines molecules_evaluate` on what the arms of a run have left."""

import json
from pathlib import Path

from kedro_processes import newest, tracked_files
from stored_molecules import ARMS, leave_results

REPORTS = Path("data/08_reporting/molecules_smoke")


def test_the_arms_are_compared_drawn_and_told_to_mlflow(project: Path, kedro_run) -> None:
    expected = leave_results(project)
    done = kedro_run(project, "--pipelines", "molecules_evaluate")
    assert done.returncode == 0, done.stderr
    comparison = json.loads(newest(project / REPORTS / "comparison.json").read_text(encoding="utf-8"))
    assert list(comparison["arms"]) == list(ARMS)
    for arm in ARMS:
        validity = comparison["arms"][arm]["metrics"]["validity"]["value"]
        assert validity == expected["arms"][arm]["metrics"]["validity"]["value"]
    page = (project / REPORTS / "report.html").read_text(encoding="utf-8")
    drawn = {f"{arm}_{what}.svg" for arm in ARMS for what in ("best_before", "best_after", "random_before", "random_after")}
    assert newest(project / REPORTS / "drawings/grpo_best_after.svg").read_text(encoding="utf-8") in page
    assert "the reward is &lt;b&gt;dead&lt;/b&gt;" in page
    said = " ".join(done.stdout.split())
    assert comparison["summary"][0] in said
    assert "Other rules beside the policy of grpo" in said
    assert f"Page {REPORTS}/report.html" in said
    pictures = {"curves.png", "distributions.png", "validity_by_size.png"}
    documents = {"comparison.json", "report.html", "logp_window.json", "learning_curves.json"}
    assert tracked_files(project) >= drawn | pictures | documents
