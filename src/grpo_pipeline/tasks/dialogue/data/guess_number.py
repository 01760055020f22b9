"""Write games of guessing a number, with the guesses of a player who never listens: a reward can teach to listen."""

import numpy as np

from grpo_pipeline.tasks.dialogue.data.params import GuessSource


def write_games(source: GuessSource) -> list[dict[str, object]]:
    r"""Write ``prompt``, ``answers``, ``number`` and ``range`` of each game, a pure function of the parameters.

        371-378?    number 375    answers "372\n377\n375"

    The guesses of an answer are drawn from the range, each number once. Games of the same range share ``range``, so that none of
    them is trained on where another one is tested.
    """
    world = np.random.default_rng(source.seed)
    rows: list[dict[str, object]] = []
    for _ in range(source.games):
        low = 10 * int(world.integers(1, source.ranges + 1)) + 1
        guesses = world.permutation(source.span)[: source.turns] + low
        rows.append(
            {
                "prompt": f"{low}-{low + source.span - 1}?",
                "answers": "\n".join(map(str, guesses.tolist())),
                "number": int(world.integers(low, low + source.span)),
                "range": str(low),
            }
        )
    return rows
