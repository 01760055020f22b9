"""Build the stages of a batch's conversations from the environment, the tokenizer and the rows."""

from collections.abc import Iterable, Sequence
from functools import partial

from grpo_pipeline.tasks.dialogue.episodes.conversations import Stage
from grpo_pipeline.tasks.dialogue.episodes.environment import Episode, row_of
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
) -> list[Stage]:
    """Build a stage of each row; none without an environment.

    Args:
        params: the environment.
        tokenizer: of the language model.
        prompt: says whether a chat template stands between the replies.
        questions: P texts that the model reads first.
        answers: P lists of right answers.
        cells: P JSON objects of the other columns.
    """
    if params is None:
        return []
    begin = partial(Episode, params.environment, params.options, params.turns)
    encode = partial(answer_ids, tokenizer, prompt=prompt)
    return [
        Stage(partial(begin, row_of(*row)), tokenizer.decode, encode)
        for row in zip(questions, answers, cells, strict=True)
    ]
