"""Draw personas, as a pure function of (seed, number)."""

from dataclasses import dataclass

import numpy as np

from grpo_pipeline.tasks.dialogue.data.generated.params import PersonaParams
from grpo_pipeline.tasks.dialogue.data.generated.vocabulary import (
    JOBS,
    STATEMENTS,
    TOWNS,
    VALUES,
    pick,
)

OPTIONAL = ("pet", "food", "hobby", "kin")


@dataclass(frozen=True)
class Persona:
    """A speaker with a job, a town and other facts.

    Attributes:
        number: from 0.
        facts: attribute -> value; job and town are always there.
        sentences: the facts in words, in random order.
    """

    number: int
    facts: dict[str, str]
    sentences: tuple[str, ...]

    @property
    def persona_id(self) -> str:
        """``p`` and the number."""
        return f"p{self.number:04d}"


def characters(params: PersonaParams) -> list[tuple[str, str]]:
    """List every (job, town) in the order of the seed; persona i is character i, extra stories count from the end.

    With hidden stories the first jobs and towns alone.
    """
    order = np.random.default_rng([params.seed, 0]).permutation(len(JOBS) * len(TOWNS))
    cast = [(JOBS[cell // len(TOWNS)], TOWNS[cell % len(TOWNS)]) for cell in order]
    if params.hidden is None:
        return cast
    jobs, towns = JOBS[: params.hidden.jobs], TOWNS[: params.hidden.towns]
    return [(job, town) for job, town in cast if job in jobs and town in towns]


def draw_persona(character: tuple[str, str], *, number: int, seed: int, sentences: int) -> Persona:
    """Draw the other facts of a persona and the words for all of them.

    Args:
        character: its job and town.
        number: of the persona.
        seed: of the data set.
        sentences: number of facts, job and town among them.
    """
    rng = np.random.default_rng([seed, 1, number])
    others = [str(name) for name in rng.permutation(OPTIONAL)[: sentences - 2]]
    facts = dict(zip(("job", "town"), character, strict=True)) | {
        name: pick(VALUES[name], rng) for name in others
    }
    said = [state(name, facts[name], rng) for name in facts]
    return Persona(number, facts, tuple(said[place] for place in rng.permutation(len(said))))


def state(attribute: str, value: str, rng: np.random.Generator) -> str:
    """Write a sentence that states a fact."""
    return pick(STATEMENTS[attribute], rng).format(value)
