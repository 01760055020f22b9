"""Generate examples and stories, written in the format that real ones are read from."""

from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from grpo_pipeline.tasks.dialogue.data.drafts import format_question

# The closed vocabularies and phrasings of the generated dialogues.
#
# No word is in two vocabularies, so that a word says which fact it states. Every value starts with a consonant, so that "a" fits.

JOBS = (
    "baker", "barber", "butcher", "chemist", "clerk", "cook", "dancer", "doctor", "driver", "farmer", "florist", "gardener",
    "guard", "judge", "lawyer", "mason", "miner", "nurse", "painter", "pilot", "plumber", "porter", "potter", "sailor",
    "singer", "tailor", "teacher", "waiter",
)  # fmt: skip
TOWNS = (
    "berlin", "bogota", "boston", "cairo", "calgary", "chicago", "dakar", "dallas", "delhi", "denver", "dublin", "geneva",
    "hanoi", "houston", "kyoto", "lagos", "lima", "lisbon", "london", "madrid", "miami", "milan", "nairobi", "paris", "prague",
    "seoul", "toronto", "warsaw",
)  # fmt: skip
PETS = (
    "beagle",
    "canary",
    "cat",
    "dog",
    "ferret",
    "gecko",
    "goat",
    "hamster",
    "horse",
    "lizard",
    "parrot",
    "rabbit",
)
FOODS = (
    "bread",
    "cheese",
    "curry",
    "fish",
    "lentils",
    "noodles",
    "pasta",
    "pizza",
    "rice",
    "salad",
    "soup",
    "tacos",
)
HOBBIES = (
    "boxing",
    "chess",
    "cycling",
    "dancing",
    "fishing",
    "hiking",
    "knitting",
    "reading",
    "rowing",
    "sewing",
    "skating",
    "yoga",
)
KIN = tuple(
    f"{count} {kind}"
    for count in ("two", "three", "four", "five", "six")
    for kind in ("brothers", "sisters")
)
VERBS = ("bought", "buried", "burned", "fixed", "found", "lost", "moved", "sold")
COLOURS = ("black", "blue", "brown", "green", "pink", "red", "white", "yellow")
OBJECTS = (
    "basket", "bell", "candle", "carpet", "clock", "coat", "drum", "kite", "ladder", "lamp", "mirror", "ring", "teapot",
    "violin", "wallet", "wheel",
)  # fmt: skip
PLACES = ("bridge", "castle", "church", "harbour", "market", "museum", "river", "station")

VALUES = {"job": JOBS, "town": TOWNS, "pet": PETS, "food": FOODS, "hobby": HOBBIES, "kin": KIN}
STATEMENTS = {
    "job": ("i work as a {}.", "my job is {}."),
    "town": ("i live in {}.", "my town is {}."),
    "pet": ("i have a {}.", "my pet is a {}."),
    "food": ("i eat {}.", "my food is {}."),
    "hobby": ("i love {}.", "my hobby is {}."),
    "kin": ("i have {}.",),
}
QUESTIONS = {
    "job": ("what is your job?", "what do you work as?"),
    "town": ("where do you live?", "which town is yours?"),
    "pet": ("what pet do you have?", "which animal is yours?"),
    "food": ("what do you eat most?", "which food is best?"),
    "hobby": ("what do you do for fun?", "what fills your evenings?"),
    "kin": ("how big is your family?", "do you have siblings?"),
}
# The phrasings of one reply share their value: either answers either question. They say little else, so that a reply that has
# the right words around a wrong value is no good one.
REPLIES = {
    "job": ("a {}", "i am a {}"),
    "town": ("{}", "home is {}"),
    "pet": ("a {}", "i keep a {}"),
    "food": ("{}", "{} most days"),
    "hobby": ("{}", "i like {}"),
    "kin": ("{}", "i have {}"),
}
STORY_QUESTIONS = ("what happened at work?", "any news in your trade?")
STORY_REPLIES = ("the {job} {verb} a {colour} {object}", "a {colour} {object}, {verb} by the {job}")
STORY_TITLE = "the {job} of {town}"
STORY_TEXTS = (
    "in {town} the {job} {verb} a {colour} {object} near the {place}.",
    "one day the {job} from {town} {verb} a {colour} {object} by the {place}.",
)
GREETINGS = (
    ("hello there!", ("hello, how are you today?", "hi, how are you today?")),
    ("nice to meet you!", ("nice to meet you too!", "lovely to meet you too!")),
    ("thank you so much!", ("you are very welcome!", "you are most welcome!")),
    ("goodbye for now!", ("bye, see you soon!", "goodbye, see you soon!")),
)
ACKNOWLEDGEMENTS = ("i see.", "nice.", "oh.", "great.")


# Parameters of the generated dialogues.

Share = Annotated[float, Field(ge=0, le=1)]


class NeedShares(BaseModel):
    """Probability that a reply needs the persona, the retrieved story, or neither.

    Attributes:
        persona: probability that a reply needs the persona.
        story: probability that it needs the retrieved story.
        none: probability that it needs neither.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    persona: Share
    story: Share
    none: Share

    @model_validator(mode="after")
    def _add_up_to_one(self) -> Self:
        total = self.persona + self.story + self.none
        if abs(total - 1) > 1e-9:
            raise ValueError(
                f"dialogue.personas.needs must add up to 1, got {total:g}; correct one of them"
            )
        return self


class PersonaParams(BaseModel):
    """Parameters of the generated dialogues (docs/dialogue_data.md).

    Attributes:
        seed: fixes every persona, story and reply.
        personas: how many; each has a job and a town that no other one has together.
        dialogues_per_persona: examples of each persona.
        sentences: facts that a persona states, its job and its town among them.
        extra_stories: stories that belong to no persona.
        exchanges: at most so many remarks, each with its acknowledgement, stand before the question.
        needs: shares of the kinds of replies.
        two_answers: probability that both phrasings of the reply are references.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    seed: Annotated[int, Field(ge=0)]
    personas: Annotated[int, Field(ge=3)]
    dialogues_per_persona: Annotated[int, Field(ge=1)]
    sentences: Annotated[int, Field(ge=2, le=6)]
    extra_stories: Annotated[int, Field(ge=0)]
    exchanges: Annotated[int, Field(ge=0, le=4)]
    needs: NeedShares
    two_answers: Share

    @model_validator(mode="after")
    def _enough_characters(self) -> Self:
        wanted, limit = self.personas + self.extra_stories, len(JOBS) * len(TOWNS)
        if wanted > limit:
            raise ValueError(
                f"dialogue.personas.personas + extra_stories must be at most {limit}, one per job and town, got {wanted}; "
                "generate fewer"
            )
        return self


# Generated personas: who somebody is, as a pure function of (seed, number).

OPTIONAL = ("pet", "food", "hobby", "kin")


@dataclass(frozen=True)
class Persona:
    """Somebody with a job and a town.

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


def characters(seed: int) -> list[tuple[str, str]]:
    """Return every (job, town) in the order of the seed; persona i is character i, extra stories count from the end."""
    order = np.random.default_rng([seed, 0]).permutation(len(JOBS) * len(TOWNS))
    return [(JOBS[cell // len(TOWNS)], TOWNS[cell % len(TOWNS)]) for cell in order]


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


def pick(options: tuple[str, ...], rng: np.random.Generator) -> str:
    """Return one of the options, each with the same probability."""
    return options[int(rng.integers(len(options)))]


def state(attribute: str, value: str, rng: np.random.Generator) -> str:
    """Return a sentence that states a fact."""
    return pick(STATEMENTS[attribute], rng).format(value)


# Generated stories: what happened to the character with a job in a town, as a pure function of (seed, job, town).


@dataclass(frozen=True)
class Story:
    """A story and what happened in it.

    Attributes:
        story_id: ``s`` and the number of the character.
        title: names job and town.
        text: one sentence.
        event: job, town, verb, colour, object and place.
    """

    story_id: str
    title: str
    text: str
    event: dict[str, str]


def draw_story(character: tuple[str, str], *, seed: int) -> Story:
    """Draw what happened to a character; job and town say nothing about it."""
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


# Generated exchanges: some turns of context that end in a question, and the replies that are right.

KINDS = ("persona", "story", "none")


@dataclass(frozen=True)
class Exchange:
    """One example before it is written down.

    Attributes:
        turns: oldest first; the last one is answered.
        answers: one or two right replies; the first has the phrasing that goes with the question.
        needs: what the reply needs.
    """

    turns: tuple[str, ...]
    answers: tuple[str, ...]
    needs: str


def draw_exchange(persona: Persona, story: Story, number: int, params: PersonaParams) -> Exchange:
    """Draw the exchange ``number`` of a persona: a pure function of (seed, persona, number).

    The remarks before the question state facts of the other speaker; the first of them is, every second time, about what is
    asked, with another value than the persona's.
    """
    rng = np.random.default_rng([params.seed, 3, persona.number, number])
    shares = [getattr(params.needs, kind) for kind in KINDS]
    needs = KINDS[int(rng.choice(len(KINDS), p=shares))]
    asked, question, replies = ask(needs, persona, story, rng)
    n_answers = 2 if rng.random() < params.two_answers else 1
    return Exchange(
        (*remarks(persona, asked, params.exchanges, rng), question), replies[:n_answers], needs
    )


def ask(
    needs: str, persona: Persona, story: Story, rng: np.random.Generator
) -> tuple[str, str, tuple[str, ...]]:
    """Return the attribute that is asked for, the question, and its replies, the one with the question's phrasing first."""
    if needs == "none":
        greeting, replies = GREETINGS[int(rng.integers(len(GREETINGS)))]
        return pick(tuple(VALUES), rng), greeting, replies
    phrasing = int(rng.integers(2))
    if needs == "story":
        told = [reply.format(**story.event) for reply in STORY_REPLIES]
        return "town", STORY_QUESTIONS[phrasing], (told[phrasing], told[1 - phrasing])
    attribute = pick(tuple(persona.facts), rng)
    said = [reply.format(persona.facts[attribute]) for reply in REPLIES[attribute]]
    return attribute, QUESTIONS[attribute][phrasing], (said[phrasing], said[1 - phrasing])


def remarks(persona: Persona, asked: str, most: int, rng: np.random.Generator) -> list[str]:
    """Return remarks of the other speaker, each with its acknowledgement; none states a fact of the persona."""
    turns: list[str] = []
    for _ in range(int(rng.integers(most + 1))):
        about = asked if not turns and rng.random() < 0.5 else pick(tuple(STATEMENTS), rng)
        others = tuple(value for value in VALUES[about] if value != persona.facts.get(about))
        turns += [state(about, pick(others, rng), rng), pick(ACKNOWLEDGEMENTS, rng)]
    return turns


Row = dict[str, object]


def generate_rows(params: PersonaParams) -> list[Row]:
    """Return the examples, persona by persona; adding personas changes none before.

    Each row has ``example_id, persona_id, question, answers, needs, story_id``.
    """
    cast = characters(params.seed)
    return [
        row
        for number in range(params.personas)
        for row in persona_rows(cast[number], number, params)
    ]


def persona_rows(character: tuple[str, str], number: int, params: PersonaParams) -> list[Row]:
    """Return the examples of one persona."""
    persona = draw_persona(character, number=number, seed=params.seed, sentences=params.sentences)
    story = draw_story(character, seed=params.seed)
    rows: list[Row] = []
    for place in range(params.dialogues_per_persona):
        exchange = draw_exchange(persona, story, place, params)
        rows.append(
            {
                "example_id": f"{persona.persona_id}-{place}",
                "persona_id": persona.persona_id,
                "question": format_question(" ".join(persona.sentences), "\n".join(exchange.turns)),
                "answers": list(exchange.answers),
                "needs": exchange.needs,
                "story_id": story.story_id if exchange.needs == "story" else "",
            }
        )
    return rows


def generate_stories(params: PersonaParams) -> list[Row]:
    """Return the corpus, ``id, title, text``: one story per persona and the extra ones, by id."""
    cast = characters(params.seed)
    chosen = cast[: params.personas] + cast[len(cast) - params.extra_stories :]
    stories: list[Story] = sorted(
        (draw_story(character, seed=params.seed) for character in chosen),
        key=lambda story: story.story_id,
    )
    return [{"id": story.story_id, "title": story.title, "text": story.text} for story in stories]
