"""Figures of the heatmap alone: its highest cells, and whether the highest one lies in the lesion."""

from dataclasses import replace

import numpy as np
import torch
from tiny_attention import make_data, make_task

from grpo_pipeline.tasks.attention.batch import outlined_share
from grpo_pipeline.tasks.attention.evaluation.evaluate import evaluate
from grpo_pipeline.tasks.attention.evaluation.summary import outline_sentences
from grpo_pipeline.tasks.attention.model.heatmap_pointing import highest_cells, pointing_hit


def test_highest_cells_and_pointing_game_against_a_loop() -> None:
    generator = torch.Generator().manual_seed(3)
    heatmap, lesion = torch.rand(40, 36, generator=generator), torch.rand(40, 36, generator=generator) < 0.2
    cells = torch.rand(40, 36, generator=generator) < torch.linspace(0.05, 1.0, 40)[:, None]
    cells[:, 7], lesion[5] = True, False
    top, hit = highest_cells(heatmap, cells, share=0.13), pointing_hit(heatmap, cells, lesion)
    for p in range(40):
        allowed = sorted(heatmap[p][cells[p]].tolist(), reverse=True)
        count = max(1, int(np.ceil(0.13 * len(allowed))))
        np.testing.assert_allclose(top[p].item(), np.mean(allowed[:count]), rtol=1e-6)
        best = heatmap[p].tolist().index(allowed[0])
        assert hit[p] == float(lesion[p, best]) if lesion[p].any() else np.isnan(hit[p])
    assert set(hit[~np.isnan(hit)]) == {0.0, 1.0}


def test_outlines_that_are_the_bag_are_counted_among_the_training_cores() -> None:
    task, data = make_task(), make_data()
    examples, train = data.examples, task.rows(data, "train")
    known = [row for row in train if examples.lesion[row].any()]
    assert 0 < len(known) < len(train)
    bag = np.array(examples.bag)
    assert outlined_share(data, train) == 0
    bag[known[0]] = examples.lesion[known[0]]
    empty = next(row for row in train if row not in known)
    bag[empty] = False  # no lesion and no bag: equal, and no outline
    outlined = replace(data, examples=replace(examples, bag=bag))
    rows = evaluate(task, task.build_policy(0), outlined, task.rows(data, "test"), seed=0, n_samples=2)
    np.testing.assert_allclose(rows["outlined_share"], 1 / len(train))
    assert rows["heatmap_top"].between(0, 1).all()


def test_sentences_say_what_was_shown() -> None:
    def said(share: float | None, lesions: int) -> str:
        metrics = {"outlined_share": {"value": share}, "lesion_hit": {"n": lesions}}
        return " ".join(outline_sentences({"control": "c", "arms": {"c": {"metrics": metrics}}}))

    assert said(0.0, 5).startswith("No lesion outline supervised the heatmap")
    assert "outline of 78% of the training cores supervised" in said(0.784, 5)
    assert "outline of 50% of the training cores supervised" in said(0.5, 0)  # whatever held-out cores have
    assert said(0.0, 0) == said(None, 5) == ""
