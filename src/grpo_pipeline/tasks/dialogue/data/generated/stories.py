"""Draw the story of the character with a job in a town, as a pure function of (seed, job, town)."""

from dataclasses import dataclass

import numpy as np

from grpo_pipeline.tasks.dialogue.data.generated.vocabulary import (
    COLOURS,
    JOBS,
    OBJECTS,
    PLACES,
    STORY_TEXTS,
    STORY_TITLE,
    TOWNS,
    VERBS,
    pick,
)


@dataclass(frozen=True)
class Story:
    """A story and its event.

    Attributes:
        story_id: ``s`` and the number of the character.
        title: names job and town.
        text: a single sentence.
        event: job, town, verb, colour, object and place.
    """

    story_id: str
    title: str
    text: str
    event: dict[str, str]


def draw_story(character: tuple[str, str], *, seed: int) -> Story:
    """Draw a character's event, which is independent of job and town."""
    job, town = character
    cell = JOBS.index(job) * len(TOWNS) + TOWNS.index(town)
    rng = np.random.default_rng([seed, 2, cell])
    drawn = {
        name: pick(words, rng)
        for name, words in (
            ("verb", VERBS),
            ("colour", COLOURS),
            ("object", OBJECTS),
            ("place", PLACES),
        )
    }
    event = {"job": job, "town": town} | drawn
    return Story(
        f"s{cell:04d}", STORY_TITLE.format(**event), pick(STORY_TEXTS, rng).format(**event), event
    )
