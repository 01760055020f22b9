"""The answer that a run has written, and whether terminal and page say the same."""

import re
from html import unescape
from pathlib import Path

from kedro_processes import newest

from grpo_pipeline.statistics.answer import Answer


def read_answer(reports: Path) -> Answer:
    """Return the newest answer below a folder of reports."""
    return Answer.model_validate_json(newest(reports / "answer.json").read_text(encoding="utf-8"))


def unmarked(html: str) -> str:
    """Return a page without the marks of its terms of art, which stand inside sentences."""
    return re.sub("</?abbr[^>]*>", "", html)


def same_everywhere(reports: Path, page: str, *, printed: str) -> Answer:
    """Check that the terminal and the page of a run say verdict, sentence and every difference of its answer; return it."""
    answer, html = read_answer(reports), (reports / page).read_text(encoding="utf-8")
    terminal, shown = " ".join(printed.split()), " ".join(unescape(re.sub("<[^>]*>", " ", unmarked(html))).split())
    assert f"{answer.task.capitalize()}: {answer.verdict}" in terminal
    assert answer.sentence.replace("→", "->") in terminal
    assert f"<title>{answer.headline}</title>" in unescape(html)
    assert answer.sentence in shown
    for row in answer.table:
        if row.difference is not None:
            assert re.search(rf"{re.escape(row.title)} .*{re.escape(row.gap)}", terminal)
            assert f"{row.difference:+.2f} " in shown
    return answer
