"""Synthetic predictions, showcases and metric rows with a known effect, and fixtures that hold them."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from tiny_folds import EVALUATION

RULES = ("policy", "greedy", "uniform", "centre", "fixed", "none", "oracle", "shuffled")
GROUNDED = {"policy": 1.0, "greedy": 1.1, "oracle": 1.6}


def make_predictions(*, seed: int = 0, skill: float = 1.0, patients: int = 40, cores: int = 6) -> pd.DataFrame:
    """Draw prediction rows: ``skill`` scales how far the learned rules separate the classes and find lesions."""
    world, n = np.random.default_rng(1), patients * cores
    patient = np.repeat(np.arange(patients), cores)
    severity = world.normal(size=patients)[patient] + world.normal(size=n)
    label = (severity > 0.9).astype(int)
    cancer = label == 1
    base = pd.DataFrame(
        {
            "core_id": [f"core{i:04d}" for i in range(n)], "patient_id": [f"patient{i:03d}" for i in patient],
            "center": np.where(patient % 2 == 0, "north", "south"), "label": label,
            "involvement": np.where(cancer, world.uniform(0.05, 0.95, n), 0.0),
            "grade_group": np.where(cancer, world.integers(1, 5, n), 0).astype(float),
            "lesion_coverage": np.where(cancer, world.uniform(0.05, 0.2, n), np.nan),
        }
    )  # fmt: skip
    shared, noise, frames = world.normal(scale=0.8, size=n), np.random.default_rng(seed), []
    for rule in RULES:
        grounded = skill * GROUNDED.get(rule, 0.0)
        logit = (0.3 + 0.3 * grounded) * (2 * label - 1) + shared + noise.normal(scale=0.3, size=n)
        prob = 1 / (1 + np.exp(-logit))
        right = 0.5 * np.log(np.where(cancer, prob, 1 - prob))
        hit = base["lesion_coverage"] * (1 + 5 * grounded) * noise.uniform(0.8, 1.2, n)
        frames.append(
            base.assign(
                rule=rule, prob=prob, heatmap_prob=np.clip(prob + noise.normal(scale=0.05, size=n), 0, 1),
                prob_std=noise.uniform(0.0, 0.1, n), reward_class=right, reward_heatmap=right - 0.1, reward=right - 0.07,
                lesion_hit=hit.clip(upper=1.0), points_used=3.0,
            )
        )  # fmt: skip
    return pd.concat(frames, ignore_index=True)


def make_showcase(*, seed: int = 0, cores: int = 12, size: int = 64, cells: int = 16, k: int = 3) -> dict[str, np.ndarray]:
    """Draw showcase arrays: an elliptic region, a needle, a round lesion in every other core, points in and around it."""
    generator = np.random.default_rng(seed)
    y, x = (np.mgrid[:size, :size] + 0.5) / size
    region = np.tile((((x - 0.5) / 0.42) ** 2 + ((y - 0.55) / 0.35) ** 2 < 1)[None], (cores, 1, 1))
    centre = generator.uniform(0.4, 0.65, (cores, 2))
    label = np.arange(cores) % 2
    disc = ((x[None] - centre[:, 0, None, None]) ** 2 + (y[None] - centre[:, 1, None, None]) ** 2) < 0.1**2
    lesion = disc & (label == 1)[:, None, None]
    image = generator.gamma(4.0, 20.0, (cores, size, size)) * np.where(lesion, 0.5, 1.0) * np.where(region, 1.0, 0.4)
    step = size // cells
    heat = np.clip(disc[:, ::step, ::step] * 0.8 + generator.uniform(0, 0.2, (cores, cells, cells)), 0, 1)
    attention = disc[:, ::step, ::step] + 0.02
    return {
        "core_id": np.array([f"core{i:04d}" for i in range(cores)]),
        "label": label,
        "prob": generator.uniform(0.1, 0.9, cores).astype(np.float32),
        "image": np.clip(image, 0, 255).astype(np.uint8),
        "region": region,
        "bag": region & (np.abs(y - x) < 0.05)[None],
        "lesion": lesion,
        "heatmap": heat.astype(np.float32),
        "attention": (attention / attention.sum(axis=(1, 2), keepdims=True)).astype(np.float32),
        "points_uniform": generator.uniform(0.25, 0.75, (cores, k, 2)).astype(np.float32),
        "points_trained": np.clip(centre[:, None] + generator.normal(scale=0.05, size=(cores, k, 2)), 0, 1).astype(np.float32),
        "contribution": generator.normal(scale=0.2, size=(cores, k)),
    }


def make_metric_rows(*, seed: int = 0, epochs: int = 20, steps: int = 15) -> pd.DataFrame:
    """Draw training metric rows of one arm: a train row per step and a val row per epoch."""
    generator, step = np.random.default_rng(seed), np.arange(epochs * steps)
    progress, n = step / len(step), len(step)
    train = {
        "step": step, "epoch": step // steps, "split": "train",
        "reward/mean": -1 + progress + generator.normal(scale=0.1, size=n),
        "supervised/loss": 0.7 - 0.3 * progress + generator.normal(scale=0.05, size=n),
        "policy/entropy": 5 - 3 * progress, "kl/reference": progress * 2,
        "policy/ratio_mean": 1 + generator.normal(scale=0.01, size=n),
        "grad_norm/supervised": generator.gamma(2, 0.5, n), "grad_norm/rl": generator.gamma(2, 0.2, n),
    }  # fmt: skip
    val = {"step": step[steps - 1 :: steps], "epoch": np.arange(epochs), "split": "val"}
    return pd.concat([pd.DataFrame(train), pd.DataFrame(val | {"reward/mean": np.linspace(-1, -0.2, epochs)})], ignore_index=True)


@pytest.fixture(scope="session")
def predictions() -> Callable[..., pd.DataFrame]:
    return make_predictions


@pytest.fixture(scope="session")
def showcase() -> Callable[..., dict[str, np.ndarray]]:
    return make_showcase


@pytest.fixture(scope="session")
def metric_rows() -> Callable[..., pd.DataFrame]:
    return make_metric_rows


@pytest.fixture(scope="session")
def params():
    return EVALUATION.model_copy(update={"resamples": 100})


@pytest.fixture(scope="session")
def arms(predictions):
    return {"supervised": predictions(seed=1, skill=0.0), "grpo": predictions(seed=2, skill=1.0)}
