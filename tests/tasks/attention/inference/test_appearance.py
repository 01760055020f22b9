"""The look of an image in numbers: values that can be said beforehand, and a tiny model that knows its own images."""

from dataclasses import replace

import numpy as np
import pytest
from tiny_attention import make_data, make_examples, make_task, shake

from grpo_pipeline.tasks.attention.inference import appearance
from grpo_pipeline.tasks.attention.inference.appearance import (
    FEATURES,
    GROUPS,
    TOGETHER,
    describe_inputs,
    describe_rows,
    look,
    texture,
)

TASK, DATA = make_task(), make_data()


def statistics(image: np.ndarray) -> dict[str, float]:
    names = [statistic.name for statistic in GROUPS["texture"]]
    return dict(zip(names, texture(image.astype(np.float64)), strict=True))


def test_texture_of_noise_of_its_inverse_and_of_constant_images():
    found = statistics(np.random.default_rng(0).normal(128, 32, (256, 256)))
    correlations = [found[f"correlation {n} pixels {way}"] for n in (1, 3) for way in ("down", "right")]
    assert correlations == pytest.approx([0] * 4, abs=0.02)
    # A mean of 2 x 2 independent pixels halves their spread; what it takes away has sqrt(3) / 2 of it.
    for octave in range(4):
        contrast = np.log2(32 * 3**0.5 / 2 / 2**octave + 0.5)
        assert found[f"log2 contrast at {2**octave} pixels"] == pytest.approx(contrast, abs=0.05)
    image = np.random.default_rng(0).gamma(2.0, 20.0, (64, 64)).clip(0, 255)
    before, after = statistics(image), statistics(255 - image)
    for name, value in before.items():
        assert after[name] == pytest.approx(-value if name.startswith("skewness") else value, abs=1e-9)
    for shape in ((1, 1), (1, 40), (3, 128), (128, 2), (5, 5)):
        found = statistics(np.full(shape, 9.0))
        assert np.isfinite([*found.values()]).all()
        assert (found["log2 contrast at 1 pixels"], found["correlation 1 pixels right"]) == (-1.0, 1.0)


def test_padding_does_not_count():
    examples = make_examples()
    image, region = np.zeros((32, 32), np.uint8), np.zeros((32, 32), bool)
    image[8:24] = examples.images[0, :16].clip(1)
    region[8:24] = examples.region[0, :16]
    padded = look(replace(examples, images=image[None], region=region[None]), 0)
    cut = look(replace(examples, images=image[None, 8:24], region=region[None, 8:24]), 0)
    assert padded["size and region"][0] == -1.0
    for name, values in padded.items():
        np.testing.assert_array_equal(values, cut[name])


def test_statistics_of_an_image_do_not_depend_on_its_batch(monkeypatch: pytest.MonkeyPatch):
    policy = TASK.build_policy(0)
    shake(policy)
    whole = describe_rows(TASK, policy, DATA, np.arange(15))
    monkeypatch.setattr(appearance, "BATCH_SIZE", 4)
    parts = describe_rows(TASK, policy, DATA, np.arange(15))
    assert {name: values.shape[1] for name, values in whole.items()} == {
        "grey levels": 5, "texture": 13, "layout": 16, TOGETHER: 34, "size and region": 2, FEATURES: 16,
    }  # fmt: skip
    for name in whole:
        np.testing.assert_allclose(whole[name], parts[name], atol=1e-5)


def test_the_limit_comes_from_training_and_validation_images_without_their_labels():
    policy = TASK.build_policy(0)
    familiarity = describe_inputs(TASK, policy, DATA)
    assert (familiarity.told.trained_on, familiarity.told.held_out, familiarity.told.clusters) == (8, 2, 1)
    examples = DATA.examples
    test = examples.rows("test")
    images = examples.images.copy()
    images[test] = 0
    table = examples.table.assign(label=1 - examples.table["label"], involvement=0.5, grade_group=0.0)
    other = replace(DATA, examples=replace(examples, images=images, table=table, lesion=~examples.lesion))
    assert describe_inputs(TASK, policy, other).told == familiarity.told
    images = examples.images.copy()
    images[examples.rows("val")] //= 2
    changed = describe_inputs(TASK, policy, replace(DATA, examples=replace(examples, images=images)))
    assert changed.told.groups == familiarity.told.groups
    assert changed.told.limit != familiarity.told.limit


def test_many_images_are_read_in_part_and_always_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(appearance, "MOST", 5)
    policy, read = TASK.build_policy(0), []
    plain = appearance.describe_rows
    monkeypatch.setattr(appearance, "describe_rows", lambda *given: read.append(given[-1].tolist()) or plain(*given))
    for _ in range(2):
        assert describe_inputs(TASK, policy, DATA).told.trained_on == 5
    (train, val), again = read[:2], read[2:]
    assert (len(set(train)), train, again) == (5, sorted(train), [train, val])
    assert set(train) < set(TASK.rows(DATA, "train"))
    assert train != TASK.rows(DATA, "train")[:5].tolist()
    assert val == TASK.rows(DATA, "val").tolist()


def test_correlations_are_those_of_their_own_direction():
    """Columns of noise that are the same in every row: along a column all is alike, from one to another nothing."""
    stripes = np.tile(np.random.default_rng(1).normal(128, 32, 256), (256, 1))
    found = statistics(stripes)
    assert [found[f"correlation {n} pixels down"] for n in (1, 3)] == pytest.approx([1.0, 1.0])
    assert [found[f"correlation {n} pixels right"] for n in (1, 3)] == pytest.approx([0.0, 0.0], abs=0.2)
    turned = statistics(stripes.T)
    assert [turned[f"correlation {n} pixels right"] for n in (1, 3)] == pytest.approx([1.0, 1.0])
