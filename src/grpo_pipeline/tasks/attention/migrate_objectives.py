"""Sections ``reward``, ``supervised_loss`` and ``augmentation`` of older versions in today's form.

Weights were flat and mostly 0.
"""

from collections.abc import Collection, Mapping
from typing import Any

# Old name -> the part, its key, and the value that did nothing.
Moved = Mapping[str, tuple[str, str, Any]]
REWARD: Moved = {
    "class_weight": ("class", "weight", 0),
    "heatmap_weight": ("heatmap", "weight", 0),
    "diversity_weight": ("diversity", "weight", 0),
    "activation_weight": ("activation", "weight", 0),
    "boundary_weight": ("boundary", "weight", 0),
    "boundary_margin": ("boundary", "margin", 0.1),
    "points_weight": ("points", "weight", 0),
    "dice_weight": ("dice", "weight", 0),
    "cspca_weight": ("priority", "weight", 1),
    "cspca_min_grade": ("priority", "min_grade", 3),
}
SUPERVISED_LOSS: Moved = {
    "class_weight": ("class", "weight", 0),
    "class_form": ("class", "form", "cross_entropy"),
    "heatmap_weight": ("heatmap", "weight", 0),
    "needle_weight": ("needle", "weight", 0),
    "needle_form": ("needle", "form", "cross_entropy"),
    "needle_positive_weight": ("needle", "positive_weight", 1),
    "mil_weight": ("mil", "weight", 0),
    "mil_share": ("mil", "share", 0.2),
    "mil_on": ("mil", "instances", "pixels"),
    "entropy_weight": ("entropy", "weight", 0),
    "outline_weight": ("outline", "weight", 0),
    "heatmap_outline_weight": ("heatmap_outline", "weight", 0),
    "glimpse_weight": ("glimpse", "weight", 0),
    "class_penalty": ("ridge", "weight", 0),
    "location_weight": ("location", "weight", 0),
}

WITHOUT_EFFECT = {
    "data": {"workers"},
    "predict": {"workers", "columns", "folders", "spacing_mm"},
    "phantom": {"chunk_size"},
}
"""Section -> keys that no version has any more; none changed a result. A prediction reads what ``attention.data`` says."""
AUGMENTATION = {"vertical_flip": 0, "blackout_patches": 0, "blackout_size": 0.1}
"""Keys that no version has any more, with the value that did without them."""


def without_keys(old: Mapping[str, Any], *, gone: Collection[str]) -> dict[str, Any]:
    """Return a section without these keys."""
    return {name: value for name, value in old.items() if name not in gone}


def migrate_augmentation(old: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section ``augmentation`` without deleted keys that did nothing; a run refuses others."""
    return {name: value for name, value in old.items() if value != AUGMENTATION.get(name, ...)}


def migrate_reward(old: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section ``reward``, or what one changes of its base, in today's form; today's form comes back equal."""
    return _in_parts(old, REWARD)


def migrate_supervised_loss(old: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section ``supervised_loss``, or what one changes of its base, in today's form; today's form comes back equal."""
    return _in_parts(old, SUPERVISED_LOSS)


def _in_parts(old: Mapping[str, Any], moved: Moved) -> dict[str, Any]:
    """Gather the keys of each part; one whose weight did nothing is null, which takes it away from its base.

    Keys beside such a weight that are not the usual ones stay without it, and a run refuses them: another file may have given
    the weight.
    """
    found: dict[str, Any] = {}
    for name, value in old.items():
        if name in moved:
            part, key, _ = moved[name]
            found.setdefault(part, {})[key] = value
        else:
            found[name] = value
    idle = {(part, key): value for part, key, value in moved.values()}
    for part in {moved[name][0] for name in old if name in moved}:
        if found[part].get("weight", ...) == idle[part, "weight"]:
            found[part] = {k: x for k, x in found[part].items() if x != idle[part, k]} or None
    return found
