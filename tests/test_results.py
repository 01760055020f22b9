"""The tables of results are those of today's defaults, and what writes them does it from one commit, once."""

import json
from pathlib import Path

import pytest
from benchmark_scripts import load_script

ROOT = Path(__file__).resolve().parents[1]
results = load_script("docs/results.py", name="results_script")


@pytest.mark.parametrize("task", list(results.SEEDED))
def test_the_table_is_of_todays_defaults(task: str) -> None:
    file = ROOT / "docs" / "results" / f"{task}.json"
    remedy = f"run: make results ARGS='--tasks {task} --jobs 2', and commit what it writes"
    assert file.is_file(), f"docs/results/{task}.json must be there; {remedy}"
    stored = json.loads(file.read_text(encoding="utf-8"))
    changed = results.changed_since(stored["parameters"], results.decisive_parameters(task, env="base"))
    assert not changed, "the results depend on defaults that have changed since: " + "; ".join(changed) + f"; {remedy}"
    assert stored["digest"] == results.digest_of(stored["parameters"])


def test_the_pages_hold_the_stored_numbers_and_the_readme_one_row_per_task() -> None:
    documents = results.stored(ROOT / "docs" / "results")
    for page in results.PAGES:
        text = page.read_text(encoding="utf-8")
        assert text == results.written(page, text, documents), f"run make results and commit {page.name}"
    rows = results.summary(documents).splitlines()[2:]
    assert [row.split(",")[0] for row in rows] == [f"| {task}" for task in results.SEEDED]
    found = documents[0]["differences"]["grpo"]["auroc"]
    assert f"{found['value']:+.3f} [{found['ci95'][0]:+.3f}, {found['ci95'][1]:+.3f}]" in rows[0]


@pytest.mark.parametrize("task", list(results.SEEDED))
def test_what_a_result_depends_on(task: str) -> None:
    found = results.decisive_parameters(task, env="base")
    assert {
        "threads",
        f"{task}.grpo.algorithm.losses.policy.kind",
        f"{task}.training.batch_size",
        f"{task}.evaluation.resamples",
    } <= set(found)
    assert found["seed"] == 0
    assert not [
        path for path in found if path.endswith((".device", ".micro_batch_size")) or ".loader" in path or ".compare" in path
    ]
    assert results.changed_since(found, dict(found)) == []
    name = f"{task}.training.batch_size"
    assert results.changed_since(found, found | {name: 7}) == [f"{name}: {found[name]} in the table, 7 today"]


def comparison(value: float, commit: str) -> dict:
    def entry(number: float) -> dict:
        return {"value": number, "ci95": [number - 0.2, number + 0.2], "se": 0.1, "n": 9}

    arms = {"supervised": 1.0, "grpo": value}
    return {
        **{"task": "dialogue", "control": "supervised", "commit": commit, "baseline_arm": "grpo"},
        "n": {"examples": 9, "clusters": 3, "cluster": "subject_id"},
        "arms": {arm: {"metrics": {"reward": entry(number), "f1": entry(0.5)}} for arm, number in arms.items()},
        "differences": {"grpo": {"reward": entry(value - 1), "f1": entry(0.0)}},
        "policy_gain": {"grpo": {"reward": entry(0.4)}},
        "baselines": {"greedy": {"metrics": {"reward": {"value": None, "ci95": None, "n": 0, "reason": "undefined: none"}}}},
    }


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were started; each leaves a comparison whose reward is 2 + its seed, with the commit of the code."""
    started: list[list[str]] = []

    def run(command: list[str], **_: object) -> object:
        params = dict(pair.split("=") for pair in command[command.index("--params") + 1].split(","))
        started.append(command)
        file = Path(params["data"]) / "08_reporting" / "dialogue" / "comparison.json" / "1" / "comparison.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(comparison(2.0 + int(params["seed"]), "c0ffee")))
        return type("Done", (), {"returncode": 0})()

    monkeypatch.setattr(results, "read_code", lambda: results.Code("c0ffee", ""))
    monkeypatch.setattr(results.subprocess, "run", run)
    return started


def test_a_finished_seed_is_kept_and_the_mean_is_that_of_the_seeds(trained: list[list[str]], tmp_path: Path) -> None:
    arguments = ["--env", "smoke", "--tasks", "dialogue", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    assert results.main([*arguments, "--seeds", "0", "1"]) == 0
    assert results.main([*arguments, "--seeds", "0", "1", "2", "--jobs", "2"]) == 0
    assert len(trained) == 3
    assert "dialogue.personas.seed=2" in trained[2][-1]
    found = json.loads((tmp_path / "out" / "dialogue.json").read_text())
    difference = found["differences"]["grpo"]["reward"]
    assert (difference["value"], difference["seeds"], found["commit"]) == (2.0, [1.0, 2.0, 3.0], "c0ffee")
    # V = 1/3 + 0.01/3, 8 degrees of freedom behind the clusters: df 2.04, t 4.22
    assert difference["ci95"] == pytest.approx([2 - 2.452, 2 + 2.452], abs=5e-3)
    text = results.tables(found)
    assert "| Reward | 1.000 [" in text
    assert "+1.000 +2.000 +3.000" in text
    assert "greedy -" in text


def test_other_code_or_parameters_train_again(trained: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = results.Code("c0ffee", "")
    for digest in ("one", "one", "two"):
        results.train("dialogue", 0, env="smoke", folder=tmp_path / "run", code=code, digest=digest)
    assert len(trained) == 2
    monkeypatch.setattr(results, "read_code", lambda: results.Code("c0ffee", "edited"))
    with pytest.raises(RuntimeError, match=r"src/, conf/ and the commit must stay the same while make results runs"):
        results.train("dialogue", 0, env="smoke", folder=tmp_path / "run", code=code, digest="two")


def test_another_environment_does_not_write_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert results.main(["--env", "smoke"]) == 2
    assert "--out must name a folder where --env is smoke" in capsys.readouterr().err
