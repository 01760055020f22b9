"""Sections of older versions in today's form, by name (``grpo_pipeline.migrate``)."""

from functools import partial

from grpo_pipeline.tasks.attention.migrate_model import MODEL, migrate_model
from grpo_pipeline.tasks.attention.migrate_objectives import (
    AUGMENTATION,
    REWARD,
    SUPERVISED_LOSS,
    WITHOUT_EFFECT,
    migrate_augmentation,
    migrate_reward,
    migrate_supervised_loss,
    without_keys,
)

SECTIONS = {
    "model": migrate_model,
    "reward": migrate_reward,
    "supervised_loss": migrate_supervised_loss,
    "augmentation": migrate_augmentation,
    **{name: partial(without_keys, gone=gone) for name, gone in WITHOUT_EFFECT.items()},
}
"""Section -> what returns it in today's form."""
OLD = {
    "model": MODEL,
    "reward": {*REWARD},
    "supervised_loss": {*SUPERVISED_LOSS},
    "augmentation": {*AUGMENTATION},
    "value": {"pool"},
    "class_decoder": {"pool", "mm"},
    "tuning": {"stored"},
    **WITHOUT_EFFECT,
}
"""Section -> names that it has not today, or not with such a value."""
