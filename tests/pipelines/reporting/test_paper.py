"""The files for papers: all digits of the answer, no command of LaTeX that a title brings, one sentence on the methods."""

import csv
import io
import re

import pytest
import yaml

from grpo_pipeline.pipelines.reporting import paper
from grpo_pipeline.statistics.answer import Answer, Change, ChosenModel, Cost


def change(metric: str, title: str, difference: float | None, interval: tuple[float, float] | None, **more: object) -> Change:
    values = {"metric": metric, "title": title, "better": "higher", "before": 0.5, "after": 0.75, "verdict": "better"} | more
    return Change.model_validate(values | {"difference": difference, "interval": interval})


ROWS = (change("hits", "Hits_100% & more", 0.25, (0.125, 1 / 3)), change("lost", "Lost", None, None, after=None))
ANSWER = Answer(
    task="letters", arm="grpo_2", control="plain", split="test", examples=1200, noun="letter", clusters=40, cluster="writer",
    seeds=(0, 3), verdict="better", reason="", primary=ROWS[0], learned="yes", why="", conditions=(), ceiling=None, arms=(),
    rows=ROWS, looked_at=1, worse=(), improved=(), same_everywhere=(), undefined={}, not_covered="",
    cost={name: Cost(steps=1500, samples=None, reward_calls=None) for name in ("plain", "grpo_2")}, commit="0123456789abcdef",
)  # fmt: skip


def test_the_csv_holds_every_digit() -> None:
    rows = list(csv.DictReader(io.StringIO(paper.table(ANSWER))))
    assert [float(rows[0][name]) for name in ("before", "after", "difference", "low", "high")] == [0.5, 0.75, 0.25, 0.125, 1 / 3]
    assert rows[0]["title"] == "Hits_100% & more"
    assert [rows[1][name] for name in ("after", "difference", "low", "high", "verdict")] == ["", "", "", "", "better"]


def test_no_title_or_name_is_a_command_of_latex() -> None:
    text = paper.latex(ANSWER)
    assert r"Hits\_100\% \& more & 0.50 & 0.75 & $+0.25 [+0.12, +0.33]$ \\" in text
    assert r"metric & plain & grpo\_2 & grpo\_2 - plain \\" in text
    assert "Lost & 0.50 & -- & -- " in text
    assert not re.search(r"(?<!\\)[_%#$](?![+-])", re.sub(r"\$[^$]*\$|% needs", "", text))
    assert paper.escaped("a\\b~^{}") == r"a\textbackslash{}b\textasciitilde{}\textasciicircum{}\{\}"


def test_the_methods_are_one_sentence_with_what_was_compared() -> None:
    assert paper.methods(ANSWER) == (
        "grpo_2 and its control plain were trained from the same start for 1,500 steps (seeds 0, 3) and compared on 1,200 test "
        "letters of 40 writers; intervals are 95% intervals of the paired difference, bootstrapped over whole writers, with the "
        "spread of the seeds (grpo_pipeline 0.1.0, commit 0123456789)."
    )
    longer = ANSWER.model_copy(update={"cost": ANSWER.cost | {"plain": Cost(steps=3, samples=None, reward_calls=None)}})
    assert "steps" not in paper.methods(longer)


def test_a_model_card_has_the_answer_and_how_the_model_is_loaded() -> None:
    best = ChosenModel(arm="plain", name="plain.best", step=2, metric="hits", value=0.5, last=None, is_last=False)
    told = ANSWER.model_copy(update={"model": best, "not_covered": "Another seed may lie outside."})
    text = paper.model_card(told)
    _, head, body = text.split("---\n")
    assert yaml.safe_load(head) == {"library_name": "grpo_pipeline", "tags": ["letters", "grpo"]}
    assert body.startswith("# letters: plain.best\n")
    assert told.markdown.strip() in body
    assert paper.methods(told) in body
    assert "Another seed may lie outside. Nothing but these 1,200 test letters was scored." in body
    assert "# letters: grpo_2\n" in paper.model_card(ANSWER)


def test_the_forest_draws_the_rows_that_have_a_difference() -> None:
    figure = paper.forest(ANSWER)
    assert [axes.get_yticklabels()[0].get_text() for axes in figure.axes] == ["Hits_100% & more"]
    lines = figure.axes[0].lines
    assert list(lines[0].get_xdata()) == [0.125, 1 / 3]
    assert list(lines[1].get_xdata()) == [0.25]


def test_the_command_writes_the_newest_answer_and_names_what_is_missing(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    assert paper.main([str(tmp_path)]) == 2
    assert "must hold answer.json" in capsys.readouterr().err
    for version, arm in (("2026-01-01", "old"), ("2026-02-01", "new")):
        folder = tmp_path / "answer.json" / version
        folder.mkdir(parents=True)
        (folder / "answer.json").write_text(ANSWER.model_copy(update={"arm": arm}).model_dump_json(), encoding="utf-8")
    assert paper.main([str(tmp_path)]) == 0
    assert sorted(path.name for path in (tmp_path / "paper").iterdir()) == [
        "answer.csv", "answer.tex", "forest.svg", "methods.txt", "model_card.md", "references.bib",
    ]  # fmt: skip
    assert (tmp_path / "paper/methods.txt").read_text(encoding="utf-8").startswith("new and its control plain")
