"""The section ``model`` of older versions in today's form: of their files, and of the models that they exported."""

from collections.abc import Mapping
from typing import Any

# Old name in ``model`` -> where its value stands now; ``_encoder`` and ``_without_unused`` do the rest.
MOVED = {
    "encoder_width": ("encoder", "width"),
    "encoder_layers": ("encoder", "layers"),
    "encoder_heads": ("encoder", "heads"),
    "encoder_window": ("encoder", "window"),
    "feature_channels": ("mask_decoder", "channels"),
    "decoder_layers": ("mask_decoder", "layers"),
    "decoder_heads": ("mask_decoder", "heads"),
    "policy_reads": ("policy", "reads", "kind"),
    "policy_encoder": ("policy", "reads", "encoder"),
    "policy_channels": ("policy", "channels"),
    "texture_channels": ("policy", "filters"),
    "prior": ("policy", "prior", "kind"),
    "prior_strength": ("policy", "prior", "strength"),
    "blob_widths": ("policy", "prior", "widths"),
    "stop": ("policy", "stop"),
    "likelihood": ("policy", "likelihood"),
    "value_pool": ("value", "pool"),
    "glimpse_size": ("class_decoder", "size"),
    "glimpse_channels": ("class_decoder", "channels"),
    "glimpse_pool": ("class_decoder", "pool"),
    "field_cells": ("class_decoder", "fields"),
    "field_mm": ("class_decoder", "mm"),
    "decoder_folds": ("class_decoder", "folds"),
    "reads_region": ("class_decoder", "region"),
    "reads_mask": ("class_decoder", "mask"),
    "detail_channels": ("detail", "channels"),
}
ENCODER = ("encoder_tuning", "feature_dtype", "checkpoint")
DELETED = {"looks": 1, "looks_at": None, "mask_prompt": False, "point_labels": "foreground"}
"""Keys that no version has any more, with the value that did without them."""
GONE = {
    ("box",): None,
    ("value", "pool"): "image",
    ("class_decoder", "pool"): "mean",
    ("class_decoder", "mm"): None,
    ("encoder", "tuning", "stored"): "float32",
}
"""Places of keys that the parts had, with the value that did without them."""
MODEL = {*MOVED, *ENCODER, *DELETED, "encoder", "class_decoder", "box", "value"}
"""Names that the section has not today, or not with such a value."""
WHOLE = {
    *{name for name, path in MOVED.items() if path[0] in ("encoder", "mask_decoder", "value")},
    *("patch_size", "points", "encoder", "class_decoder", "policy_channels", "texture_channels"),
    *("glimpse_size", "glimpse_channels", "glimpse_pool"),
}
"""Keys of every whole section; what has fewer changes its base."""
CLASS_DECODERS = {
    "glimpse": ("kind", "size", "channels", "pool"),
    "statistics": ("kind", "fields", "mm", "folds", "region", "mask", "pool"),
    "global": ("kind",),
}


def migrate_model(old: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section ``model``, or what one changes of its base, in today's form; today's form comes back equal.

    What its model does not use is left out. Unknown keys stay, for whoever reads the section to refuse.
    """
    kept = {name: value for name, value in old.items() if (name, value) not in DELETED.items()}
    names = ("encoder", "class_decoder")
    if not (kept.keys() & {*MOVED, *ENCODER} or any(isinstance(kept.get(n), str) for n in names)):
        return _without_gone({name: _present(name, value) for name, value in kept.items()})
    found: dict[str, Any] = {}
    for name, value in kept.items():
        if name in MOVED:
            _put(found, MOVED[name], value)
        elif name == "class_decoder" and isinstance(value, str):
            _put(found, (name, "kind"), value)
        elif isinstance(value, Mapping) and name not in ENCODER:  # partly of today's form
            found[name] = {**value, **found.get(name, {})}
        elif name not in ("encoder", *ENCODER):
            found[name] = _present(name, value)
    if encoder := _encoder(kept, found.pop("encoder", {})):
        found["encoder"] = encoder
    if kept.keys() >= WHOLE:  # the first versions had no other
        found["policy"].setdefault("reads", {}).setdefault("kind", "image")
    return _without_unused(_without_gone(found))


def _present(name: str, value: Any) -> Any:
    return None if (name, value) in (("heatmap", "decoder"), ("box", "none")) else value


def _without_gone(found: dict[str, Any]) -> dict[str, Any]:
    for path, idle in GONE.items():
        found = _dropped(found, path, idle)
    return found


def _dropped(section: dict[str, Any], path: tuple[str, ...], idle: Any) -> dict[str, Any]:
    """Drop the key at a path where it has its idle value, and sections that nothing else is left of."""
    name, *rest = path
    value = section.get(name, ...)
    if value is ...:
        return section
    if rest and isinstance(value, dict):
        kept = _dropped(value, tuple(rest), idle)
        is_gone = bool(value) and not kept
    else:
        kept, is_gone = value, not rest and value == idle
    others = {key: each for key, each in section.items() if key != name}
    return others if is_gone else {**section, name: kept}


def _put(into: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        into[part] = {**(into.get(part) or {})}
        into = into[part]
    into[path[-1]] = value


def _encoder(old: Mapping[str, Any], sizes: dict[str, Any]) -> dict[str, Any]:
    """Return the section ``encoder`` of a model; published weights have their own sizes."""
    found = sizes
    if checkpoint := old.get("checkpoint"):
        found = {"format" if key == "kind" else key: value for key, value in checkpoint.items()}
        found = {"kind": "sam", **found}
    elif old.keys() >= WHOLE:
        found = {"kind": "new", **sizes}
    tuning = {key: x for key, x in (old.get("encoder_tuning") or {}).items() if x is not None}
    kind = None if isinstance(old.get("encoder"), Mapping) else old.get("encoder")
    if kind in (None, "frozen") and "feature_dtype" in old:
        tuning["stored"] = old["feature_dtype"]
    if kind == "train":
        return {**found, "tuning": None}
    tuning = tuning if kind is None else {"kind": kind, **tuning}
    return {**found, "tuning": tuning} if tuning else found


def _without_unused(found: dict[str, Any]) -> dict[str, Any]:
    """Drop what a kind does not read, and put null in the place of a part that is switched off."""
    policy, decoder = found.get("policy") or {}, found.get("class_decoder") or {}
    if (reads := policy.get("reads")) and reads.get("kind", "image") != "image":
        reads.pop("encoder", None)
    if (policy.get("prior") or {}).get("kind") == "none":
        policy["prior"] = None
    if decoder.get("mask") == "none":
        decoder["mask"] = None
    if kind := decoder.get("kind"):
        known = CLASS_DECODERS.get(kind, decoder)
        found["class_decoder"] = {name: decoder[name] for name in decoder if name in known}
    if found.get("detail") == {"channels": 0}:
        found["detail"] = None
    return found
