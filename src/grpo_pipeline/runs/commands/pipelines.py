"""Run a task's pipelines: ``grpo run``, ``check``, ``compare`` and ``report``."""

import math
from collections.abc import Iterator
from typing import Any

import click
from kedro.framework.cli.project import run as kedro_run

from grpo_pipeline.core.params import LENGTH
from grpo_pipeline.runs.commands.options import (
    TASK_HELP,
    check_task,
    find_project,
    kedro_option,
    open_session,
    run_pipelines,
    task_option,
)
from grpo_pipeline.tasks import find_task

STEP_METRICS = ".probe_step_metrics"
STAGE_STEPS = 20  # of a stage before the arms, in a check
WORDS = {
    "reward/mean": "reward",
    "reward/std": "deviation in a group",
    "supervised/loss": "supervised loss",
    "grad_norm/total": "gradient",
}


def _run(task: str | None, pipelines: list[str], **given: Any) -> Any:
    find_project()
    names = [*pipelines, *([task] if task else [])]
    return kedro_run.callback(pipelines=names, **given)  # type: ignore[misc]


run = click.Command(
    "run",
    params=[
        click.Option(["--task"], callback=check_task, help=TASK_HELP),
        *kedro_run.params,
    ],
    callback=_run,
    help="""Run a task from its data to its report: kedro run.

    \b
    grpo run --task attention                              # kedro run --pipelines attention
    grpo run --task dialogue --env smoke --params seed=1   # conf/smoke; any parameter for this run alone
    grpo run --task molecules --params resume=auto         # go on after Ctrl-C or a kill
    grpo run --pipelines attention_train                   # a part; kedro registry list names all
    """,
)


@click.command()
@task_option()
@kedro_option("env")
@kedro_option("params")
def check(task: str, env: str | None, params: dict[str, Any]) -> None:
    """Read the data, take the first training step of each arm, and say what was seen.

    A stage before the arms, such as a warm start, is cut to a few steps, unless --params says how long it is.

    \b
    grpo check --task attention
    grpo check --task dialogue --env mine --params dialogue.training.group_size=4
    """  # noqa: D301
    stages = uncut_stages(task, env, params)
    section = dict(params.get(task, {}))
    for stage in stages:
        own = section.get(stage, {})
        section[stage] = own | {"training": own.get("training", {}) | {"max_steps": STAGE_STEPS}}
    results = run_pipelines([f"{task}_step"], env, params | {task: section} if stages else params)
    for name, dataset in results.items():
        if name.endswith(STEP_METRICS):
            arm = name.removeprefix(f"{task}.").removesuffix(STEP_METRICS)
            click.echo(f"{arm}: {', '.join(seen(dataset.load(), is_cut=bool(stages)))}")
    for stage in stages:
        click.echo(
            f"{task}.{stage} was cut to {STAGE_STEPS} steps, and the arms begin as it left them; in full: kedro run --pipelines "
            f"{task}_step" + (f" --env {env}" if env else "")
        )
    click.echo(
        f"The data are read, and each arm can take a step. Train with: grpo run --task {task}"
        + (f" --env {env}" if env else "")
    )


def uncut_stages(task: str, env: str | None, params: dict[str, Any]) -> list[str]:
    """List the stages before the arms whose length the user has not given."""
    with open_session(env, params) as session:
        section = session.read_context().params.get(task) or {}
    given = params.get(task, {})
    return [
        stage
        for stage in find_task(task).with_stages_of(section).stages
        if section.get(stage) and not {*LENGTH} & {*given.get(stage, {}).get("training", {})}
    ]


def seen(metrics: dict[str, Any], *, is_cut: bool = False) -> Iterator[str]:
    """Yield what the metrics of a first step say, those that the arm has.

    Args:
        metrics: of the step.
        is_cut: whether the arm began with less than it will begin with: ties then say little of the reward.
    """
    found = {name: float(value) for name, value in metrics.items()}
    for name, words in WORDS.items():
        if not math.isnan(found.get(name, math.nan)):
            yield f"{words} {found[name]:.3g}"
    ties = found.get("reward/ties_fraction")  # of groups: an arm of single samples has none
    if ties is not None:
        is_told = ties == 1 and not is_cut
        yield f"{ties:.0%} of the groups tie{': the reward teaches nothing yet' if is_told else ''}"


@click.command()
@task_option()
@kedro_option("env")
@kedro_option("params")
def compare(task: str, env: str | None, params: dict[str, Any]) -> None:
    """Train the arms of <task>.compare on several seeds and write one table; the same command goes on after a stop.

    \b
    grpo compare --task attention --env ablation
    grpo compare --task dialogue
    """  # noqa: D301
    run_pipelines([f"{task}_compare"], env, params)


@click.command()
@task_option()
@kedro_option("env")
@kedro_option("params")
def report(task: str, env: str | None, params: dict[str, Any]) -> None:
    """Evaluate the arms of the last run again, state the answer and write the page; nothing is trained.

    \b
    grpo report --task attention
    grpo report --task molecules --env smoke --params details=true
    """  # noqa: D301
    run_pipelines([f"{task}_evaluate"], env, params)
