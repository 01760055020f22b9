"""Engines that draw for toy tasks: one that agrees with the policy, and one that draws at another temperature."""

from typing import Any

import torch
from tiny_choices import ChoicePolicy, Encoded, TinyChoices
from torch import Generator

from grpo_pipeline.core.types import Rollouts


class Alike(TinyChoices):
    """An engine that draws exactly what the task would draw itself."""

    engine, hotter = "alike", 1.0

    @torch.no_grad()
    def draw(self, policy: ChoicePolicy, context: Encoded, group: int, *, temperature: float, generator: Generator) -> Rollouts:
        drawn: Any = {"temperature": self.hotter * temperature, "proposal": "policy", "generator": generator}
        return self.sample(policy, context, group, **drawn)


class Elsewhere(Alike):
    """An engine that draws at one and a half times the temperature, and says so in its log-probabilities."""

    engine, hotter = "elsewhere", 1.5
