"""More than two classes: probabilities, log-odds of the positive ones, losses, rewards, and decoders that give their scores."""

from itertools import product

import numpy as np
import pytest
import torch
from scipy.special import expit, logit
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from tiny_attention import make_class_examples, make_clinical_examples, make_data, make_task, model_params, shake
from torch.nn import functional as F

from grpo_pipeline.tasks.attention.batch import AttentionData
from grpo_pipeline.tasks.attention.data.classes import Classes
from grpo_pipeline.tasks.attention.evaluation.metrics import build_suite
from grpo_pipeline.tasks.attention.losses.label_loss import label_loss, symmetric_cross_entropy
from grpo_pipeline.tasks.attention.losses.ridge import penalty
from grpo_pipeline.tasks.attention.model.class_decoder.glimpse import GlimpseDecoder
from grpo_pipeline.tasks.attention.model.class_decoder.params import StatisticsParams
from grpo_pipeline.tasks.attention.model.class_decoder.statistics_decoder import StatisticsDecoder
from grpo_pipeline.tasks.attention.model.class_scores import GradeHead, class_head, class_loss, class_nll, class_probs
from grpo_pipeline.tasks.attention.model.field_statistics import REGION_WIDTH, width

WIDTH = width()
THREE = Classes(names=("normal", "benign", "malignant"), positive=("malignant",))
GRADES = Classes(names=("gg0", "gg1", "gg2", "gg3"), positive=("gg2", "gg3"), ordinal=True)
FINDINGS = Classes(names=("cyst", "calcified", "mass"), positive=("calcified", "mass"), several=True)
KINDS = pytest.mark.parametrize("classes", [THREE, GRADES, FINDINGS], ids=["classes", "grades", "findings"])
FOLDED = {"class_decoder": {"kind": "statistics", "region": True, "folds": 3}}
ROWS = np.array([0, 1, 2, 3, 5, 8, 12])
DECODERS = {"glimpse": GlimpseDecoder, "statistics": StatisticsDecoder}


def test_log_odds_are_those_of_the_summed_probabilities():
    classes = Classes(names=("a", "b", "c", "d"), positive=("b", "d"))
    scores = torch.randn(5, 3, 4, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    probs = scores.softmax(-1)
    positive = probs[..., 1] + probs[..., 3]
    torch.testing.assert_close(class_head(classes).log_odds(scores), torch.log(positive / (1 - positive)))


def test_grades_are_differences_of_cumulative_probabilities():
    head = GradeHead(GRADES).double()
    with torch.no_grad():
        head.gaps += torch.tensor([0.7, -1.2])
    outputs = torch.linspace(-4, 4, 9, dtype=torch.double)
    thresholds = head.thresholds().detach().numpy()
    assert thresholds[1] == 0  # between gg1 and gg2: the output is the log-odds of the positive grades
    assert (np.diff(thresholds) > 0).all()
    above = np.concatenate([np.ones((9, 1)), expit(outputs.numpy()[:, None] - thresholds), np.zeros((9, 1))], axis=1)
    np.testing.assert_allclose(head(outputs).exp().detach(), above[:, :-1] - above[:, 1:], atol=1e-12)
    torch.testing.assert_close(head(outputs)[:, 2:].exp().sum(1), outputs.sigmoid())
    assert class_head(GRADES).log_odds(outputs) is outputs


def test_grades_far_from_the_output_keep_a_gradient():
    head = GradeHead(GRADES)
    outputs = torch.tensor([-200.0, 200.0], requires_grad=True)
    scores = head(outputs)
    scores.sum().backward()
    assert torch.isfinite(scores).all()
    assert torch.isfinite(head.gaps.grad).all()
    assert outputs.grad.tolist() == [3.0, -3.0]  # by one nat per step to each grade that is away


def test_two_grades_are_the_binary_label():
    head = class_head(Classes(names=("no", "yes"), positive=("yes",), ordinal=True))
    outputs = torch.tensor([-2.0, 0.3])
    torch.testing.assert_close(head(outputs), torch.stack([F.logsigmoid(-outputs), F.logsigmoid(outputs)], dim=1))
    assert not list(head.state_dict()) or head.gaps.numel() == 0


@pytest.mark.parametrize("extra", [(), (4,)], ids=["samples", "heads"])
def test_losses_are_those_of_torch_and_of_the_definition(extra):
    scores = torch.randn(6, 2, *extra, 3, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    classes = torch.tensor([0, 2, 1, 1, 0, 2])
    target = classes.reshape(6, *[1] * (scores.ndim - 2)).expand(scores.shape[:-1])
    expected = F.cross_entropy(scores.flatten(0, -2), target.flatten(), reduction="none").reshape(target.shape)
    torch.testing.assert_close(class_loss(scores, classes, "cross_entropy"), expected)
    right = F.one_hot(target, 3).double()
    reverse = -(scores.softmax(-1) * right.log().clamp(min=-4.0)).sum(-1)
    torch.testing.assert_close(class_loss(scores, classes, "symmetric"), expected + reverse)


def test_two_classes_have_the_losses_of_the_label():
    scores = torch.randn(6, 2, 2, dtype=torch.double, generator=torch.Generator().manual_seed(2))
    classes = torch.tensor([0, 1, 1, 1, 0, 1])
    logits = scores[..., 1] - scores[..., 0]
    expected = symmetric_cross_entropy(logits, classes[:, None].expand(6, 2).double())
    torch.testing.assert_close(class_loss(scores, classes, "symmetric"), expected)


SETS = torch.tensor(list(product([False, True], repeat=3)))  # all 8 of three findings


def test_sets_of_findings_add_up_to_one_and_log_odds_are_of_any_positive_one():
    scores = 3 * torch.randn(5, 2, 3, dtype=torch.double, generator=torch.Generator().manual_seed(5))
    of_sets = torch.stack([(-class_nll(scores, one.expand(5, 3))).exp() for one in SETS])  # [8, 5, 2]
    torch.testing.assert_close(of_sets.sum(0), torch.ones(5, 2, dtype=torch.double))
    any_positive = of_sets[SETS[:, 1:].any(1)].sum(0)
    found = class_head(FINDINGS).log_odds(scores)
    torch.testing.assert_close(found, torch.from_numpy(logit(any_positive.numpy())))
    for c in range(3):
        torch.testing.assert_close(of_sets[SETS[:, c]].sum(0), scores[..., c].sigmoid())
    alone = FINDINGS.model_copy(update={"positive": ("mass",)})
    assert torch.equal(class_head(alone).log_odds(scores), scores[..., 2])


@pytest.mark.parametrize(("far", "grads"), [(-300.0, [0.5, 0.5]), (300.0, [1.0, 1.0])])
def test_the_log_odds_of_findings_are_exact_where_a_probability_rounds(far: float, grads: list[float]):
    """1 - (1 - p)(1 - p): of two rare findings about 2p, of two sure ones a miss of (1 - p)^2."""
    scores = torch.tensor([0.0, far, far], requires_grad=True)
    found = class_head(FINDINGS).log_odds(scores)
    assert float(found.detach()) == pytest.approx(far + np.log(2) if far < 0 else 2 * far, rel=1e-6)
    found.backward()
    assert scores.grad.tolist() == pytest.approx([0.0, *grads])


@pytest.mark.parametrize("form", ["cross_entropy", "symmetric"])
@pytest.mark.parametrize("extra", [(), (4,)], ids=["samples", "heads"])
def test_findings_lose_as_labels_of_their_own(extra: tuple[int, ...], form: str):
    scores = torch.randn(8, 2, *extra, 3, generator=torch.Generator().manual_seed(1))
    expected = torch.zeros(scores.shape[:-1])
    for p, c in product(range(8), range(3)):
        expected[p] += label_loss(scores[p, ..., c], SETS[p, c].float().expand(scores.shape[1:-1]), form)
    torch.testing.assert_close(class_loss(scores, SETS, form), expected)


@pytest.mark.parametrize("classes", [THREE, FINDINGS], ids=["classes", "findings"])
@pytest.mark.parametrize("name", ["glimpse", "statistics"])
def test_each_class_is_scored_as_a_label_would_be(name: str, classes: Classes):
    """Every class alone is the binary decoder with its share of the weights; so are the maps that the policy reads."""
    own = {"folds": 2, "region": True} if name == "statistics" else {}
    params = model_params(class_decoder={"kind": name, **own}).class_decoder
    decoder = DECODERS[name](params, classes)
    shake(decoder, seed=3)
    generator = torch.Generator().manual_seed(4)
    points, is_point = torch.rand(3, 4, 2, 2, generator=generator), torch.ones(3, 4, 2, dtype=torch.bool)
    is_point[0, 1, 1] = is_point[1, 2] = False
    view = torch.randn(3, WIDTH, 4, 4, generator=generator) if name == "statistics" else torch.randn(3, 1, 32, 32)
    region, folds = torch.randn(3, REGION_WIDTH, generator=generator), torch.tensor([1, -1, 0])

    def read(which: StatisticsDecoder, points: torch.Tensor, is_point: torch.Tensor | None) -> torch.Tensor:
        return which.heads(view, region, points, is_point) if name == "statistics" else which(view, points, is_point)

    alone = [DECODERS[name](params) for _ in range(3)]
    for number, one in enumerate(alone):
        state = decoder.state_dict()
        for key in state:
            if key == "prior":
                state[key] = state[key][number]
            elif key.startswith(("evidence.2", "evidence.weight", "evidence.bias", "region")):
                state[key] = state[key][number::3]  # channel f * 3 + c
        one.load_state_dict(state)
    for placed in (is_point, None):
        expected = torch.stack([read(one, points, placed) for one in alone], dim=-1)
        torch.testing.assert_close(read(decoder, points, placed), expected)
    nothing = points[:, :, :0]
    torch.testing.assert_close(read(decoder, nothing, None), torch.stack([read(o, nothing, None) for o in alone], dim=-1))
    if name == "statistics":
        maps = torch.cat([one.map_evidence(view, folds) + one.prior for one in alone], dim=1).movedim(1, -1)
        torch.testing.assert_close(decoder.map_evidence(view, folds)[:, 0], decoder.classes.log_odds(maps))
    spots = points[:, 0]
    evidence = torch.stack([one.weigh(view, spots, folds) for one in alone], dim=-1)
    torch.testing.assert_close(decoder.weigh(view, spots, folds), evidence)
    known = (decoder.classes.log_odds(evidence) + decoder.involvement_prior).sigmoid().mean(1)
    torch.testing.assert_close(decoder.estimate_involvement(view, spots, torch.ones(3, 2, dtype=torch.bool), folds), known)


def answer(scores: torch.Tensor, right: torch.Tensor, classes: Classes) -> torch.Tensor:
    """Log-probability of the right class, or of the right set as a product over the findings: scores [P, ..., C] -> [P, ...]."""
    if not classes.several:
        return torch.stack([scores[p, ..., c] for p, c in enumerate(right)]) - scores.logsumexp(-1)
    probs = scores.double().sigmoid()
    sets = [
        [probs[p, ..., c] if bits >> c & 1 else 1 - probs[p, ..., c] for c in range(3)] for p, bits in enumerate(right.tolist())
    ]
    return torch.stack([torch.stack(one).prod(0) for one in sets]).log().float()


@KINDS
@pytest.mark.parametrize("model", [{}, FOLDED, {"class_decoder": {"kind": "global"}}], ids=["glimpse", "folds", "global"])
def test_the_task_rewards_and_learns_the_right_class(classes: Classes, model: dict[str, object]):
    examples = make_class_examples(classes)
    task = make_task(examples, supervised={"glimpse": None, "heatmap": None, "class": {"weight": 1.0}}, **model)
    policy, data = task.build_policy(0), make_data(examples)
    shake(policy.class_decoder, seed=3)
    batch = task.replicate(task.make_batch(data, ROWS), 2)
    context = task.encode(policy, batch)
    drawn = task.sample(policy, context, 2, temperature=1.0, proposal="uniform", generator=torch.Generator().manual_seed(0))
    outcomes = task.decode(policy, context, drawn, batch)
    scores, right = outcomes.class_scores, torch.tensor(examples.table[classes.column].to_numpy()[ROWS])
    told = [[bool(bits >> c & 1) for c in range(3)] for bits in right.tolist()] if classes.several else right.tolist()
    assert batch.classes.tolist() == told
    positive = torch.tensor(classes.is_positive)
    any_positive = scores.softmax(-1)[..., positive].sum(-1)
    if classes.several:
        any_positive = 1 - (1 - scores.sigmoid()[..., positive]).prod(-1)
    torch.testing.assert_close(outcomes.class_logits.sigmoid(), any_positive, atol=1e-5, rtol=1e-4)
    of_right = answer(scores, right, classes)
    torch.testing.assert_close(task.reward(batch, drawn, outcomes)[0]["class"], of_right.detach(), atol=1e-5, rtol=1e-4)
    loss = task.supervised_loss(policy, context, batch, outcomes)
    if outcomes.heads is None:
        expected = -of_right.mean()
    else:  # every regression but that of the core's own fold; all of them where no fold has the core
        nll = -answer(outcomes.heads, right, classes)
        kept = [[f for f in range(3) if f != fold or fold < 0] for fold in batch.folds.tolist()]
        expected = torch.stack([nll[p][:, which].mean() for p, which in enumerate(kept)]).mean()
    torch.testing.assert_close(loss, expected)
    loss.backward()
    named = {name: p.grad for name, p in policy.class_decoder.named_parameters()}
    assert all(grad.abs().sum() > 0 for name, grad in named.items() if name != "involvement_prior")
    rows = task.evaluate(policy, AttentionData(examples, None), ROWS, seed=0, n_samples=2)
    if classes.several:  # the mean of P(any) over sets is not P(any) of the means
        rows = rows[rows["rule"] != "pooled"]
    table = rows[[f"prob_{name}" for name in classes.names]].to_numpy()
    of_positive = table[:, list(classes.is_positive)]
    if classes.several:
        np.testing.assert_allclose(1 - (1 - of_positive).prod(1), rows["prob"], atol=1e-5)
        assert set(build_suite({}).for_names(rows.columns).metrics) >= {"auroc_finding_mass", "exact_match"}
    else:
        np.testing.assert_allclose(table.sum(1), 1, atol=1e-6)
        np.testing.assert_allclose(of_positive.sum(1), rows["prob"], atol=1e-5)
    told = examples.table.set_index("core_id")[classes.column]
    assert rows[classes.column].tolist() == rows["core_id"].map(told).tolist()
    assert ("expected_class" in rows) == classes.ordinal
    assert task.fingerprint(data)["classes"]["names"] == list(classes.names)


@pytest.mark.parametrize(("classes", "outputs"), [(THREE, 3), (GRADES, 1), (FINDINGS, 3)], ids=["classes", "grades", "findings"])
def test_clinical_values_speak_to_every_class(classes: Classes, outputs: int):
    examples = make_class_examples(classes, make_clinical_examples())
    task = make_task(examples, clinical={"dropout": 0.0}, **FOLDED)
    policy, batch = task.build_policy(0), task.make_batch(make_data(examples), ROWS)
    shake(policy.class_decoder, seed=3)
    context, points = task.encode(policy, batch), torch.full((len(ROWS), 2, 3, 2), 0.4)

    def decode() -> torch.Tensor:
        parts = (context.features, context.images, points, batch.bag, batch.clinical)
        read = {"statistics": context.statistics, "region": context.region, "folds": context.folds}
        return policy.decode(*parts, **read)

    before = decode()
    with torch.no_grad():
        policy.clinical_read_out.weights.normal_(generator=torch.Generator().manual_seed(6))
    after, tokens = decode(), policy.clinical(batch.clinical).flatten(1)
    told = tokens @ policy.clinical_read_out.weights.reshape(outputs, -1).T / tokens.shape[1] ** 0.5  # [P, outputs]
    if classes.ordinal:
        torch.testing.assert_close(after.class_logits, before.class_logits + told)
    else:
        torch.testing.assert_close(after.class_scores, before.class_scores + told[:, None])
        torch.testing.assert_close(after.heads, before.heads + told[:, None, None])


@pytest.mark.parametrize("classes", [THREE, FINDINGS], ids=["classes", "findings"])
def test_a_penalised_decoder_of_classes_is_ridge_regression(classes: Classes):
    """Trained to its optimum it has scikit-learn's probabilities for C = 1 / (penalty * n): multinomial, or one per finding."""
    rng = np.random.default_rng(4)
    n, weight = 60, 0.03
    statistics = torch.from_numpy(rng.normal(size=(n, WIDTH, 2, 2)))
    points = torch.tensor([[[0.1, 0.2], [0.9, 0.7]]], dtype=torch.double).expand(n, 1, 2, 2)
    right = torch.from_numpy(rng.integers(0, 3, n)).where(statistics[:, 0, 0, 0] < 0.5, torch.tensor(2))
    sets = torch.stack([right > 0, right == 1, right % 2 == 0], dim=1)  # [n, 3]
    target = sets if classes.several else right
    decoder = StatisticsDecoder(StatisticsParams(kind="statistics"), classes).double()
    decoder.evidence.bias.requires_grad_(False)
    optimizer = torch.optim.LBFGS(
        decoder.parameters(), max_iter=500, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        scores = decoder.heads(statistics, None, points)[:, :, 0]
        value = class_loss(scores, target, "cross_entropy").mean() + weight * penalty(decoder)
        value.backward()
        return value

    optimizer.step(loss)
    read = (statistics[:, :, [0, 1], [0, 1]].mean(2) * 2 / WIDTH**0.5).numpy()
    regression = LogisticRegression(C=1 / (weight * n), tol=1e-10, max_iter=5000)
    scores = decoder.heads(statistics, None, points)[:, 0, 0].detach()
    found = np.stack(list(class_probs(scores, classes).values()), axis=1)
    if classes.several:
        expected = np.stack([clone(regression).fit(read, one).predict_proba(read)[:, 1] for one in sets.numpy().T], axis=1)
    else:
        expected = regression.fit(read, right.numpy()).predict_proba(read)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert found.std(0).min() > 0.05


def test_the_expected_grade_is_the_mean_of_their_numbers():
    """Grades 0, 1 and 2 of the probabilities 0.5, 0.2 and 0.3: 0.2 + 2 * 0.3; classes without an order have no such column."""
    scores, names = torch.tensor([[0.5, 0.2, 0.3]]).log(), ("a", "b", "c")
    found = class_probs(scores, Classes(names=names, positive=("c",), ordinal=True))
    assert {name: value.tolist() for name, value in found.items()} == {
        "prob_a": pytest.approx([0.5]), "prob_b": pytest.approx([0.2]), "prob_c": pytest.approx([0.3]),
        "expected_class": pytest.approx([0.8]),
    }  # fmt: skip
    assert "expected_class" not in class_probs(scores, Classes(names=names, positive=("c",), ordinal=False))
