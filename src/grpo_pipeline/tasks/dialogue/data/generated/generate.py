"""Generate examples and stories, written in the format of real data."""

from grpo_pipeline.tasks.dialogue.data.generated.exchanges import draw_exchange
from grpo_pipeline.tasks.dialogue.data.generated.params import PersonaParams
from grpo_pipeline.tasks.dialogue.data.generated.personas import characters, draw_persona
from grpo_pipeline.tasks.dialogue.data.generated.stories import Story, draw_story
from grpo_pipeline.tasks.dialogue.data.question import format_question

Row = dict[str, object]


def generate_rows(params: PersonaParams) -> list[Row]:
    """Generate the examples, persona by persona; more personas do not change the earlier ones.

    Each row has ``example_id, persona_id, question, answers, needs, story_id``.
    """
    cast = characters(params)
    return [
        row
        for number in range(params.personas)
        for row in persona_rows(cast[number], number, params)
    ]


def persona_rows(character: tuple[str, str], number: int, params: PersonaParams) -> list[Row]:
    """Generate the examples of a persona."""
    persona = draw_persona(character, number=number, seed=params.seed, sentences=params.sentences)
    story = draw_story(character, params)
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
    """Generate the corpus, ``id, title, text``: a story per persona and the extra stories, by id."""
    cast = characters(params)
    chosen = cast[: params.personas] + cast[len(cast) - params.extra_stories :]
    stories: list[Story] = sorted(
        (draw_story(character, params) for character in chosen),
        key=lambda story: story.story_id,
    )
    return [{"id": story.story_id, "title": story.title, "text": story.text} for story in stories]
