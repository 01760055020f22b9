"""How the task is described to the project; this module imports no torch."""

from pydantic import BaseModel, ConfigDict, Field

from grpo_pipeline.tasks.spec import TaskSpec, Wording


class ModelParams(BaseModel):
    """The network."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    width: int = Field(ge=1, description="numbers that the network carries from letter to letter")


SPEC = TaskSpec(
    name="reverse",
    arms=("supervised", "grpo"),
    stages=("warm_start",),
    metrics="reverse.task:build_suite",
    key="word",
    noun="word",
    sections={"model": ModelParams},
    pipelines="reverse.pipeline",
    words=Wording(drawn="mean over sampled words", gain="its words − a copy", rule="words", others="Other words"),
)
