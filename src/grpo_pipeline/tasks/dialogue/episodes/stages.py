"""Build the stages of a batch's conversations from the environment, the tokenizer and the rows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.tasks.dialogue.episodes.conversations import Stage
from grpo_pipeline.tasks.dialogue.episodes.environment import Episode, make_here, row_of
from grpo_pipeline.tasks.dialogue.episodes.other_process import OtherProcessEnvironment
from grpo_pipeline.tasks.dialogue.episodes.params import EnvironmentReward
from grpo_pipeline.tasks.dialogue.language_model.prompt_text import answer_ids
from grpo_pipeline.tasks.dialogue.language_model.tokens import Tokenizer
from grpo_pipeline.tasks.dialogue.params import PromptParams


def stages_of(
    params: EnvironmentReward | None,
    tokenizer: Tokenizer,
    prompt: PromptParams,
    *,
    questions: Iterable[str],
    answers: Iterable[Sequence[str]],
    cells: Iterable[str],
    pool: RewardPool,
) -> list[Stage]:
    """Build a stage of each row; none without an environment.

    Args:
        params: the environment.
        tokenizer: of the language model.
        prompt: says whether a chat template stands between the replies.
        questions: P texts that the model reads first.
        answers: P lists of right answers.
        cells: P JSON objects of the other columns.
        pool: its processes answer, if it has any.
    """
    if params is None:
        return []
    begin = episodes_of(params.environment, params.options, params.turns, pool=pool)
    encode = partial(answer_ids, tokenizer, prompt=prompt)
    return [
        Stage(
            partial(begin, row_of(*row)), tokenizer.decode, encode, at_once=max(1, pool.processes)
        )
        for row in zip(questions, answers, cells, strict=True)
    ]


def episodes_of(
    environment: str, options: Mapping[str, Any], turns: int, *, pool: RewardPool
) -> Callable[[Mapping[str, Any]], Episode]:
    """Make what begins a conversation about a row; the processes of the pool answer, or this one if it has none."""
    make = partial(OtherProcessEnvironment, pool) if pool.processes else make_here
    return partial(Episode, environment, options, turns, make=make)
