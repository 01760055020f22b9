"""Measure what the rewards of single stories cost: a GRPO step with a retriever that learns beside the same step without.

    python benchmarks/dialogue_retriever.py                    (n = 4 candidates; a minute)
    python benchmarks/dialogue_retriever.py --candidates 8 --rounds 5

The parameters are those of conf/base, the data generated dialogues with 4 stories for each prompt; both steps read equally many.
Steps take turns; a ratio of CPU seconds is taken within a round.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import pandas as pd
import torch
import yaml
from measuring import machine

ROOT = Path(__file__).resolve().parents[1]
STORIES_READ = 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the ratios of the rounds as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--candidates", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    steps = [contender(options.candidates), contender(None)]
    for step in steps:  # what is built once
        step()
    seconds = np.array([[step() for step in steps] for _ in range(options.rounds)])  # [rounds, 2]
    ratios = seconds[:, 0] / seconds[:, 1]
    found = {
        "candidates": options.candidates,
        "ratios": ratios.round(3).tolist(),
        "median": round(float(np.median(ratios)), 3),
    }
    print(
        json.dumps(
            {
                **found,
                "seconds": seconds.round(3).tolist(),
                "code": machine.code(0),
                "load": machine.load(),
            }
        )
    )
    return 0


def section(name: str) -> dict[str, Any]:
    """Return the parameters of a file of conf/base, without what Kedro resolves."""
    text = (ROOT / f"conf/base/dialogue/parameters_{name}.yml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text.replace("${", "").replace("}}", "}"))["dialogue"])


def generated_examples(top_n: int) -> Any:
    """Return generated dialogues, all of them for training, with the stories that TF-IDF finds."""
    from grpo_pipeline.tasks.dialogue.data import examples, params, story_index
    from grpo_pipeline.tasks.dialogue.data.generated import generate
    from grpo_pipeline.tasks.dialogue.data.generated.params import PersonaParams
    from grpo_pipeline.tasks.dialogue.data.question import parse_question

    personas = PersonaParams.model_validate(
        section("data")["personas"] | {"personas": 100, "extra_stories": 0}
    )
    rows = []
    for row in generate.generate_rows(personas):
        persona, turns = parse_question(str(row["question"]))
        known = {
            "subject_id": row["persona_id"],
            "persona": persona,
            "context": "\n".join(turns),
            "partner_id": "",
        }
        rows.append(row | known | {"split": "", "row": 0, "columns": "{}", "messages": "[]"})
    stories = (
        pd.DataFrame(generate.generate_stories(personas))
        .rename(columns={"id": "story_id"})
        .assign(persona_id="")
    )
    retrieval = params.RetrievalParams.model_validate(
        section("data")["retrieval"] | {"top_n": top_n}
    )
    table, index = pd.DataFrame(rows), story_index.index_stories(stories, retrieval)
    return examples.build_examples(
        index, table, stories, {"train": list(table["example_id"])}, retrieval
    )


def contender(candidates: int | None) -> Callable[[], float]:
    """Return a function that takes a step and returns its CPU seconds; None has no retriever."""
    from grpo_pipeline.core.objective.algorithm import AlgorithmParams
    from grpo_pipeline.core.params import TrainingParams
    from grpo_pipeline.pipelines.training.loop import StepRunner, quiet_nodes
    from grpo_pipeline.pipelines.training.short_training import pick_batch
    from grpo_pipeline.pipelines.training.start import build_state
    from grpo_pipeline.rewards.params import PoolParams
    from grpo_pipeline.tasks.dialogue.build import build_task, tokenise
    from grpo_pipeline.tasks.dialogue.language_model.params import LanguageModelParams, ReplyParams
    from grpo_pipeline.tasks.dialogue.params import PromptParams, SupervisedParams
    from grpo_pipeline.tasks.dialogue.rewards.params import DialogueReward

    given, examples = section("training"), generated_examples(STORIES_READ)
    training, retriever = given["training"], None
    if candidates is not None:
        training["optimizer"]["learning_rates"]["retriever"] = 0.01
        retriever = {
            "kind": "learned",
            "query": "persona",
            "buckets": 4096,
            "width": 64,
            "candidates": candidates,
            "explored": 1,
        }
        retriever |= {"temperature": 0.5, "swapped": 0.0, "index_every": 5}
    models = {
        "language_model": LanguageModelParams,
        "prompt": PromptParams,
        "replies": ReplyParams,
        "reward": DialogueReward,
    }
    models |= {"reward_pool": PoolParams, "supervised_loss": SupervisedParams}
    given["prompt"]["retriever"], given["reward_pool"]["workers"] = retriever, 0
    task = build_task(
        *(model.model_validate(given[name]) for name, model in models.items()), examples=examples
    )
    params, algorithm = (
        TrainingParams.model_validate(training),
        AlgorithmParams.model_validate(given["grpo"]["algorithm"]),
    )
    data = tokenise(task, examples)[0]
    state, runner = (
        build_state(algorithm, params, 0, task, data),
        StepRunner(task, algorithm, params),
    )

    def step() -> float:
        nonlocal state
        batch, begun = pick_batch(algorithm, params, task, data, state), time.process_time()
        with quiet_nodes():
            state, _ = runner(state, batch)
        return time.process_time() - begun

    return step


if __name__ == "__main__":
    sys.exit(main())
