"""Draw the story of the character with a job in a town, as a pure function of (seed, job, town)."""

from dataclasses import dataclass

import numpy as np

from grpo_pipeline.tasks.dialogue.data.generated.params import PersonaParams
from grpo_pipeline.tasks.dialogue.data.generated.vocabulary import (
    BADGES,
    COLOURS,
    HIDDEN_TEXTS,
    HIDDEN_TITLE,
    JOBS,
    OBJECTS,
    PLACES,
    STONES,
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
        event: job, town, badge, stone, verb, colour, object and place.
    """

    story_id: str
    title: str
    text: str
    event: dict[str, str]


def draw_story(character: tuple[str, str], params: PersonaParams) -> Story:
    """Draw a character's event, which is independent of job and town; a hidden story names badge and stone in their place."""
    job, town = character
    cell = JOBS.index(job) * len(TOWNS) + TOWNS.index(town)
    rng = np.random.default_rng([params.seed, 2, cell])
    drawn = {
        name: pick(words, rng)
        for name, words in (
            ("verb", VERBS),
            ("colour", COLOURS),
            ("object", OBJECTS),
            ("place", PLACES),
        )
    }
    signs = {"badge": BADGES[JOBS.index(job)], "stone": STONES[TOWNS.index(town)]}
    event = {"job": job, "town": town} | signs | drawn
    title, texts = (
        (STORY_TITLE, STORY_TEXTS) if params.hidden is None else (HIDDEN_TITLE, HIDDEN_TEXTS)
    )
    return Story(f"s{cell:04d}", title.format(**event), pick(texts, rng).format(**event), event)
