"""Resolve the candidate settings of each arm before anything is trained."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_pipeline.pipelines.experiments.trials.arms import ResolvedArm, Sections, resolve_arms
from grpo_pipeline.pipelines.experiments.trials.trial_params import ArmParams, GridParams
from grpo_pipeline.pipelines.parameter_merge import merge
from grpo_pipeline.pipelines.params import CrossValidationParams
from grpo_pipeline.statistics.metric import MetricSuite

PLAIN = ""

REWARD = "reward"  # the metric


@dataclass(frozen=True)
class Settings:
    """The settings that may be trained.

    Attributes:
        task: name of the task.
        arms: arm -> candidate -> resolved arm; the control first. Without candidates the only one is ``PLAIN``.
    """

    task: str
    arms: Mapping[str, Mapping[str, ResolvedArm]]

    @property
    def resolved(self) -> dict[str, ResolvedArm]:
        """Name of the trials -> resolved arm: ``grpo``, or ``grpo.wide`` with the candidate ``wide``."""
        return {
            trial_arm(arm, name): one
            for arm, found in self.arms.items()
            for name, one in found.items()
        }


def trial_arm(arm: str, candidate: str) -> str:
    """Return the name under which an arm with a candidate's settings is trained."""
    return arm if candidate == PLAIN else f"{arm}.{candidate}"


def resolve_settings(
    params: CrossValidationParams, parameters: Mapping[str, Any], *, task: str, models: Sections
) -> Settings:
    """Return every arm with every candidate, each with its sections merged and validated.

    Args:
        params: arms and candidates.
        parameters: the task's parameters as they are in YAML.
        task: name of the task.
        models: section of the task -> its model.

    Raises:
        ValueError: naming the arm (``grpo.wide`` is grpo with the candidate wide) and the path of what is wrong.
    """
    candidates = params.candidates or {PLAIN: {}}
    found: dict[str, dict[str, ResolvedArm]] = {}
    for name, changes in candidates.items():
        changed = {
            arm: described.model_copy(update={"set": merge(described.set, changes)})
            for arm, described in params.present.items()
        }
        for arm, one in _resolve(
            params, changed, name, parameters, task=task, models=models
        ).items():
            found.setdefault(arm, {})[name] = one
    return Settings(task, found)


def check_metrics(params: CrossValidationParams, suite: MetricSuite, *, task: str) -> None:
    """Raise ValueError if a metric or a rule is unknown to the task, or the deciding metric has no good side."""
    where = f"{task}.cross_validation"
    suite = suite.for_names((*params.primary_metrics, params.selection_metric))
    for path, name in [
        *(("primary_metrics", name) for name in params.primary_metrics),
        ("selection_metric", params.selection_metric),
    ]:
        if name not in suite.metrics:
            raise ValueError(
                f"{where}.{path} must be among {', '.join(suite.metrics)}, got {name!r}; correct it"
            )
    if suite.metrics[params.selection_metric].better == "none":
        raise ValueError(
            f"{where}.selection_metric must be a metric with a good side, got {params.selection_metric!r}; "
            "take one with an arrow in docs/metrics.md"
        )
    for name, arm in params.present.items():
        if arm.rule not in suite.rules:
            raise ValueError(
                f"{where}.arms.{name}.rule must be among {', '.join(suite.rules)}, got {arm.rule!r}; correct it"
            )


def check_reward(params: CrossValidationParams, settings: Settings, *, task: str) -> None:
    """Raise ValueError if arms have different rewards: the column ``reward`` has each arm's own weights."""
    arms = settings.resolved
    first = next(iter(arms.values())).parameters.get(REWARD)
    other = [name for name, arm in arms.items() if arm.parameters.get(REWARD) != first]
    deciding = (params.selection_metric,) if params.candidates else ()
    if other and REWARD in (*params.primary_metrics, *deciding):
        field = "primary_metrics" if REWARD in params.primary_metrics else "selection_metric"
        raise ValueError(
            f"{task}.cross_validation.{field} must not be or hold {REWARD!r} where arms weigh its parts differently, got it with "
            f"{other[0]}; name a part, such as reward_class, that means the same in every arm"
        )


def _resolve(
    params: CrossValidationParams,
    changed: Mapping[str, ArmParams],
    candidate: str,
    parameters: Mapping[str, Any],
    *,
    task: str,
    models: Sections,
) -> dict[str, ResolvedArm]:
    """Resolve the arms with the changes of a candidate."""
    grid = GridParams(
        seeds=params.seeds, control=params.control, arms=dict(changed), keep=params.keep
    )
    section = (
        "cross_validation" if candidate == PLAIN else f"cross_validation.candidates.{candidate}"
    )
    return resolve_arms(grid, parameters, task=task, models=models, section=section)
