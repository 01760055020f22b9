"""`kedro run --pipelines dialogue_evaluate` on what the arms of a run have left."""

import json
import re
from pathlib import Path

from kedro_processes import newest, tracked_files
from stored_replies import ARMS, leave_results

REPORTS = Path("data/08_reporting/dialogue_smoke")


def test_the_arms_are_compared_drawn_and_told_to_mlflow(project: Path, kedro_run) -> None:
    expected = leave_results(project)
    done = kedro_run(project, "--pipelines", "dialogue_evaluate")
    assert done.returncode == 0, done.stderr
    comparison = json.loads(newest(project / REPORTS / "comparison.json").read_text(encoding="utf-8"))
    assert re.fullmatch("[0-9a-f]{12}", comparison.pop("run"))
    assert comparison | {"commit": "abc", "run": ""} == expected
    assert list(comparison["arms"]) == list(ARMS)
    page = (project / REPORTS / "report.html").read_text(encoding="utf-8")
    assert "the right reply is “a ring”" in page
    assert comparison["summary"][0] in page
    assert "the reward is &lt;b&gt;dead&lt;/b&gt;" in page
    assert comparison["summary"][0] in " ".join(done.stdout.split())
    assert tracked_files(project) >= {"comparison.json", "report.html", "scores_by_need.json", "learning_curves.json"}
