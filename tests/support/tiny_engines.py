"""Engines that draw for toy tasks: one that agrees with the policy, and one that draws at another temperature."""

from typing import Any

from tiny_choices import TinyChoices
from torch import Generator

from grpo_pipeline.core.types import Rollouts


class Alike(TinyChoices):
    """An engine that draws exactly what the task would draw itself."""

    engine, hotter = "alike", 1.0

    def sample(self, *args: Any, temperature: float, proposal: str, generator: Generator) -> Rollouts:
        if proposal == "engine":
            temperature, proposal = self.hotter * temperature, "policy"
        return super().sample(*args, temperature=temperature, proposal=proposal, generator=generator)


class Elsewhere(Alike):
    """An engine that draws at one and a half times the temperature, and says so in its log-probabilities."""

    engine, hotter = "elsewhere", 1.5
