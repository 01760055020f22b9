"""Print the parameters of an older version in the form of this one; no number changes.

    python -m grpo_pipeline.migrate conf/mine [more files or folders]

Each YAML file is printed with its name; comments are not kept. An arm's ``algorithm`` is migrated here, sections of a task by
the module ``migrate`` beside its ``spec``, where it has one. Everything else stays as it is.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from grpo_pipeline.tasks import TASKS

Migrate = Callable[[Mapping[str, Any]], dict[str, Any]]

# Old name in ``algorithm`` -> where it stands now.
MOVED = {
    "name": ("losses", "policy", "kind"),
    "policy_weight": ("losses", "policy", "weight"),
    "supervised_weight": ("losses", "supervised", "weight"),
    "kl_weight": ("losses", "kl", "weight"),
    "kl_estimator": ("losses", "kl", "estimator"),
    "reference": ("losses", "kl", "reference"),
    "rollout_kl_weight": ("losses", "rollout_kl", "weight"),
    "value_weight": ("losses", "value", "weight"),
    "value_clip": ("losses", "value", "clip"),
    "entropy_weight": ("losses", "entropy", "weight"),
    "entropy_target": ("losses", "entropy", "target"),
}
OLD = {*MOVED, "policy_loss", "kl_placement"}
LOSSES = ("supervised", "policy", "kl", "value", "entropy")
BOUNDS = ("clip_low", "clip_high")
TAUS = {"tau_positive": 1.0, "tau_negative": 1.05}
"""Keys of ``losses.policy`` that are constants now."""
GONE = {"losses": {"rollout_kl"}, "kl_in_reward": {"reference"}, "policy": {*TAUS}}
"""Section of an algorithm -> keys that no version has any more."""
UNSCALED = ("mean_only", "leave_one_out", "opo", "pass_at_k")
"""Methods of an advantage that divide by no deviation, and once had the keys of one."""
OF_A_DEVIATION = {"std", "eps"}
INITIAL: tuple[dict[str, Any], ...] = (
    {},
    {"update": "frozen"},
    {"path": None},
    {"update": "frozen", "path": None},
)
"""A reference that is the initial policy."""
OF_TRAINING = {"loader", "compile"}
"""Keys of ``training`` that no version has any more; none changed a result."""


def migrate(parameters: Any) -> Any:
    """Return all parameters of a file in the new form."""
    if not isinstance(parameters, Mapping):
        return parameters
    return {
        name: _migrated(value, sections_of(name), getattr(_module_of(name), "DIVIDED", {}))
        for name, value in parameters.items()
    }


def sections_of(task: str) -> dict[str, Migrate]:
    """Map each section to the function that migrates it, for a task; without a task of this name, for all tasks."""
    module = _module_of(task)
    sections = {"algorithm": migrate_algorithm, "training": migrate_training}
    return sections | (module.SECTIONS if module else {})


def is_old(path: str) -> bool:
    """Check whether a dotted path ends with a name that its section, or the task, had in an older version only."""
    task, *below = path.split(".")
    module = _module_of(task)
    if below and below[-1] in getattr(module, "DIVIDED", {}):
        return True
    if len(below) < 2:
        return False
    section, name = below[-2:]
    return name in {
        "algorithm": OLD,
        "training": OF_TRAINING,
        **GONE,
        **getattr(module, "OLD", {}),
    }.get(section, ())


@cache
def _module_of(task: str) -> Any:
    """Import the module ``migrate`` of a task; None where there is none."""
    package = TASKS.get(task, "").rpartition(".")[0]
    name = f"{package}.migrate"
    return import_module(name) if package and find_spec(name) else None


def _migrated(values: Any, sections: Mapping[str, Migrate], divided: Mapping[str, Migrate]) -> Any:
    if isinstance(values, list):
        return [_migrated(value, sections, divided) for value in values]
    if not isinstance(values, Mapping):
        return values
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name in divided and isinstance(value, Mapping):
            found |= divided[name](value)
        elif name in sections and isinstance(value, Mapping):
            found[name] = sections[name](value)
        else:
            found[name] = _migrated(value, sections, divided)
    return found


def migrate_training(old: Mapping[str, Any]) -> dict[str, Any]:
    """Migrate a section ``training``, or the changes of a section to its base."""
    return {name: value for name, value in old.items() if name not in OF_TRAINING}


def migrate_algorithm(old: Mapping[str, Any]) -> dict[str, Any]:
    """Migrate a section ``algorithm``, or the changes of a section to its base."""
    found: dict[str, Any] = {}
    for name, path in MOVED.items():
        if name in old:
            value = old[name]
            if name == "entropy_target" and isinstance(value, Mapping):
                value = {"nats" if key == "target" else key: each for key, each in value.items()}
            _put(found, path, value)
    losses = found.get("losses", {})
    if isinstance(given := old.get("policy_loss"), Mapping):
        losses.setdefault("policy", {}).update(given)
    for name, term in list(losses.items()):
        if _is_zero(term.get("weight", 1.0)):
            losses[name] = None  # takes away what the base has
    if old.get("name") == "supervised":
        # A whole section names its one term; one that changes its base takes the others away.
        gone = () if "advantage" in old else [name for name in LOSSES if name != "supervised"]
        losses = {k: v for k, v in losses.items() if k == "supervised"} | dict.fromkeys(gone)
    elif old.get("policy_loss", ...) is None:
        losses["policy"] = None
    elif (kind := old.get("name")) in ("reinforce", "cispo", "sapo") and losses.get("policy"):
        # Without a policy_loss of its own an arm has that of its base, whose bounds this kind does not have.
        bounds = dict.fromkeys(BOUNDS) if given is None else {}
        kept = {key: value for key, value in losses["policy"].items() if key not in BOUNDS}
        losses["policy"] = {**kept, **bounds, "kind": kind}
    if old.get("kl_placement") == "reward" and losses.get("kl"):
        found["kl_in_reward"], losses["kl"] = losses["kl"], None
    found.pop("losses", None)
    rest = {name: value for name, value in old.items() if name not in OLD}
    if old.get("name") == "supervised":
        rest = {"proposal": "uniform"} | rest
    return _without_gone({**({"losses": losses} if losses else {}), **rest, **found})


def _without_gone(algorithm: dict[str, Any]) -> dict[str, Any]:
    """Drop keys that no version has any more where they did nothing; a run refuses others."""
    found = dict(algorithm)
    losses, paid = found.get("losses"), found.get("kl_in_reward")
    compared = found.get("advantage")
    if isinstance(compared, Mapping) and compared.get("method") in UNSCALED:
        found["advantage"] = {k: v for k, v in compared.items() if k not in OF_A_DEVIATION}
    if isinstance(losses, Mapping) and losses:
        kept = dict(losses)
        if kept.get("rollout_kl", ...) is None:
            del kept["rollout_kl"]
        if isinstance(policy := kept.get("policy"), Mapping):
            kept["policy"] = {
                name: value for name, value in policy.items() if value != TAUS.get(name, ...)
            }
        found["losses"] = kept
        if not kept:
            del found["losses"]
    if isinstance(paid, Mapping) and paid.get("reference") in INITIAL:
        found["kl_in_reward"] = {name: value for name, value in paid.items() if name != "reference"}
    return found


def _put(into: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for part in path[:-1]:
        into = into.setdefault(part, {})
    into[path[-1]] = value


def _is_zero(weight: Any) -> bool:
    ends = [weight.get("start"), weight.get("end")] if isinstance(weight, Mapping) else [weight]
    return not any(ends)


def files_of(places: Sequence[Path]) -> Iterator[Path]:
    """Yield the YAML files of files and folders."""
    for place in places:
        yield from sorted(place.rglob("*.yml")) if place.is_dir() else [place]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the files that change; return the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("places", nargs="+", type=Path, metavar="FILE_OR_FOLDER")
    given = parser.parse_args(arguments)
    if missing := [str(place) for place in given.places if not place.exists()]:
        print(f"error: {missing[0]} must exist, got no such file or folder", file=sys.stderr)
        return 1
    changed = 0
    for file in files_of(given.places):
        old = yaml.safe_load(file.read_text(encoding="utf-8"))
        new = migrate(old)
        if new != old:
            changed += 1
            print(f"# {file}\n{yaml.safe_dump(new, sort_keys=False, width=120)}")
    print(f"{changed} files change; copy what is printed into them", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
