"""How the task is described to the project; this module imports no torch."""

from grpo_pipeline.tasks.spec import TaskSpec, Wording

SPEC = TaskSpec(
    name="digits",
    arms=("supervised", "grpo"),
    metrics="digits.task:build_suite",
    key="digit_id",
    noun="picture",
    pipelines="digits.pipeline",
    words=Wording(drawn="expected over guesses", gain="its guesses − uniform", rule="guesses", others="Other guesses"),
)
