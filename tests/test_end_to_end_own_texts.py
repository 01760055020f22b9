"""Real dialogues and molecules by configuration only: the committed environments, shortened, from their files to the report."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from kedro_processes import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SUPPORT = Path(__file__).parent / "support"
TALK = (
    "dialogue.data.source.every=60,dialogue.warm_start.training.max_steps=2,dialogue.training.max_steps=1,"
    "dialogue.training.batch_size=4,dialogue.training.group_size=2,dialogue.replies.max_tokens=16,dialogue.language_model.network.width=16,"
    "dialogue.reward_audit.rows=4,dialogue.reward_audit.n_samples=2,dialogue.evaluation.resamples=50,"
    "executor.kind=serial"
)
# An arm with a loop of its own is shortened by its own name.
GRAPHS = (
    "molecules.noise.steps=5,molecules.denoiser.layers=1,molecules.warm_start.training.max_steps=3,"
    "molecules.trajectory.steps_per_update=2,molecules.eager.trajectory.steps_per_update=2,"
    "molecules.training.max_steps=1,molecules.eager.training.max_steps=1,molecules.training.batch_size=4,"
    "molecules.eager.training.batch_size=4,molecules.training.group_size=3,molecules.eager.training.group_size=3,"
    "molecules.sampling.prompts=4,molecules.sampling.graphs_at_once=12,molecules.reward_audit.rows=2,molecules.reward_audit.n_samples=3,"
    "molecules.evaluation.resamples=50,molecules.training.animation_frames=0,molecules.eager.training.animation_frames=0,"
    "executor.kind=serial"
)


def say(project: Path, env: str, pipeline: str, params: str) -> str:
    done = run(project, "--pipelines", pipeline, "--params", params, env=env, seconds=840)
    # Beside the note that max_steps ends a training early, nothing is to be said.
    expected = re.compile(r"max_steps = |^\d+ of \d+ rows were refused, the first at ")
    said = [line for line in done.stderr.splitlines() if not expected.search(line)]
    assert (done.returncode, said) == (0, [])
    return done.stdout


def comparison(project: Path, folder: str) -> dict[str, Any]:
    [path] = (project / "data/08_reporting" / folder / "comparison.json").glob("*/comparison.json")
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def test_conversations_of_synthetic_persona_chat(project: Path, shared_data: Callable[[str], Path]) -> None:
    root = shared_data("persona_chat")
    (project.parent / "shared" / "data").mkdir(parents=True)
    (project.parent / "shared" / "data" / "persona_chat").symlink_to(root)
    said = say(project, "persona_chat", "dialogue", f"{TALK},details=true")
    document = comparison(project, "dialogue_persona_chat")
    assert set(document["arms"]) == {"supervised", "reinforce", "grpo"}
    # Two steps teach nothing: whoever repeats what was said before is paid more, and the language model is told.
    assert "the trivial rule copy_last_turn earns" in said.replace("\n", " ")
    retrieval = json.loads((project / "data/08_reporting/dialogue_persona_chat/retrieval_report.json").read_text())
    assert retrieval["by_split"]["test"]["reason"] == "no reply is known to need a story"


def test_prompts_without_answers_and_without_a_warm_start(project: Path, tmp_path: Path) -> None:
    """Rewards alone teach: nothing of the run asks for an answer, from the folder to the page."""
    (tmp_path / "sums.csv").write_text("\n".join(["prompt,level", *(f"{a}+{b}=,{a % 2}" for a in range(10) for b in range(6))]))
    folder = project / "conf" / "sums" / "dialogue"
    folder.mkdir(parents=True)
    (folder.parent / "globals.yml").write_text(
        f"extends: smoke\ndialogue_folder: sums\ndialogue_root: {tmp_path}\ndialogue_examples: sums.csv\n"
    )
    (folder / "parameters_data.yml").write_text("dialogue: {data: {source: {kind: prompts, answers: null}}}\n")
    reward = {"f1": None, "rouge_l": None, "bleu": None, "pattern": {"weight": 1.0, "regex": "[a-z]", "part": "search"}}
    changes = {"reward": reward, "warm_start": None, "arms": ["grpo"], "grpo": {"algorithm": {"losses": {"supervised": None}}}}
    (folder / "parameters_training.yml").write_text(json.dumps({"dialogue": changes}))
    said = say(project, "sums", "dialogue", "dialogue.training.max_steps=1,executor.kind=serial")
    assert "Accuracy" in said
    metrics = comparison(project, "sums")["arms"]["grpo"]["metrics"]
    assert {"f1", "rouge_l", "bleu", "perplexity"}.isdisjoint(metrics)
    assert metrics["accuracy"]["value"] is not None


# What a user writes for a file in the form of GSM8K, whose answers end with "#### 42".
WORD_PROBLEMS = """dialogue:
  data: {source: {kind: prompts, prompt: question, answers: answer}, max_question_bytes: 400}
  prompt: {max_tokens: 400}
  replies: {max_tokens: 160}
  reward: {f1: null, rouge_l: null, bleu: null, number: {weight: 1.0}}
"""


def test_word_problems_in_the_form_of_gsm8k_are_trained_on_with_five_lines(project: Path) -> None:
    folder = project / "conf" / "problems" / "dialogue"
    folder.mkdir(parents=True)
    (folder.parent / "globals.yml").write_text(
        f"extends: smoke\ndialogue_folder: problems\ndialogue_root: {SUPPORT}\ndialogue_examples: word_problems.jsonl\n"
    )
    (folder / "parameters.yml").write_text(WORD_PROBLEMS)
    short = "dialogue.warm_start.training.max_steps=2,dialogue.training.max_steps=1,dialogue.arms=supervised+grpo"
    say(project, "problems", "dialogue", f"{short},executor.kind=serial")
    document = comparison(project, "problems")
    assert document["headline"][0] == "accuracy"
    # The right answer of every problem is read from behind its marks, and a copy of the question has none of them.
    found = {rule: document["baselines"][rule]["metrics"]["accuracy"]["value"] for rule in ("reference", "copy_last_turn")}
    assert found == {"reference": 1.0, "copy_last_turn": 0.0}


def test_sums_are_written_read_and_judged_by_their_numbers(project: Path) -> None:
    """The environment ``arithmetic``, shortened; what it reaches at full length is in docs/dialogue/rewards.md."""
    short = (
        "dialogue.data.source.problems=80,dialogue.data.source.largest=9,dialogue.language_model.network.width=16,"
        "dialogue.warm_start.training.epochs=1,dialogue.training.epochs=1,dialogue.training.max_steps=2,"
        "dialogue.evaluation.resamples=50,executor.kind=serial"
    )
    said = say(project, "arithmetic", "dialogue", short)
    assert "Accuracy" in said
    document = comparison(project, "dialogue_arithmetic")
    assert document["headline"] == ["accuracy", "pass_at_8", "majority_at_8", "reward"]
    assert document["baselines"]["reference"]["metrics"]["accuracy"]["value"] == 1.0
    page = (project / "data/08_reporting/dialogue_arithmetic/report.html").read_text()
    assert re.search(r"Accuracy.*maj@8", page, re.DOTALL)


def test_a_game_of_several_replies_is_played_and_judged_by_its_environment(project: Path) -> None:
    """The environment ``guess``, shortened; what it reaches at full length is in docs/dialogue/conversations.md."""
    short = (
        "dialogue.data.source.games=120,dialogue.language_model.network.width=16,dialogue.warm_start.training.epochs=6,"
        "dialogue.training.max_steps=2,dialogue.evaluation.resamples=50,executor.kind=serial"
    )
    assert "Reward" in say(project, "guess", "dialogue", short)
    document = comparison(project, "dialogue_guess")
    assert document["headline"][0] == "reward"
    (table,) = (project / "data/07_model_output/dialogue_guess/grpo/rollouts.csv").rglob("rollouts.csv")
    shown = pd.read_csv(table)["reply"].astype(str)
    assert shown.str.contains(r"\[(?:more|less|number)\] ", regex=True).any()


def test_drug_like_molecules(project: Path, tmp_path: Path, shared_data: Callable[[str], Path]) -> None:
    lines = (shared_data("molecules") / "zinc_valid.txt").read_text().split()[::100]
    (tmp_path / "zinc_valid.txt").write_text("\n".join([*lines, lines[0]]))
    say(project, "zinc", "molecules", f"{GRAPHS},molecules.data.root={tmp_path}")
    report = json.loads((project / "data/02_intermediate/molecules_zinc/data_report.json").read_text())
    assert (report["molecules"], report["duplicates"], report["refused"]) == (len(lines), 1, 0)
    document = comparison(project, "molecules_zinc")
    assert set(document["arms"]) == {"supervised", "grpo", "eager"}
    assert document["arms"]["grpo"]["metrics"]["size"]["value"] > 15
