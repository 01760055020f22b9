"""Read the arms from the parameters: which are trained, their own sections, and the base arm of each.

<task>:
  arms: [supervised, grpo, plain]      # trained in this order; a name alone, or names with + between them, is a list, too
  plain:                               # a new arm is a section, and a name in the list
    base: grpo                         # everything that is not said here is as in this arm
    algorithm: {advantage: {method: mean_only}}
    training: {epochs: 20}             # any section of the task's: the arm's own, merged onto the one that the others share
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from grpo_pipeline.pipelines.parameter_merge import merge
from grpo_pipeline.tasks import TASKS, find_task
from grpo_pipeline.tasks.spec import TaskSpec

NAME = re.compile(r"[a-z][a-z0-9_]*")

ARMS, ALGORITHM, BASE, NOT_RUN = "arms", "algorithm", "base", "not_run"

# Boxes of a task beside its arms: the second part of the name of a node outside of all arms.
GROUPS = ("data", "audit", "evaluation", "report", "compare", "cross_validation", "predict")

# Arm -> its own sections of parameters, beside its algorithm.
Arms = Mapping[str, tuple[str, ...]]


def with_arms(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Complete the arms of every task in the parameters.

    An arm with a ``base`` takes all unset values from its base. If the control or the baseline arm of the evaluation is not
    trained, the first arm takes its place. ``evaluation.not_run`` then names the missing control.

    Args:
        parameters: parameters of the run, by task; they stay unchanged. Complete parameters come back equal.

    Raises:
        ValueError: an arm is unknown, named twice, or based on itself. The sentence names it.
    """
    found = dict(parameters)
    for task in TASKS:
        if isinstance(section := parameters.get(task), Mapping):
            found[task] = _complete(task, section)
    return found


def arms_of(spec: TaskSpec, parameters: Mapping[str, Any]) -> Arms:
    """List the arms of a task from the parameters that ``with_arms`` has completed, or from its spec."""
    section = parameters.get(spec.name)
    if not isinstance(section, Mapping) or ARMS not in section:
        return {arm: spec.own.get(arm, ()) for arm in spec.arms}
    return {arm: tuple(name for name in section[arm] if name != ALGORITHM) for arm in section[ARMS]}


def algorithms_of(spec: TaskSpec, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Collect the section ``algorithm`` of each arm and stage, as far as the parameters hold it."""
    section = parameters.get(spec.name)
    if not isinstance(section, Mapping):
        return {}
    names = (*spec.stages, *arms_of(spec, parameters))
    return {
        name: section[name].get(ALGORITHM)
        for name in names
        if isinstance(section.get(name), Mapping)
    }


def keeping_one(spec: TaskSpec, parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """List the arms that keep a single model, not both the last and the best weights (``training.keep``)."""
    section = parameters.get(spec.name)
    if not isinstance(section, Mapping):
        return ()
    shared = {"training": section.get("training")}
    loops = {
        arm: {**shared, **section.get(arm, {})}["training"] for arm in arms_of(spec, parameters)
    }
    return tuple(arm for arm, loop in loops.items() if (loop or {}).get("keep", "both") != "both")


def described_arms(task: str, section: Any) -> list[str]:
    """List the arms that a task's parameters describe, whether they are trained or not."""
    if not isinstance(section, Mapping):
        return []
    spec = find_task(task)
    stages = (*spec.optional_stages, *spec.stages)
    return [name for name, value in section.items() if _is_arm(value) and name not in stages]


def _complete(task: str, section: Mapping[str, Any]) -> dict[str, Any]:
    found, described = dict(section), described_arms(task, section)
    for name in described:
        found[name] = _whole(task, name, section, described)
    spec = find_task(task)
    for stage in (*spec.optional_stages, *spec.stages):
        if isinstance(section.get(stage), Mapping):
            _check_known(f"{task}.{stage}", section[stage], (ALGORITHM, "training"))
            found[stage] = _whole_stage(section, section[stage])
    if ARMS not in section:
        return found
    found[ARMS] = _names(task, section[ARMS], described)
    for arm in found[ARMS]:
        _check_sections(task, arm, found)
        # An arm's own section holds its differences from the shared section.
        found[arm] = {
            name: merge({name: found.get(name) or {}}, {name: own})[name]
            if isinstance(own, Mapping)
            else own
            for name, own in found[arm].items()
        }
    if "evaluation" not in found:
        return found
    _check_rules(task, found["evaluation"], described)
    return found | {"evaluation": _judged_by(found[ARMS], found["evaluation"])}


def _is_arm(section: Any) -> bool:
    return isinstance(section, Mapping) and (ALGORITHM in section or BASE in section)


def _whole(task: str, arm: str, section: Mapping[str, Any], described: list[str]) -> dict[str, Any]:
    """Merge an arm's section onto its chain of base arms."""
    chain = [arm]
    while (base := section[chain[-1]].get(BASE)) is not None:
        if base not in described or base in chain:
            known = ", ".join(name for name in described if name not in chain)
            raise ValueError(
                f"{task}.{chain[-1]}.base must be another arm, got {base!r}; name one of {known}"
            )
        chain.append(base)
    whole: dict[str, Any] = {}
    for name in reversed(chain):
        whole = merge(whole, {key: value for key, value in section[name].items() if key != BASE})
    return whole


def _whole_stage(section: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a stage's section onto the control's algorithm without samples, and onto the sections that arms share."""
    evaluation = section.get("evaluation") or {}
    control = section.get(str(evaluation.get(NOT_RUN) or evaluation.get("control"))) or {}
    algorithm = merge(control.get(ALGORITHM) or {}, {"proposal": "none"})
    return merge({ALGORITHM: algorithm, "training": section.get("training") or {}}, given)


def _names(task: str, given: Any, described: list[str]) -> list[str]:
    names = given.split("+") if isinstance(given, str) else list(given or [])
    for name in names:
        if name not in described:
            close = get_close_matches(str(name), described, n=1)
            meant = (
                f"did you mean {close[0]}?"
                if close
                else f"describe it in {task}.{name}, with base: or algorithm:"
            )
            raise ValueError(
                f"{task}.arms must be among {', '.join(described)}, got {name!r}; {meant}"
            )
        if not NAME.fullmatch(name) or name in GROUPS:
            taken = f", and not {', '.join(GROUPS)}" if name in GROUPS else ""
            raise ValueError(
                f"{task}.arms must be named by small letters, digits and _{taken}, got {name!r}; rename it"
            )
    if not names or len({*names}) < len(names):
        raise ValueError(
            f"{task}.arms must be different names, at least one, got {given!r}; choose among {', '.join(described)}"
        )
    return names


def _check_sections(task: str, arm: str, section: Mapping[str, Any]) -> None:
    """Refuse a section of an arm that the task does not have, because nothing would read it."""
    known = [
        name
        for name, value in section.items()
        if name not in (ARMS, "evaluation") and not _is_arm(value)
    ]
    _check_known(f"{task}.{arm}", section[arm], (ALGORITHM, *known))


def _check_known(path: str, given: Iterable[str], known: Sequence[str]) -> None:
    if unknown := [name for name in given if name not in known]:
        close = get_close_matches(unknown[0], known, n=1)
        meant = f"did you mean {close[0]}?" if close else f"it may have {', '.join(known)}"
        task = path.partition(".")[0]
        raise ValueError(f"{path} must hold sections of {task}, got {unknown[0]!r}; {meant}")


def _check_rules(task: str, evaluation: Mapping[str, Any], described: list[str]) -> None:
    """Refuse a rule of an arm that is not described, because no arm would be judged by it."""
    if unknown := [name for name in evaluation.get("rules") or {} if name not in described]:
        close = get_close_matches(unknown[0], described, n=1)
        meant = f"did you mean {close[0]}?" if close else "remove it"
        raise ValueError(
            f"{task}.evaluation.rules must name arms among {', '.join(described)}, got {unknown[0]!r}; {meant}"
        )


def _judged_by(arms: list[str], evaluation: Mapping[str, Any]) -> dict[str, Any]:
    absent = {
        key: arms[0] for key in ("control", "baseline_arm") if evaluation.get(key) not in arms
    }
    return {**evaluation, **absent} | (
        {NOT_RUN: evaluation["control"]} if "control" in absent else {}
    )
