"""Read the story corpus: JSON lines ``{"id": …, "title": …, "text": …}``."""

from collections import Counter

from grpo_pipeline.tasks.dialogue.data.drafts import Row, refusal
from grpo_pipeline.tasks.dialogue.data.hidden_characters import without_hidden
from grpo_pipeline.tasks.dialogue.data.text_files import parse_line, read_id, read_text
from grpo_pipeline.tasks.row_error import RowError
from grpo_pipeline.tasks.text_lines import TextFile, numbered_lines


def read_stories(file: TextFile) -> tuple[list[Row], list[Row], int]:
    """Read the valid stories by id, the refused lines, and the number of removed hidden characters.

    Every line of an id that is there twice is refused.

    Titles may be empty, texts may not; line breaks become blanks.
    """
    stories, refused, hidden = [], [], 0
    for number, line in numbered_lines(file):
        try:
            cells, n_hidden = without_hidden(parse_line(line))
            stories.append(read_story(cells) | {"row": number})
            hidden += n_hidden
        except RowError as error:
            refused.append(refusal(number, str(error), file=file.path))
    counts = Counter(story["story_id"] for story in stories)
    for story in stories:
        if counts[story["story_id"]] > 1:
            reason = f"story id {story['story_id']!r} must be unique, got it {counts[story['story_id']]} times; rename the others"
            refused.append(refusal(story["row"], reason, file=file.path))
    kept = [
        {key: story[key] for key in story if key != "row"}
        for story in stories
        if counts[story["story_id"]] == 1
    ]
    return sorted(kept, key=lambda story: story["story_id"]), refused, hidden


def read_story(cells: dict[str, object]) -> Row:
    """Read a story without an owner.

    Raises:
        RowError: if a key is missing or holds no text.
    """
    title, text = read_text(cells, "title", default=""), read_text(cells, "text")
    return {
        "story_id": read_id(cells, "id"),
        "title": " ".join(title.split()),
        "text": " ".join(text.split()),
        "persona_id": "",
    }
