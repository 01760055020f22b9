"""Prediction rows of the dialogue task with a known skill, scored by the project's own scores."""

from typing import Any

import numpy as np
import pandas as pd

from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.tasks.dialogue.evaluation.trivial_rules import trivial_replies
from grpo_pipeline.tasks.dialogue.scores.score_table import score_replies

NOUNS = ("dog", "cat", "boat", "train", "garden", "bread", "letter", "river", "bell", "lamp", "coat", "piano")
VERBS = ("lost", "found", "sold", "made", "broke", "kept")
PARTS = ("f1", "rouge_l", "bleu")


def evaluation_params(**changes: Any) -> EvaluationParams:
    """Return how arms are compared, with changes."""
    values = {"task": "dialogue", "split": "test", "control": "supervised", "baseline_arm": "grpo", "headline_rule": "policy"}
    values |= {"chance_rule": "start", "cluster": "subject_id"}
    numbers = {"seed": 0, "resamples": 50, "metric_options": {}}
    return EvaluationParams.model_validate({**values, **numbers, **changes})


def make_examples(*, personas: int = 12, per_persona: int = 4, seed: int = 5) -> pd.DataFrame:
    """Draw examples: id, persona, what the reply needs, context and one right reply."""
    world = np.random.default_rng(seed)
    n = personas * per_persona
    answers = [[f"i {world.choice(VERBS)} my {world.choice(NOUNS)} by the {world.choice(NOUNS)}"] for _ in range(n)]
    return pd.DataFrame(
        {
            "example_id": [f"e{i:03d}" for i in range(n)],
            "subject_id": [f"p{i // per_persona:02d}" for i in range(n)],
            "needs": [("persona", "story", "none")[i % 3] for i in range(n)],
            "persona": [f"i like my {world.choice(NOUNS)}." for _ in range(n)],
            "context": [f"hello\nwhat did you do with the {world.choice(NOUNS)}" for _ in range(n)],
            "answers": answers,
        }
    )


def write(answers: list[list[str]], *, skill: float, noise: np.random.Generator) -> list[str]:
    """Write replies that hold each word of the answer with probability ``skill``, else a random word."""
    words = NOUNS + VERBS
    return [
        " ".join(word if noise.random() < skill else str(noise.choice(words)) for word in texts[0].split()) for texts in answers
    ]


def rule_rows(examples: pd.DataFrame, rule: str, replies: list[str], *, has_model: bool, nll: float = 8.0) -> pd.DataFrame:
    """Return the rows of one rule."""
    scores = score_replies(replies, list(examples["answers"]))
    rows = examples[["example_id", "subject_id", "needs"]].assign(rule=rule, reply=replies, **scores)
    for name in PARTS:
        rows[f"reward_{name}"] = rows[name]
    rows["reward"] = rows[[f"reward_{name}" for name in PARTS]].sum(axis=1)
    model = {"ended": 1.0, "self_bleu": 0.3, "reference_nll": nll, "reference_tokens": 6.0, "kl_start": 0.5}
    return rows.assign(**{name: value if has_model else np.nan for name, value in model.items()})


def make_predictions(
    *, skill: float = 0.6, seed: int = 1, nll: float = 8.0, examples: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Draw the prediction rows of one arm: its policy, the start (the same in every arm) and the trivial rules."""
    examples = make_examples() if examples is None else examples
    answers = list(examples["answers"])
    drawn = {"policy": (skill, seed), "greedy": (skill + 0.1, seed), "start": (0.4, 99)}
    frames = [
        rule_rows(
            examples,
            rule,
            write(answers, skill=share, noise=np.random.default_rng(number)),
            has_model=True,
            nll=nll if rule != "start" else 8.0,
        )
        for rule, (share, number) in drawn.items()
    ]
    trivial = trivial_replies(
        [text for texts in answers for text in texts],
        list(examples["context"]),
        personas=list(examples["persona"]),
        answers=answers,
    )
    frames += [rule_rows(examples, rule, replies, has_model=False) for rule, replies in trivial.items()]
    return pd.concat(frames, ignore_index=True)
