"""Draw exchanges: turns of context that end in a question, and the right replies."""

from dataclasses import dataclass

import numpy as np

from grpo_pipeline.tasks.dialogue.data.generated.params import PersonaParams
from grpo_pipeline.tasks.dialogue.data.generated.personas import Persona, state
from grpo_pipeline.tasks.dialogue.data.generated.stories import Story
from grpo_pipeline.tasks.dialogue.data.generated.vocabulary import (
    ACKNOWLEDGEMENTS,
    GREETINGS,
    HIDDEN_REPLIES,
    QUESTIONS,
    REPLIES,
    STATEMENTS,
    STORY_QUESTIONS,
    STORY_REPLIES,
    VALUES,
    pick,
)

KINDS = ("persona", "story", "none")

TWO_ANSWERS = 0.5
"""Probability that both phrasings of the reply are references."""


@dataclass(frozen=True)
class Exchange:
    """An example before it is written to a file.

    Attributes:
        turns: turns of context, oldest first; the last turn is the question.
        answers: one or two right replies; the first has the phrasing that goes with the question.
        needs: source of the right reply: persona, story or none.
    """

    turns: tuple[str, ...]
    answers: tuple[str, ...]
    needs: str


def draw_exchange(persona: Persona, story: Story, number: int, params: PersonaParams) -> Exchange:
    """Draw the exchange ``number`` of a persona, a pure function of (seed, persona, number).

    The remarks before the question state facts of the other speaker. In half of the exchanges, the first remark is about the
    attribute in question, with another value than the persona's.
    """
    rng = np.random.default_rng([params.seed, 3, persona.number, number])
    shares = [getattr(params.needs, kind) for kind in KINDS]
    needs = KINDS[int(rng.choice(len(KINDS), p=shares))]
    told = STORY_REPLIES if params.hidden is None else HIDDEN_REPLIES
    asked, question, replies = ask(needs, persona, story, told, rng)
    n_answers = 2 if rng.random() < TWO_ANSWERS else 1
    return Exchange(
        (*remarks(persona, asked, params.exchanges, rng), question), replies[:n_answers], needs
    )


def ask(
    needs: str,
    persona: Persona,
    story: Story,
    story_replies: tuple[str, ...],
    rng: np.random.Generator,
) -> tuple[str, str, tuple[str, ...]]:
    """Draw the attribute in question, the question, and its replies, first the reply with the question's phrasing."""
    if needs == "none":
        greeting, replies = GREETINGS[int(rng.integers(len(GREETINGS)))]
        return pick(tuple(VALUES), rng), greeting, replies
    phrasing = int(rng.integers(2))
    if needs == "story":
        told = [reply.format(**story.event) for reply in story_replies]
        return "town", STORY_QUESTIONS[phrasing], (told[phrasing], told[1 - phrasing])
    attribute = pick(tuple(persona.facts), rng)
    said = [reply.format(persona.facts[attribute]) for reply in REPLIES[attribute]]
    return attribute, QUESTIONS[attribute][phrasing], (said[phrasing], said[1 - phrasing])


def remarks(persona: Persona, asked: str, most: int, rng: np.random.Generator) -> list[str]:
    """Draw remarks of the other speaker, each with its acknowledgement; none states a fact of the persona."""
    turns: list[str] = []
    for _ in range(int(rng.integers(most + 1))):
        about = asked if not turns and rng.random() < 0.5 else pick(tuple(STATEMENTS), rng)
        others = tuple(value for value in VALUES[about] if value != persona.facts.get(about))
        turns += [state(about, pick(others, rng), rng), pick(ACKNOWLEDGEMENTS, rng)]
    return turns
