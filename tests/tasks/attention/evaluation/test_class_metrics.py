import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    cohen_kappa_score,
    hamming_loss,
    roc_auc_score,
)
from tiny_rows import NAN, ROWS

from grpo_pipeline.tasks.attention.evaluation.metrics import METRICS, build_suite


@pytest.mark.parametrize("ordinal", [False, True])
def test_classes_are_scored_as_scikit_learn_scores_them(ordinal):
    rng, names = np.random.default_rng(5), ["normal", "benign", "malignant"]
    n = 80
    right = rng.integers(0, 3, n)
    probs = rng.dirichlet(np.ones(3), n) + 0.6 * np.eye(3)[right]
    probs /= probs.sum(1, keepdims=True)
    rows = pd.concat([ROWS.iloc[:1]] * n, ignore_index=True).assign(
        core_id=[f"c{i}" for i in range(n)],
        patient_id=[f"p{i // 3}" for i in range(n)],
        **{"class": right},
        **{f"prob_{name}": probs[:, c] for c, name in enumerate(names)},
        **({"expected_class": probs @ np.arange(3)} if ordinal else {}),
    )
    counts = rng.integers(0, 3, n)
    drawn = np.repeat(np.arange(n), counts)
    true, chosen = right[drawn], probs[drawn].argmax(1)
    expected = {f"auroc_class_{name}": roc_auc_score(true == c, probs[drawn, c]) for c, name in enumerate(names)}
    expected["auroc_macro"] = roc_auc_score(true, probs[drawn], multi_class="ovr")
    expected |= {"accuracy": accuracy_score(true, chosen), "balanced_accuracy": balanced_accuracy_score(true, chosen)}
    if ordinal:
        expected["kappa_quadratic"] = cohen_kappa_score(true, chosen, weights="quadratic")
    found = dict(build_suite({}).for_names(rows.columns).metrics)
    for name, wanted in expected.items():
        assert found[name](rows, counts[None].astype(float))[0] == pytest.approx(wanted, abs=1e-12), name
        assert found[name].count(rows.assign(prob_benign=[NAN] * 7 + [0.5] * (n - 7))) == n - 7
    assert set(found) - set(METRICS) == set(expected)
    # A later reader of the document knows them by its metrics, in whatever order these stand there.
    again = build_suite({}).for_names(sorted(expected)).metrics
    assert set(again) - set(METRICS) == set(expected)
    assert again["accuracy"](rows, np.ones((1, n)))[0] == accuracy_score(right, probs.argmax(1))
    alone = rows[rows["class"] != 1]
    undefined = {name for name in expected if np.isnan(found[name](alone, np.ones((1, len(alone))))[0])}
    assert undefined == {"auroc_class_benign", "auroc_macro", "balanced_accuracy"}


def test_findings_are_scored_as_scikit_learn_scores_them():
    rng, names, n = np.random.default_rng(6), ["cyst", "calcified", "mass"], 90
    truth = rng.random((n, 3)) < (0.2, 0.6, 0.4)
    probs = (0.4 * rng.random((n, 3)) + 0.5 * rng.random((n, 3)) * truth).clip(0, 1)
    rows = pd.concat([ROWS.iloc[:1]] * n, ignore_index=True).assign(
        core_id=[f"c{i}" for i in range(n)],
        findings=truth @ (1, 2, 4),
        **{f"prob_{name}": probs[:, c] for c, name in enumerate(names)},
    )
    counts = rng.integers(0, 3, n)
    drawn = np.repeat(np.arange(n), counts)
    true, said = truth[drawn], probs[drawn]
    constant = np.broadcast_to(true.mean(0), true.shape)
    sets = [tuple(one) for one in true.tolist()]
    commonest = np.broadcast_to(max(set(sets), key=sets.count), true.shape)
    expected = {f"auroc_finding_{name}": roc_auc_score(true[:, c], said[:, c]) for c, name in enumerate(names)}
    expected |= {
        f"average_precision_finding_{name}": average_precision_score(true[:, c], said[:, c]) for c, name in enumerate(names)
    }
    expected |= {
        "auroc_macro": roc_auc_score(true, said, average="macro"),
        "average_precision_macro": average_precision_score(true, said, average="macro"),
        "average_precision_macro_constant": average_precision_score(true, constant, average="macro"),
        "exact_match": accuracy_score(true, said > 0.5),
        "exact_match_constant": accuracy_score(true, commonest),
        "wrong_findings": 3 * hamming_loss(true, said > 0.5),
        "wrong_findings_constant": 3 * hamming_loss(true, constant > 0.5),
    }
    assert 0.1 < expected["exact_match_constant"] < expected["exact_match"] < 0.9
    found = dict(build_suite({}).for_names(rows.columns).metrics)
    assert set(found) - set(METRICS) == set(expected)  # nothing of exclusive classes: accuracy, kappa
    for name, wanted in expected.items():
        assert found[name](rows, counts[None].astype(float))[0] == pytest.approx(wanted, abs=1e-12), name
        assert found[name].count(rows.assign(prob_mass=[NAN] * 7 + [0.5] * (n - 7))) == n - 7
    again = build_suite({}).for_names(sorted(expected)).metrics
    assert set(again) - set(METRICS) == set(expected)
    assert again["exact_match"](rows, np.ones((1, n)))[0] == accuracy_score(truth, probs > 0.5)
    alone = rows[~truth[:, 2]]
    undefined = {name for name in expected if np.isnan(found[name](alone, np.ones((1, len(alone))))[0])}
    assert undefined == {"auroc_finding_mass", "average_precision_finding_mass", "auroc_macro", "average_precision_macro"}


def test_a_finding_of_probability_one_half_is_not_called():
    """Row 0 has the cyst and row 1 has not: of both it is not called, so that one of two findings is called wrong."""
    rows = pd.concat([ROWS.iloc[:1]] * 2, ignore_index=True).assign(
        core_id=["a", "b"], findings=[1, 0], prob_cyst=0.5, prob_mass=0.1
    )
    found = build_suite({}).for_names(rows.columns).metrics
    ones = np.ones((1, 2))
    assert (found["wrong_findings"](rows, ones)[0], found["exact_match"](rows, ones)[0]) == (0.5, 0.5)
    called = rows.assign(prob_cyst=0.5 + 1e-9)
    assert found["wrong_findings"](called, ones)[0] == 0.5
    assert found["exact_match"](called, np.array([[1.0, 0.0]]))[0] == 1.0
    assert found["exact_match"](rows, np.array([[1.0, 0.0]]))[0] == 0.0
