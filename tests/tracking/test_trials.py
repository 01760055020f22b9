import pandas as pd

from grpo_pipeline.pipelines.experiments.trials.records import TrialHeader, TrialRecord
from grpo_pipeline.tracking.logged_parameters import resolved_sections
from grpo_pipeline.tracking.trial_runs import ended_run, grid_scores, grid_table, headline_of_folds

PARAMETERS = {
    "algorithm": {"losses": {"policy": {"kind": "grpo"}, "kl": {"weight": {"start": 0.1}}}},
    "training": {"epochs": 2, "batch_size": 4}, "model": {"points": 3},
}  # fmt: skip
METRICS = {"odd name?": 0.5, "auroc": 0.75, "brier": 0.125}
HEADER = TrialHeader("no_kl.seed1.fold2", "attention", "no_kl", 1, "2", "finished", 2.5, "abc", PARAMETERS, METRICS)
ROWS = ({"step": 0, "split": "train", "reward/mean": 0.5, "lr": 0.25},)
DEFAULTS = {
    "algorithm.losses.policy.kind": "grpo", "algorithm.losses.kl.weight.start": "0.2", "training.epochs": "2",
    "training.batch_size": "8", "model.points": "3",
}  # fmt: skip
HEADLINE = ("auroc", "absent", "odd name?")
HOW = {"defaults": DEFAULTS, "env": "smoke", "headline": HEADLINE, "patterns": ("reward/*",)}


def test_a_cell_has_the_names_of_an_ordinary_arm():
    """Its parameters are those that are not the defaults of the arm that it goes out from; its metrics the few of that arm."""
    run = ended_run(TrialRecord(HEADER, pd.DataFrame(), ROWS), **HOW)
    assert (run.name, run.status, run.seconds) == ("no_kl.seed1.fold2 · auroc 0.75", "FINISHED", 2.5)
    assert run.rows == ({"step": 0, "split": "train", "reward/mean": 0.5},)
    assert run.params == {"attention.arm.algorithm.losses.kl.weight.start": "0.1", "attention.training.batch_size": "4"}
    said = "**no_kl**, seed 1, fold 2: auroc 0.750, odd name? 0.500"
    assert run.tags == {
        "task": "attention", "arm": "no_kl", "seed": "1", "env": "smoke", "trial.digest": "abc", "fold": "2",
        "mlflow.note.content": said,
    }  # fmt: skip
    assert run.scores == {"test/auroc": 0.75, "test/odd name_": 0.5}


def test_the_defaults_of_a_trial_are_as_complete_as_its_own_sections():
    """A schedule in short is the same schedule in long; what a model fills in is no difference."""
    section = {
        "training": {"epochs": 3}, "phantom": {"no": "such field"},
        "base": {"algorithm": {"losses": {"policy": {"kind": "grpo"}}}, "masking": {"patch": 1}},
    }  # fmt: skip
    found = resolved_sections(section, "attention", "base")
    assert found == {}  # neither is complete enough for its model
    from tiny_attention import algorithm_params, training_params

    given = {"training": training_params().model_dump(), "base": {"algorithm": algorithm_params().model_dump()}}
    short = {"kind": "constant", "start": 0.5, "end": 0.5, "warmup_steps": 0}
    given["base"]["algorithm"]["losses"]["kl"]["weight"] = 0.5
    found = resolved_sections(given, "attention", "base")
    assert {path.rpartition(".")[2]: found[path] for path in found if path.startswith("algorithm.losses.kl.weight.")} == {
        name: str(value) for name, value in short.items()
    }
    assert found["training.batch_size"] == str(training_params().batch_size)
    assert resolved_sections(given, "no such task", "base") == {}


def test_a_failed_cell_says_why():
    header = TrialHeader("a.seed0", "attention", "a", 0, None, "failed", 0.5, "abc", {}, reason="loss must be finite")
    run = ended_run(TrialRecord(header, traceback="Traceback"), **HOW)
    assert (run.name, run.status, run.scores) == ("a.seed0", "FAILED", {})
    assert run.tags["error.message"] == "loss must be finite"
    assert run.tags["mlflow.note.content"] == "**a**, seed 0: loss must be finite"
    assert "fold" not in run.tags


ENTRY = {"value": 0.5, "ci95": [0.25, 0.75]}
NOTHING = {"value": None, "ci95": None, "reason": "none"}
GRID = {
    "arms": {"grpo": {"metrics": {"auroc": ENTRY, "lesion_hit": NOTHING}}},
    "differences": {"grpo": {"auroc": ENTRY | {"p_holm": 0.125}, "brier": ENTRY}},
}


def test_a_grid_shows_its_primary_metrics_and_no_more_than_a_page_holds():
    assert grid_scores(GRID, ["auroc"]) == {"mean/grpo/auroc": 0.5, "difference/grpo/auroc": 0.5}
    assert grid_scores(GRID, ["lesion_hit", "brier"]) == {"difference/grpo/brier": 0.5}
    many = {"arms": {f"a{n}": {"metrics": {"auroc": ENTRY}} for n in range(30)}, "differences": {}}
    assert len(grid_scores(many, ["auroc"])) == 18


def test_a_grid_is_a_table_with_intervals_and_corrected_p_values():
    table = grid_table(GRID)
    assert list(table) == ["what", "of", "metric", "value", "ci_low", "ci_high", "p_holm", "reason"]
    rows = [[None if value != value else value for value in row] for row in table.itertuples(index=False)]
    assert rows == [
        ["mean over trials", "grpo", "auroc", 0.5, 0.25, 0.75, None, None],
        ["mean over trials", "grpo", "lesion_hit", None, None, None, None, "none"],
        ["difference to the control", "grpo", "auroc", 0.5, 0.25, 0.75, 0.125, None],
        ["difference to the control", "grpo", "brier", 0.5, 0.25, 0.75, None, None],
    ]


def test_of_folds_the_headline_is_shown():
    kinds = {"pooled": ENTRY, "mean": ENTRY | {"value": 0.9}}
    document = {"headline": "pooled", "arms": {"a": {"metrics": {"auroc": kinds}}}, "differences": {"a": {"auroc": kinds}}}
    found = headline_of_folds(document)
    assert grid_scores(found, ["auroc"]) == {"mean/a/auroc": 0.5, "difference/a/auroc": 0.5}
