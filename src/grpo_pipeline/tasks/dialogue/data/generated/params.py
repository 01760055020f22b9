"""Set the parameters of the generated dialogues."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from grpo_pipeline.tasks.dialogue.data.generated.vocabulary import JOBS, TOWNS
from grpo_pipeline.tasks.params import Section

Share = Annotated[float, Field(ge=0, le=1)]


class NeedShares(Section):
    """Probability that a reply needs the persona, the retrieved story, or neither.

    Attributes:
        persona: probability that a reply needs the persona.
        story: probability that it needs the retrieved story.
        none: probability that it needs neither.
    """

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


class HiddenStories(Section):
    """Stories that share no word with their persona: a badge stands for its job, a stone for its town, by a rule nobody is told.

    Attributes:
        jobs: number of different jobs; fewer are seen more often.
        towns: number of different towns.
    """

    jobs: Annotated[int, Field(ge=1, le=len(JOBS))]
    towns: Annotated[int, Field(ge=1, le=len(TOWNS))]


class PersonaParams(Section):
    """Parameters of the generated dialogues (docs/dialogue/data.md).

    Attributes:
        seed: decides every persona, story and reply.
        personas: number of personas; each has a unique pair of job and town.
        dialogues_per_persona: number of examples of each persona.
        sentences: number of facts that a persona states, including job and town.
        extra_stories: number of stories that belong to no persona.
        exchanges: largest number of remarks, each with its acknowledgement, before the question.
        needs: shares of the kinds of replies.
        hidden: null, or stories that share no word with their persona.
    """

    seed: Annotated[int, Field(ge=0)]
    personas: Annotated[int, Field(ge=3)]
    dialogues_per_persona: Annotated[int, Field(ge=1)]
    sentences: Annotated[int, Field(ge=2, le=6)]
    extra_stories: Annotated[int, Field(ge=0)]
    exchanges: Annotated[int, Field(ge=0, le=4)]
    needs: NeedShares
    hidden: HiddenStories | None = None

    @model_validator(mode="after")
    def _enough_characters(self) -> Self:
        jobs, towns = (
            (len(JOBS), len(TOWNS))
            if self.hidden is None
            else (self.hidden.jobs, self.hidden.towns)
        )
        wanted, limit = self.personas + self.extra_stories, jobs * towns
        if wanted > limit:
            raise ValueError(
                f"dialogue.personas.personas + extra_stories must be at most {limit}, one per job and town, got {wanted}; "
                "generate fewer"
            )
        return self
