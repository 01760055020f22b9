"""Groups are connected components, named alike for any order."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from grpo_pipeline.tasks.dialogue.data.drafts import group_names, persona_key

NAME = st.sampled_from("abcdefgh")


@given(st.lists(st.tuples(NAME, NAME), max_size=12), st.randoms())
def test_groups_are_what_merging_sets_gives(links, random):
    sets: list[set[str]] = []
    for pair in links:
        touching = [group for group in sets if group & set(pair)]
        sets = [group for group in sets if group not in touching] + [set(pair).union(*touching)]
    expected = {name: min(group) for group in sets for name in group}
    shuffled = list(links)
    random.shuffle(shuffled)
    assert group_names(links) == group_names(shuffled) == expected


def test_sentences_in_another_order_are_the_same_persona():
    sentences = np.array(["I bake.", "I have a dog.", "I run."])
    assert persona_key(" ".join(sentences)) == persona_key("  ".join(sentences[[2, 0, 1]]).lower())
    assert persona_key("I bake.") != persona_key("I run.")
