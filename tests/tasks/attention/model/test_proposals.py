from dataclasses import fields

import numpy as np
import pytest
import torch
from tiny_attention import (
    N_TRAIN,
    algorithm_params,
    make_batch,
    make_data,
    make_examples,
    make_state,
    make_task,
    shake,
    training_params,
)
from torch import Tensor

from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.pipelines.step.collect import nothing_replayed
from grpo_pipeline.pipelines.training.loop import Fold
from grpo_pipeline.tasks.attention.batch import region_cells
from grpo_pipeline.tasks.attention.task import AttentionTask
from grpo_pipeline.tasks.base import Proposal

ROWS = np.arange(N_TRAIN)


def draw(task: AttentionTask, proposal: Proposal, *, group: int = 50, oracle: bool = False, shaken: bool = False) -> Rollouts:
    data = task.with_oracle(make_data()) if oracle else make_data()
    policy = task.build_policy(0)
    if shaken:
        shake(policy)
    context = task.encode(policy, task.make_batch(data, ROWS))
    generator = torch.Generator().manual_seed(0)
    return task.sample(policy, context, group, temperature=1.0, proposal=proposal, generator=generator)


def lesions(task: AttentionTask) -> Tensor:
    return region_cells(torch.as_tensor(make_examples().lesion[ROWS]), task.grid)


def test_oracle_points_lie_in_the_lesion():
    task = make_task(patch_size=4)  # in a grid of 8 cells a lesion covers at least k = 3 of them
    inside, drawn = lesions(task), draw(task, "oracle", oracle=True)
    is_hit = inside[:, None].expand(-1, 50, -1).gather(2, drawn.actions)
    known = [3, 5, 7]
    assert bool(is_hit[known].all())
    uniform = draw(task, "uniform").actions
    assert float(inside[:, None].expand(-1, 50, -1).gather(2, uniform)[known].float().mean()) < 0.5


def test_cores_without_a_known_lesion_get_uniform_points():
    task = make_task(patch_size=4)
    drawn, uniform = draw(task, "oracle", oracle=True), draw(task, "uniform")
    unknown = [0, 1, 2, 4, 6]  # benign, and row 1, whose outline is unknown
    assert torch.equal(drawn.actions[unknown], uniform.actions[unknown])
    assert torch.equal(drawn.logprobs[unknown], uniform.logprobs[unknown])
    assert not torch.equal(drawn.actions, uniform.actions)


def test_without_the_step_no_batch_holds_the_lesion():
    task, shown = make_task(), make_data()
    seen = task.with_oracle(shown)
    lesion = lesions(task)

    def holds(batch: object) -> list[str]:
        tensors = {field.name: getattr(batch, field.name) for field in fields(batch)}
        return [name for name, value in tensors.items() if isinstance(value, Tensor) and _same(value, lesion)]

    assert holds(task.make_batch(seen, ROWS)) == ["lesion_cells"]
    assert holds(task.make_batch(shown, ROWS)) == []
    policy = task.build_policy(0)
    assert holds(task.encode(policy, task.make_batch(shown, ROWS))) == []


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.float(), b.float())


def test_the_oracle_needs_the_step_and_a_lesion():
    task = make_task()
    with pytest.raises(ValueError, match=r"the batch must hold the lesion for proposal: oracle, got one without; make it from"):
        draw(task, "oracle")
    examples = make_examples()
    examples.lesion[:] = False
    with pytest.raises(ValueError, match=r"proposal: oracle must have cores with a lesion outline, got none among 15; name the"):
        task.with_oracle(make_data(examples))


@pytest.mark.parametrize("decoder", ["glimpse", "global"])
def test_a_step_without_points_teaches_the_decoders(decoder: str):
    task, training = make_task(class_decoder=decoder), training_params()
    algorithm = algorithm_params("supervised", proposal="none")
    state = make_state(task, make_data(), algorithm, training)
    done = Fold(task, algorithm, training).run(state, make_batch(task), nothing_replayed())
    assert done.experience.rollouts.actions.shape == (4, 4, 0)
    logits = done.experience.outcomes.class_logits
    assert torch.equal(logits, logits[:, :1].expand_as(logits))  # nothing tells the samples of a core apart
    assert bool(done.experience.advantages.is_tied.all())
    assert done.metrics["supervised/loss"] > 0
    table = task.tabulate(make_data(), make_batch(task), done.experience.rollouts)
    assert table.columns.tolist() == ["core_id", "sample", "label"]
    assert len(table) == 16
