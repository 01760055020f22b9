import pandas as pd

from grpo_pipeline.pipelines.experiments.trials.records import TrialHeader, TrialRecord
from grpo_pipeline.tracking.metrics import ended_run, grid_scores

PARAMETERS = {"algorithm": {"name": "grpo", "kl_weight": {"start": 0.1}}, "training": {"epochs": 2}, "model": {"points": 3}}
HEADER = TrialHeader(
    "grpo.seed1.fold2", "attention", "grpo", 1, "2", "finished", 2.5, "abc", PARAMETERS, {"auroc": 0.75, "odd name?": 0.5}
)
ROWS = ({"step": 0, "split": "train", "reward/mean": 0.5},)


def test_a_cell_has_the_names_of_an_ordinary_arm():
    run = ended_run(TrialRecord(HEADER, pd.DataFrame(), ROWS), sep=".")
    assert (run.name, run.status, run.seconds, run.rows) == ("grpo.seed1.fold2", "FINISHED", 2.5, ROWS)
    assert run.params == {
        "seed": "1",
        "attention.arm.algorithm.name": "grpo",
        "attention.arm.algorithm.kl_weight.start": "0.1",
        "attention.training.epochs": "2",
        "attention.model.points": "3",
    }
    assert run.tags == {"task": "attention", "arm": "grpo", "seed": "1", "trial.digest": "abc", "fold": "2"}
    assert run.scores == {"test/auroc": 0.75, "test/odd name_": 0.5, "trial/seconds": 2.5}


def test_a_failed_cell_says_why():
    header = TrialHeader("a.seed0", "attention", "a", 0, None, "failed", 0.5, "abc", {}, reason="loss must be finite")
    run = ended_run(TrialRecord(header, traceback="Traceback"), sep=".")
    assert run.status == "FAILED"
    assert run.tags["error.message"] == "loss must be finite"
    assert "fold" not in run.tags


def test_the_grid_is_logged_with_intervals_and_without_what_is_undefined():
    entry = {"value": 0.5, "ci95": [0.25, 0.75]}
    nothing = {"value": None, "ci95": None, "reason": "none"}
    document = {
        "arms": {"grpo": {"metrics": {"auroc": entry, "lesion_hit": nothing}}},
        "differences": {"grpo": {"auroc": entry | {"p_holm": 0.125}, "brier": entry}},
    }
    ends = {"_ci_low": 0.25, "_ci_high": 0.75}
    assert grid_scores(document) == {
        "mean/grpo/auroc": 0.5, **{f"mean/grpo/auroc{name}": value for name, value in ends.items()},
        "difference/grpo/auroc": 0.5, **{f"difference/grpo/auroc{name}": value for name, value in ends.items()},
        "difference/grpo/auroc_p_holm": 0.125,
        "difference/grpo/brier": 0.5, **{f"difference/grpo/brier{name}": value for name, value in ends.items()},
    }  # fmt: skip
