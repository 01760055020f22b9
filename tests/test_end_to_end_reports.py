"""`kedro run --pipelines <task>_evaluate` on what the arms of a run have left."""

import json
import re
from pathlib import Path

import pytest
import stored_molecules
import stored_replies
from browser import looks_right
from kedro_processes import newest, tracked_files
from told_answers import same_everywhere, unmarked

STORED = {"dialogue": stored_replies, "molecules": stored_molecules}
DRAWN = {
    f"{arm}_{what}.svg"
    for arm in stored_molecules.ARMS
    for what in ("best_before", "best_after", "random_before", "random_after")
}
TRACKED = {
    "dialogue": {"0_reward.svg", "1_f1.svg"},
    "molecules": {"logp_window.json", "distributions.png", "validity_by_size.png", *DRAWN},
}


@pytest.mark.parametrize("task", STORED)
def test_the_arms_are_compared_drawn_and_told_to_mlflow(task: str, project: Path, kedro_run, tmp_path: Path) -> None:
    expected = STORED[task].leave_results(project)
    with_details = task == "molecules"
    done = kedro_run(project, "--pipelines", f"{task}_evaluate", *(["--params", "details=true"] if with_details else []))
    assert done.returncode == 0, done.stderr
    reports = Path(f"data/08_reporting/{task}_smoke")
    comparison = json.loads(newest(project / reports / "comparison.json").read_text(encoding="utf-8"))
    assert list(comparison["arms"]) == list(STORED[task].ARMS)
    page = unmarked((project / reports / "report.html").read_text(encoding="utf-8"))
    said = " ".join(done.stdout.split())
    assert "the reward is &lt;b&gt;dead&lt;/b&gt;" in page
    assert (comparison["summary"][0] in said) == with_details
    same_everywhere(project / reports, "report.html", printed=done.stdout)
    looks_right(project / reports / "report.html", tmp_path)
    assert f"Page {reports}/report.html" in said
    assert tracked_files(project) >= {"comparison.json", "report.html", "00_reward_mean.svg"} | TRACKED[task]
    if task == "dialogue":
        assert re.fullmatch("[0-9a-f]{12}", comparison["run"])
        # What a run knows beside the predictions: what training took, and what is the same everywhere.
        assert comparison.pop("training").keys() == comparison.pop("sameness").keys() == {*STORED[task].ARMS}
        first = comparison["summary"][0]
        assert comparison | {"commit": "abc", "run": "", "summary": []} == expected | {"run": "", "summary": []}
        assert "the right reply is “a ring”" in page
        assert first in page
    else:
        validity = [
            {arm: one["arms"][arm]["metrics"]["validity"]["value"] for arm in one["arms"]} for one in (comparison, expected)
        ]
        assert validity[0] == validity[1]
        assert newest(project / reports / "drawings/grpo_best_after.svg").read_text(encoding="utf-8") in page
        assert "Other molecules; policy is that of grpo" in said
