"""The figure of the reward audit shows the document's numbers."""

import numpy as np
import pytest
from tiny_audit import PLAN, sound

from grpo_pipeline.pipelines.reward_audit.document import RewardDocument
from grpo_pipeline.pipelines.reward_audit.pipeline import reward_figure
from grpo_pipeline.pipelines.reward_audit.samples import read_samples


def document(**changes):
    plan = PLAN
    return RewardDocument(read_samples(sound(**changes), plan), plan, resamples=50, seed=0).build()


def labels(axes):
    return [tick.get_text() for tick in axes.get_yticklabels()]


def test_the_figure_shows_the_documents_numbers():
    shown = document()
    rewards, shares, agreement = reward_figure(shown).axes
    assert labels(rewards) == ["model (start), +0.28", "parrot (trivial), +0.00", "answer (ceiling), +1.00"]
    drawn = [line.get_xdata()[0] for line in rewards.lines if line.get_marker() == "o"]
    assert drawn == pytest.approx([0.0, -0.28, 0.72])
    explained = {
        name: component["explained"]["value"] for name, component in shown["policies"]["model"]["groups"]["components"].items()
    }
    assert [bar.get_width() for bar in shares.patches] == pytest.approx(list(explained.values()))
    assert labels(shares) == ["f1 (weight 1)", "style (weight 0.5)"]
    assert labels(agreement) == ["reward", "f1", "style"]
    rho = shown["agreement"]["model"]["reward"]["quality"]["within"]["spearman"]["value"]
    assert agreement.texts[0].get_text() == f"{rho:+.2f}"
    assert agreement.texts[1].get_text() == "+1.00"
    lower = reward_figure(shown | {"metrics": {"quality": "lower"}}).axes[2]
    a, b = (np.asarray(axes.images[0].get_array()) for axes in (agreement, lower))
    np.testing.assert_array_equal(a, -b)  # whether reward and metric agree about what is good
    assert [text.get_text() for text in reward_figure(document(quality=0.5)).axes[2].texts] == ["–", "–", "–"]
