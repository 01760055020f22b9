"""Write sums and short word problems, whose answers are numbers: a task on which a reward can be seen to teach."""

import numpy as np

from grpo_pipeline.tasks.dialogue.data.params import ArithmeticSource

NAMES = ("Ann", "Ben", "Cleo", "Dan")
THINGS = ("pens", "eggs", "nuts", "cups")


def write_problems(source: ArithmeticSource) -> list[dict[str, object]]:
    """Write ``prompt``, ``answers`` and ``pair`` of each problem, a pure function of the parameters.

        12+7=                                   -> 19
        Ben has 12 eggs and gets 7. How many?   -> 19

    No ordered pair of numbers is there twice. Problems of the same two numbers share ``pair``, so that none of them is trained on
    where another one is tested.
    """
    world, side = np.random.default_rng(source.seed), source.largest + 1
    drawn = world.permutation(side**2)[: source.problems].tolist()
    rows: list[dict[str, object]] = []
    for first, second in (divmod(place, side) for place in drawn):
        is_told = world.random() < source.word_share
        name, thing = NAMES[world.integers(len(NAMES))], THINGS[world.integers(len(THINGS))]
        told = f"{name} has {first} {thing} and gets {second}. How many?"
        rows.append(
            {
                "prompt": told if is_told else f"{first}+{second}=",
                "answers": str(first + second),
                "pair": f"{min(first, second)} {max(first, second)}",
            }
        )
    return rows
