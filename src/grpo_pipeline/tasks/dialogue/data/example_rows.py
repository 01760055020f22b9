"""Read examples from JSON lines ``{"question": "persona: … context: …", "answers": ["…"]}``."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from grpo_pipeline.tasks.dialogue.data.dataset_folder import describe_parts, parts_by_split
from grpo_pipeline.tasks.dialogue.data.drafts import (
    NEEDS,
    SPLITS,
    Draft,
    Reading,
    digest_of,
    refusal,
)
from grpo_pipeline.tasks.dialogue.data.hidden_characters import without_hidden
from grpo_pipeline.tasks.dialogue.data.question import parse_question
from grpo_pipeline.tasks.dialogue.data.text_files import clean_text, parse_line, read_id, read_text
from grpo_pipeline.tasks.row_error import RowError
from grpo_pipeline.tasks.text_lines import TextFile, numbered_lines

KEYS = ("question", "answers", "example_id", "persona_id", "needs", "story_id", "split")


def read_rows(file: TextFile, *, names_splits: bool, marks: Sequence[str] = ()) -> Reading:
    """Read every line; only ``question`` and ``answers`` are required.

    Args:
        file: JSON lines, or a folder with a file of them for each split.
        names_splits: whether every row must say its split; otherwise the key is not read.
        marks: see ``parse_question``.

    Returns:
        Examples with ``needs: unknown`` and an id made of question and answers where the file says nothing else. Keys that
        are not read are counted in the report.
    """
    drafts, refused, ignored, seen, n_rows, hidden = [], [], Counter[str](), Counter[str](), 0, 0
    parts = parts_by_split(file)
    for part, split in parts:
        for number, line in numbered_lines(part):
            n_rows += 1
            try:
                cells, n_hidden = without_hidden(parse_line(line))
                draft = read_row(cells, number, names_splits=names_splits, seen=seen, marks=marks)
            except RowError as error:
                refused.append(refusal(number, str(error), file=part.path))
                continue
            ignored.update(cells.keys() - set(KEYS))
            hidden += n_hidden
            file_of_row = part.path if len(parts) > 1 else ""
            drafts.append(replace(draft, split=draft.split or split, file=file_of_row))
    return Reading(
        tuple(drafts),
        tuple(refused),
        n_rows,
        hidden,
        {"ignored_keys": dict(sorted(ignored.items())), **describe_parts(parts)},
    )


def read_row(
    cells: Mapping[str, object],
    number: int,
    *,
    names_splits: bool,
    seen: Counter[str],
    marks: Sequence[str] = (),
) -> Draft:
    """Read a row; ``seen`` counts the ids made from content, so that a repeated row gets its own id.

    Raises:
        RowError: the row is invalid. The sentence names the reason.
    """
    question, answers = read_text(cells, "question"), read_answers(cells)
    persona, turns = parse_question(question, marks)
    needs = read_choice(cells, "needs", NEEDS, default="unknown")
    story_id = read_id(cells, "story_id", default="")
    if needs == "story" and not story_id:
        raise RowError(
            "story_id must name the story that the reply needs, got none; add it or set needs: unknown"
        )
    return Draft(
        row=number,
        example_id=read_id(cells, "example_id", default="")
        or numbered(digest_of(question, *answers), seen),
        given_id=read_id(cells, "persona_id", default=""),
        persona=persona,
        partner="",
        turns=tuple(turns),
        answers=answers,
        needs=needs,
        story_id=story_id,
        split=read_choice(cells, "split", SPLITS) if names_splits else "",
    )


def numbered(name: str, seen: Counter[str]) -> str:
    """Number an id made from content if it is repeated, so that ids do not depend on the order of the file."""
    seen[name] += 1
    return name if seen[name] == 1 else f"{name}-{seen[name]}"


def read_answers(cells: Mapping[str, object]) -> tuple[str, ...]:
    """Return the reference replies.

    Raises:
        RowError: if there is none, or one is empty.
    """
    answers = cells.get("answers")
    if not isinstance(answers, list) or not answers:
        raise RowError(
            f"answers must be a list of at least one reply, got {answers!r}; add a reply or drop the row"
        )
    return tuple(
        clean_text(answer, name=f"answers[{place}]") for place, answer in enumerate(answers)
    )


def read_choice(
    cells: Mapping[str, object], key: str, choices: tuple[str, ...], *, default: str | None = None
) -> str:
    """Read a value that must be one of the choices.

    Raises:
        RowError: if the text is none of the choices.
    """
    value = read_text(cells, key, default=default)
    if value not in choices:
        raise RowError(f"{key} must be one of {list(choices)}, got {value!r}; correct it")
    return value
