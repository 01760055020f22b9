"""Small raw data and parameters of the dialogue task."""

import csv
import io
import json
from pathlib import Path
from typing import Any

from grpo_pipeline.tasks.dialogue.data.generated.params import NeedShares, PersonaParams
from grpo_pipeline.tasks.dialogue.data.params import ConversationSource, DialogueDataParams, RetrievalParams
from grpo_pipeline.tasks.dialogue.data.text_files import DialogueFiles
from grpo_pipeline.tasks.text_lines import TextFile

ROOT = Path("/data/talk")
STORIES = [
    {"id": "s1", "title": "the baker", "text": "a baker lost a ring."},
    {"id": "s2", "title": "", "text": "a pilot sold a bell."},
]


def persona_params(**changes: Any) -> PersonaParams:
    needs = NeedShares(persona=0.5, story=0.3, none=0.2)
    values = {"seed": 0, "personas": 40, "dialogues_per_persona": 6, "sentences": 4, "extra_stories": 7, "exchanges": 1}
    return PersonaParams(**{**values, "needs": needs, **changes})


def data_params(**changes: Any) -> DialogueDataParams:
    values = {"source": {"kind": "jsonl"}, "root": str(ROOT), "max_question_bytes": 160, "on_bad_row": "quarantine"}
    return DialogueDataParams.model_validate(values | changes)


def conversation_params(**changes: Any) -> ConversationSource:
    values = {"conversation": "talk", "personas": ("one", "two"), "speakers": ("User 1", "User 2"), "replies": "both"}
    values |= {"kind": "conversations", "first_turn": 1, "every": 1, "context_turns": 2, "partners": "together"}
    return ConversationSource.model_validate(values | changes)


def retrieval_params(**changes: Any) -> RetrievalParams:
    return RetrievalParams.model_validate({"top_n": 2, "query": "persona", "encoder": {"kind": "tfidf"}, **changes})


def row(persona: str = "i bake.", context: str = "hi", answers: Any = ("hello",), **more: Any) -> dict[str, Any]:
    return {"question": f"persona: {persona} context: {context}", "answers": list(answers), **more}


def json_file(rows: list[Any], name: str = "rows.jsonl") -> TextFile:
    lines = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in rows]
    return TextFile(f"{ROOT}/{name}", b"".join(line + b"\n" for line in lines))


def raw_files(rows: list[Any], stories: list[Any] | None = STORIES) -> DialogueFiles:
    return DialogueFiles(ROOT, json_file(rows), None if stories is None else json_file(stories, "stories.jsonl"))


def csv_file(rows: list[tuple[str, str, str]], header: tuple[str, ...] = ("one", "two", "talk")) -> TextFile:
    text = io.StringIO()
    csv.writer(text).writerows([header, *rows])
    return TextFile(f"{ROOT}/talk.csv", text.getvalue().encode())
