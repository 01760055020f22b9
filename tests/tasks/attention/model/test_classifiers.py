"""Whole-image classifiers: each finds what it reads, learns from the training split alone, and repeats itself."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score
from tiny_attention import make_data, make_task

from grpo_pipeline.pipelines.evaluation import nodes
from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.tasks.attention.batch import AttentionData, learned_outlines
from grpo_pipeline.tasks.attention.data.examples import Examples
from grpo_pipeline.tasks.attention.evaluation.metrics import REQUIRED
from grpo_pipeline.tasks.attention.model import classifiers, outline_network
from grpo_pipeline.tasks.attention.model.classifiers import NAMES, describe_picture, fit_baselines
from grpo_pipeline.tasks.attention.model.outline_network import OutlineNetwork, draw_outlines, train_outlines
from grpo_pipeline.tasks.attention.model.whole_image_network import apply_network, train_network

SIDE, N = 64, 96


def made(kind: str) -> Examples:
    """Return 96 pictures of noise, 64 to train on; what is different in the positives: the grain, the edge, or a dark square."""
    rng = np.random.default_rng(4)
    label = rng.integers(0, 2, N)
    images = rng.normal(120, 30, (N, SIDE, SIDE))
    lesion = np.zeros((N, SIDE, SIDE), bool)
    for row in np.flatnonzero(label):
        if kind == "grain":
            images[row] = 120 + 30 * np.repeat(rng.normal(size=(SIDE, SIDE // 4)), 4, axis=1)
        elif kind == "edge":
            images[row, :2] = 250
        else:
            y, x = rng.integers(2, SIDE - 22, 2)
            lesion[row, y : y + 20, x : x + 20] = True
            images[row][lesion[row]] = 20
    table = pd.DataFrame({"core_id": [f"c{i}" for i in range(N)], "patient_id": [f"p{i // 2}" for i in range(N)]})
    table = table.assign(center="a", label=label, involvement=np.nan, grade_group=np.nan, split=["train"] * 64 + ["test"] * 32)
    region = np.ones_like(lesion)
    return Examples(table, images.clip(0, 255).astype(np.uint8), region, region, lesion, digest=kind)


def scored(examples: Examples, name: str) -> tuple[float, float]:
    """Return AUROC and mean error of the test rows, which stand before those that it learns from."""
    examples = replace(examples, table=examples.table.assign(split=examples.table["split"].to_numpy()[::-1]))
    rows = fit_baselines(make_task(), AttentionData(examples, None), [name], examples.rows("test"), seed=3)
    return float(roc_auc_score(rows["label"], rows["prob"])), float((rows["label"] - rows["prob"]).abs().mean())


def test_each_regression_finds_what_it_reads_and_nothing_else() -> None:
    found = {(name, kind): scored(made(kind), name) for name in ("picture", "texture") for kind in ("grain", "edge")}
    for name, kind in (("texture", "grain"), ("picture", "edge")):
        auroc, error = found[name, kind]
        assert auroc > 0.95
        assert error < 0.1
    assert 0.2 < found["picture", "grain"][0] < 0.8
    bright = np.full((20, 40), 100, np.uint8)
    bright[:, :2] = 255
    box = np.pad(bright, ((6, 14), (0, 0)))  # a wide picture in its square
    expected = [-1.0, 1.0, *(np.mean(part) / 255 for part in (bright[:1], bright[-1:], bright[:, :1], bright[:, -1:]))]
    np.testing.assert_allclose(describe_picture(box, box > 0), expected)


def test_networks_learn_the_label_and_attention_finds_what_tells_it() -> None:
    examples = made("square")
    train, test = examples.rows("train"), examples.rows("test")
    label = examples.table["label"].to_numpy()[test]
    before = torch.random.get_rng_state()
    for attends in (False, True):
        net = train_network(examples, train, seed=1, attends=attends, epochs=16)
        probs, maps = apply_network(net, examples, test, grid=8)
        assert roc_auc_score(label, probs) > 0.9
        assert maps.shape == (32, 64)
    assert torch.equal(before, torch.random.get_rng_state())
    one, same, other = (train_network(examples, train, seed=seed, attends=True, epochs=1) for seed in (1, 1, 2))
    assert all(torch.equal(weights, same.state_dict()[name]) for name, weights in one.state_dict().items())
    assert not torch.equal(one.label[1].weight, other.label[1].weight)
    centre = examples.lesion[test][:, 4::8, 4::8].reshape(32, -1)
    hit = centre[np.arange(32), maps.argmax(1).numpy()][label == 1].mean()
    assert hit > 3 * centre[label == 1].mean()


def test_rows_are_those_of_a_comparison_and_the_test_split_decides_nothing() -> None:
    task, data = make_task(), make_data()
    rows = data.examples.rows("test")
    names = [name for name in NAMES if name != "unet"]  # no outline of these cores is shown
    one = fit_baselines(task, data, names, rows, seed=0)
    assert list(one.columns) == list(REQUIRED)
    assert one["rule"].tolist() == [name for name in names for _ in rows]
    assert one["prob"].between(0, 1).all()
    assert one["reward"].isna().all()
    known = one["lesion_hit"].notna()
    assert known.equals((one["rule"] == "attention_cnn") & (one["label"] == 1))
    table = data.examples.table.copy()
    table.loc[table["split"] == "test", "label"] ^= 1
    flipped = replace(data, examples=replace(data.examples, table=table))
    np.testing.assert_array_equal(fit_baselines(task, flipped, names, rows, seed=0)["prob"], one["prob"])
    params = EvaluationParams.model_construct(task="attention", baselines=("texture",), split="test", seed=0)
    by_node = nodes.fit_baselines(params, task, data)  # of the split that is evaluated
    pd.testing.assert_frame_equal(by_node, one[one["rule"] == "texture"].reset_index(drop=True))
    single = fit_baselines(task, data, ["texture"], rows[2:3], seed=0)
    np.testing.assert_allclose(single["prob"], one.loc[one["rule"] == "texture", "prob"].iloc[2:3])
    with pytest.raises(ValueError, match="attention.evaluation.baselines must be among picture, .*, got 'forest'; correct it"):
        fit_baselines(task, data, ["texture", "forest"], rows, seed=0)


def outlined(share: float = 1.0) -> Examples:
    """Return the dark squares with the outline of a share of the training images as bag, and eight of them in validation."""
    examples = made("square")
    bag = examples.region.copy()
    shown = [row for row in range(64) if examples.lesion[row].any()]
    shown = shown[: round(share * len(shown))]
    bag[shown] = examples.lesion[shown]
    split = ["train"] * 56 + ["val"] * 8 + ["test"] * 32
    return replace(examples, bag=bag, table=examples.table.assign(split=split))


def test_a_small_unet_learns_shown_outlines_and_draws_those_of_others() -> None:
    examples = outlined()
    task, test = make_task(), examples.rows("test")
    rows = fit_baselines(task, AttentionData(examples, None), ["unet"], test, seed=1)
    assert list(rows.columns) == [*REQUIRED, "dice", "iou"]
    positive = rows["label"] == 1
    assert rows["dice"].notna().equals(positive)
    assert rows.loc[positive, "dice"].mean() > 0.75
    # Three points of the 16 cells, of which a square covers one to four.
    assert rows.loc[positive, "lesion_hit"].mean() > 4 * rows.loc[positive, "lesion_coverage"].mean()
    assert roc_auc_score(rows["label"], rows["prob"]) > 0.9


def test_the_unet_learns_the_share_of_outlines_that_the_losses_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = made("square")  # no bag is an outline
    asked: list[int] = []

    def count(examples: Examples, train: np.ndarray, outlined: np.ndarray, *, seed: int) -> OutlineNetwork:
        asked.append(int(outlined.sum()))
        return OutlineNetwork()

    monkeypatch.setattr(classifiers, "train_outlines", count)
    for share in (0.5, 1.0):
        task = make_task(supervised={"mask_share": share})
        fit_baselines(task, AttentionData(examples, None), ["unet"], examples.rows("test")[:2], seed=0)
    assert 0 < asked[0] < asked[1] == examples.lesion[examples.rows("train")].any((1, 2)).sum()


def test_the_unet_sees_no_outline_that_is_not_shown() -> None:
    examples = outlined(0.5)
    train = examples.rows("train")
    shown = learned_outlines(examples, train)
    assert 0 < shown.sum() < examples.lesion[train].any((1, 2)).sum()
    before = torch.random.get_rng_state()
    net = train_outlines(examples, train, shown, seed=2, epochs=2)
    assert torch.equal(before, torch.random.get_rng_state())
    hidden = examples.lesion.copy()
    hidden[train[~shown]] = hidden[examples.rows("test")] = False
    hidden[train[~shown], :5] = True
    other = train_outlines(replace(examples, lesion=hidden), train, shown, seed=2, epochs=2)
    assert all(torch.equal(one, other.state_dict()[name]) for name, one in net.state_dict().items())
    with pytest.raises(
        ValueError, match="must not hold 'unet' where no lesion outline is shown, got none among 56 training cores"
    ):
        train_outlines(examples, train, np.zeros(56, bool), seed=2)


def test_the_weights_of_the_epoch_that_draws_validation_lesions_best_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dice of 0.2, 0.9 and 0.5 after three epochs: the second."""
    examples, seen, told = made("square"), [], iter((0.2, 0.9, 0.5))
    rows = np.flatnonzero(examples.lesion.any((1, 2)))
    table = examples.table.assign(
        split=["train" if row in rows[:4] else "val" if row in rows[4:6] else "test" for row in range(N)]
    )
    examples = replace(examples, table=table)

    def drawn(net: OutlineNetwork, given: Examples, judged: np.ndarray) -> tuple[np.ndarray, torch.Tensor]:
        assert judged.tolist() == rows[4:6].tolist()
        seen.append({name: value.clone() for name, value in net.state_dict().items()})
        return np.zeros(2), torch.zeros(2, SIDE, SIDE)

    monkeypatch.setattr(outline_network, "draw_outlines", drawn)
    monkeypatch.setattr(outline_network, "overlap", lambda mask, outline: (torch.full((2, 1), next(told)), None))
    net = train_outlines(examples, rows[:4], np.ones(4, bool), seed=0, epochs=3)
    assert all(torch.equal(value, seen[1][name]) for name, value in net.state_dict().items())
    assert not torch.equal(seen[1]["drawn.weight"], seen[2]["drawn.weight"])


def test_a_network_draws_nothing_outside_the_region() -> None:
    examples = made("square")
    examples = replace(examples, region=examples.region & (np.arange(SIDE) < 20))
    drawn = draw_outlines(OutlineNetwork().eval(), examples, np.array([3, 70]))[1]
    assert bool((drawn[..., :20] > 0).all())
    assert not bool(drawn[..., 20:].any())


def test_outlines_are_mirrored_with_their_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lesions are dark: inside its mask every image that the network reads is darker than outside."""
    examples, read, drawn = made("square"), [], []
    rows = np.flatnonzero(examples.lesion.any((1, 2)))[:16]
    forward, loss = OutlineNetwork.forward, outline_network.outline_loss
    monkeypatch.setattr(OutlineNetwork, "forward", lambda net, images: read.append(images) or forward(net, images))
    monkeypatch.setattr(outline_network, "outline_loss", lambda pixels, masks: drawn.append(masks) or loss(pixels, masks))
    train_outlines(examples, rows, np.ones(16, bool), seed=0, epochs=2)
    images, masks = torch.cat(read)[:, 0], torch.cat(drawn).bool()
    assert len(images) == len(masks) == 32
    assert all(float(image[mask].mean()) < float(image[~mask].mean()) - 1 for image, mask in zip(images, masks, strict=True))
    assert len({tuple(mask.nonzero()[0].tolist()) for mask in masks}) > 16  # some of them in both ways
