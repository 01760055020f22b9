"""Pay the replies of a conversation: the sum of what the environment pays for each of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_pipeline.tasks.dialogue.episodes.environment import Episode, play


def episode_reward(
    replies: Sequence[str],
    answers: Sequence[Sequence[str]],
    *,
    prompts: Sequence[str],
    columns: Mapping[str, Sequence[Any]],
    environment: str,
    turns: int,
    options: Mapping[str, Any],
) -> NDArray[np.float64]:
    """Play each conversation again, and add up its rewards; [N].

    Args:
        replies: N texts, a line for each reply of the conversation.
        answers: N lists of right answers.
        prompts: N prompts.
        columns: name -> N values of the other columns.
        environment: import path of the class.
        turns: largest number of replies.
        options: keyword arguments of the class.
    """
    found = np.zeros(len(replies))
    for place, (text, prompt, right) in enumerate(zip(replies, prompts, answers, strict=True)):
        row = {name: values[place] for name, values in columns.items()}
        row |= {"prompt": prompt, "answers": [*right]}
        steps = play(Episode(environment, options, turns, row), text.split("\n"))
        found[place] = sum(step.reward for step in steps)
    return found
