import dataclasses
import errno
import json
import math
import os
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from grpo_pipeline.core.agreement import differences, summary
from grpo_pipeline.core.rng import capture_rng, step_generator
from grpo_pipeline.core.storage import tensor_folder
from grpo_pipeline.core.storage.checkpoint import (
    Checkpoint,
    CheckpointError,
    has_checkpoint,
    load_checkpoint,
    load_progress,
    save_checkpoint,
)
from grpo_pipeline.core.storage.snapshot import restore, snapshot
from grpo_pipeline.core.storage.weights import digest_of_tensors
from grpo_pipeline.core.training.optim import advance, apply_update, build_optimizer
from grpo_pipeline.core.training.reference import frozen_copy
from grpo_pipeline.core.training.replay_buffer import ReplayBuffer
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.training.stored_groups import split_groups
from grpo_pipeline.core.types import Rollouts

HELD = {"replay": (6, 3), "coefficients": {"entropy": 0.01}}


def build(seed=0, *, width=8, reference=True, replay=None, coefficients=None):
    torch.manual_seed(seed)
    policy = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Dropout(0.3), nn.Linear(width, 1))
    head = list(policy[3].parameters())
    body = list(policy[0].parameters()) + list(policy[1].parameters())
    optimizer = build_optimizer({"body": (body, 1e-2), "head": (head, 3e-2)}, weight_decay=0.1, betas=(0.7, 0.9))
    kept = None if replay is None else ReplayBuffer(*replay)
    copy = frozen_copy(policy) if reference else None
    return TrainState(policy, optimizer, copy, 0, 0, seed, replay=kept, coefficients=dict(coefficients or {}))


def train(state, steps, generator=None):
    """Use the global stream (dropout), a named stream (data), the optimiser's moments, a coefficient and the buffer."""
    replayed = []
    for _ in range(steps):
        x = torch.randn(6, 4, generator=generator)
        loss = (state.policy(x) - x.sum(dim=1, keepdim=True)).square().mean()
        state, _ = apply_update(state, loss, max_grad_norm=1.0)
        if state.replay is not None:
            replayed += use_replay(state)
        grown = {name: 1.1 * value + 1e-3 for name, value in state.coefficients.items()}
        state = advance(dataclasses.replace(state, coefficients=grown), epoch=state.step // 3)
    return state, replayed


def use_replay(state):
    """Draw from the buffer and fill it; return what was drawn."""
    stream, shape = step_generator(state.generator_seed, state.step), (4, 2, 3)
    logprobs = -torch.rand(shape, generator=stream, dtype=torch.float64)
    rollouts = Rollouts(torch.randint(0, 9, shape, generator=stream), logprobs, torch.rand(shape, generator=stream) > 0.2)
    drawn = state.replay.draw(2, step=state.step, generator=stream)
    signal, rows = torch.rand(4, generator=stream), range(4 * state.step, 4 * state.step + 4)
    state.replay.add(split_groups(rollouts, rows, signal=signal, step=state.step, temperature=1 / (1 + state.step)))
    return [(group.row, group.step, group.temperature, group.signal) for group in drawn]


def tensors_of(state):
    named = {f"policy.{name}": t for name, t in state.policy.state_dict().items()}
    named |= {f"reference.{name}": t for name, t in state.reference.state_dict().items()}
    named |= {f"replay.{name}": t for name, t in state.replay.state().tensors.items()}
    moments = state.optimizer.state_dict()["state"]
    return named | {f"optimizer.{i}.{key}": t for i, entry in moments.items() for key, t in entry.items()}


def names_in(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(("steps", "epoch"), [(0, 0), (1, 0), (4, 1)])
def test_resumed_equals_unbroken_bit_by_bit(tmp_path, steps, epoch):
    generator = torch.Generator().manual_seed(5)
    state, _ = train(build(**HELD), steps, generator)
    save_checkpoint(tmp_path / "c", snapshot(state, generators={"data": generator}))
    unbroken, replayed = train(state, 5, generator)

    other = torch.Generator().manual_seed(77)
    fresh, _ = train(build(seed=9, replay=(6, 3), coefficients={"entropy": 0.5}), 1)
    resumed = restore(fresh, load_checkpoint(tmp_path / "c"), generators={"data": other})
    assert resumed.replay is fresh.replay
    assert (resumed.step, resumed.epoch, resumed.generator_seed) == (steps, epoch, 0)
    resumed, replayed_again = train(resumed, 5, other)
    assert replayed_again == replayed
    assert len(replayed) >= 8
    assert (resumed.step, resumed.epoch, resumed.coefficients) == (unbroken.step, unbroken.epoch, unbroken.coefficients)
    assert resumed.replay.state().scalars == unbroken.replay.state().scalars
    got, want = tensors_of(resumed), tensors_of(unbroken)
    assert got.keys() == want.keys()
    assert len([name for name in want if name.startswith("optimizer")]) == 6 * 3
    assert [name for name in want if not torch.equal(got[name], want[name]) or got[name].dtype != want[name].dtype] == []


def test_snapshot_is_a_copy_and_restore_leaves_it_one(tmp_path):
    generator = torch.Generator().manual_seed(5)
    state, _ = train(build(**HELD), 2, generator)
    taken = snapshot(state, generators={"data": generator})
    save_checkpoint(tmp_path / "before", taken)
    resumed = restore(build(seed=3, **HELD), taken, generators={"data": generator})
    for held in (state, resumed):
        held.coefficients["entropy"] = 7.0
        train(held, 2, generator)
        for stored in held.replay.groups:
            stored.actions.fill_(-1)
    save_checkpoint(tmp_path / "after", taken)
    assert names_in(tmp_path / "before") == names_in(tmp_path / "after")


def test_round_trip_of_the_rest(tmp_path):
    folder = tmp_path / "deep" / "c"
    assert not has_checkpoint(folder)
    with pytest.raises(FileNotFoundError, match="must exist"):
        load_checkpoint(folder)
    parameters = {"a": {"b": 1}}
    progress = {"batch": 3, "order": [2, 0, 1]}
    taken = snapshot(build(reference=False), progress=progress, parameters=parameters, extra={"run_id": "r1"}, code={"p": "1.2"})
    taken.extra["child"] = "r2"
    save_checkpoint(folder, taken)
    loaded = load_checkpoint(folder)
    assert loaded.progress == load_progress(folder) == {"step": 0, "epoch": 0, "seed": 0} | progress
    assert (loaded.extra, loaded.parameters, loaded.reference) == ({"run_id": "r1", "child": "r2"}, parameters, None)
    assert (loaded.code, loaded.frozen_reference, loaded.frames) == ({"p": "1.2"}, None, {})
    assert loaded.config_digest == taken.config_digest
    groups = build(seed=1, reference=False)
    restore(groups, loaded, parameters=parameters)
    found = [(g["name"], g["lr"], g["betas"]) for g in groups.optimizer.param_groups]
    assert found == [("body", 1e-2, (0.7, 0.9)), ("head", 3e-2, (0.7, 0.9))]


def edit(place, sealed=False, **values):
    """Change entries of the header at ``place``, such as "optimizer groups 0"; None removes one; ``sealed``: the sum fits."""

    def apply(folder):
        path = folder / "checkpoint.json"
        at = header = json.loads(path.read_text())
        for key in place.split():
            at = at[int(key) if key.isdigit() else key]
        at.update(values)
        for name in [name for name, value in values.items() if value is None]:
            del at[name]
        path.write_text(json.dumps(header | ({"sha256": tensor_folder.seal_of(header)} if sealed else {})))

    return apply


sealed = partial(edit, sealed=True)


def damage(name, change=None):
    """``change`` takes the bytes of the file and returns others; None removes it."""

    def apply(folder):
        path = folder / name
        path.unlink() if change is None else path.write_bytes(change(path.read_bytes()))

    return apply


EDITED, FIRST = r"checkpoint.json must .* check sum", "optimizer groups 0"
SPOILED = [
    *((edit(place, **change), EDITED) for place, change in [
        ("progress", {"step": 999}), (FIRST, {"lr": 0.5}), ("rng", {"torch": "AAAAAAA="}), ("extra", {"run": "another"}),
        ("crc32", {"policy.safetensors": "00000000"}), ("", {"sha256": None})]),
    # Numbers that no run writes, whoever sealed them.
    (sealed("progress", step=999), "step must be at most the 4 steps of the run, got 999"),
    *((sealed("progress", step=x), f"step must be a whole number of at least 0, got {x}") for x in (-1, 1.5)),
    (sealed("progress", epoch=9), "epoch must be at most the 2 steps done, got 9"),
    (sealed("progress", seed=True), "seed must be a whole number of at least 0, got True"),
    (sealed("coefficients", entropy=math.inf), "coefficient 'entropy' must be finite, got inf"),
    (sealed(FIRST, lr=-0.1), "lr of group body must be finite and at least 0, got -0.1"),
    (sealed("optimizer groups 1", weight_decay=math.nan), "weight_decay of group head must be finite and at least 0, got nan"),
    (sealed(FIRST, betas=[1.0, 0.9]), r"betas of group body must be at least 0 and below 1, got \[1.0, 0.9\]"),
    (sealed("", progress=None), "checkpoint.json must be complete, got no usable 'progress'"),
    *((edit("", format=x, sha256=None), f"must be of format 3, got {x}, an earlier one without a check sum") for x in (1, 2)),
    (sealed("", format=99), "must be of format 3, got 99; go on with the version that wrote it, or remove"),
    (damage("policy.safetensors", lambda content: content[:-7]), "policy.safetensors must have check sum"),
    (damage("optimizer.safetensors", lambda content: content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]),
     "optimizer.safetensors must have check sum"),
    (damage("reference.safetensors"), "reference.safetensors must be readable"),
    (damage("checkpoint.json", lambda content: b"{"), "checkpoint.json must be a readable JSON file"),
    (damage("checkpoint.json"), "checkpoint.json must be a readable JSON file"),
]  # fmt: skip


def put(part, **changes):
    """Change tensors of a part in a checkpoint's folder, and seal it again; None removes one."""

    def apply(folder):
        path = folder / f"{part}.safetensors"
        tensors = load_file(path)
        for name, change in changes.items():
            found = next(key for key in tensors if key.replace(".", "_").replace(":", "_").replace("#", "") == name)
            tensor = tensors.pop(found)
            if change is not None:
                tensors[found] = change(tensor)
        save_file(tensors, path)
        header = json.loads((folder / "checkpoint.json").read_text())
        header["crc32"][path.name] = tensor_folder.checksum(path)
        (folder / "checkpoint.json").write_text(json.dumps(header | {"sha256": tensor_folder.seal_of(header)}))

    return apply


def with_entry(value):
    """Put a value in the place of a tensor's first entry."""

    def change(tensor):
        tensor = tensor.clone()
        tensor.view(-1)[0] = value
        return tensor

    return change


SEALED_AGAIN = {
    "nan weight": (put("policy", **{"0_weight": with_entry(math.nan)}), "policy's 0.weight must hold .*, got nan.* remove"),
    "inf weight": (put("reference", **{"0_bias": with_entry(-math.inf)}), "reference's 0.bias must hold finite .*, got -inf"),
    "missing": (put("policy", **{"0_bias": None}), "must fit the policy, got: .*Missing key.*0.bias"),
    "other kind": (put("policy", **{"0_weight": torch.Tensor.double}), "0.weight must be of the kind torch.*, got torch.float64"),
    "other shape": (put("policy", **{"0_bias": lambda t: t[:-1]}), "must fit the policy, got: .*size mismatch"),
    "nan moment": (put("optimizer", **{"0_weight_exp_avg": with_entry(math.nan)}), "0.weight:exp_avg must hold finite numbers"),
    "moment's shape": (put("optimizer", **{"0_weight_exp_avg": lambda t: t[:1]}), "must have the shape .* of its parameter"),
    "a setting less": (sealed(FIRST, eps=None), r"settings of the run's, got a difference in \['eps'\]"),
    "a setting more": (sealed(FIRST, speed=3), r"settings of the run's, got a difference in \['speed'\]"),
    "parameters of a group": (sealed(FIRST, params=[1]), "must (hold the optimiser's parameters|be as a run wrote it)"),
    "groups are none": (sealed("optimizer", groups=[]), "must hold the optimiser's parameters"),
    "groups are a number": (sealed("optimizer", groups=3), "must be complete, got no usable"),
    "extra is a list": (sealed("", extra=[1]), "extra must be of the kind that a run writes, got list"),
    "rng is a text": (sealed("", rng="x"), "rng must be of the kind that a run writes, got str"),
    "no torch stream": (sealed("rng", torch=None), "must be as a run wrote it, got KeyError"),
    "a short torch stream": (sealed("rng", torch="AAAA"), "must be as a run wrote it, got RuntimeError"),
    "no base64": (sealed("rng", torch="A"), "must be as a run wrote it, got Error"),
    "numpy's stream": (sealed("rng numpy", state={"key": "AAAA", "pos": 3}), "must be as a run wrote it, got ValueError"),
    "python's stream": (sealed("rng python", internal="AAAAAA=="), "must be as a run wrote it, got ValueError"),
    "a counter as text": (sealed("progress", step="2"), "step must be a whole number of at least 0, got 2"),
    "no epoch": (sealed("progress", epoch=None), "must be complete, got no usable 'epoch'"),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "message"), SEALED_AGAIN.values(), ids=SEALED_AGAIN)
def test_what_was_edited_and_sealed_again_is_one_sentence(tmp_path, stored, spoil, message):
    folder = shutil.copytree(stored, tmp_path / "c")
    spoil(folder)
    with pytest.raises(CheckpointError, match=message) as refused:
        restore(dataclasses.replace(build(coefficients={"entropy": 0.5}), total_steps=4), load_checkpoint(folder))
    assert "\n" not in str(refused.value)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored") / "c"
    state = train(build(coefficients={"entropy": 0.01}), 2)[0]
    save_checkpoint(folder, snapshot(state, progress={"total_steps": 4}, parameters={"seed": 0}, extra={"run": "one"}))
    load_checkpoint(folder)
    return folder


@pytest.mark.parametrize(("spoil", "message"), SPOILED)
def test_what_is_edited_damaged_or_of_another_format_is_refused(tmp_path, stored, spoil, message):
    folder = shutil.copytree(stored, tmp_path / "c")
    spoil(folder)
    remedy = "" if "format" in message else f".*; the checkpoint is damaged or edited: remove {folder}"
    readers = (load_checkpoint, load_progress) if message == EDITED or "format" in message else (load_checkpoint,)
    for read in readers:
        with pytest.raises(CheckpointError, match=message + remedy):
            read(folder)


def test_a_reference_that_never_moves_is_named_and_not_written(tmp_path):
    state = train(build(), 2)[0]
    digest = digest_of_tensors(state.reference.state_dict())
    save_checkpoint(tmp_path / "c", snapshot(state, frozen_reference=digest))
    assert "reference.safetensors" not in names_in(tmp_path / "c")
    loaded, fresh, other = load_checkpoint(tmp_path / "c"), build(), build(seed=3)
    restore(fresh, loaded, frozen_reference=digest)
    assert digest_of_tensors(fresh.reference.state_dict()) == digest
    with pytest.raises(CheckpointError, match="the reference policy must be the one that training began with, got other weights"):
        restore(other, loaded, frozen_reference=digest_of_tensors(other.reference.state_dict()))
    with pytest.raises(CheckpointError, match="reference policy must be the run's, got one for none"):
        restore(build(reference=False), loaded)


def test_differences_are_told_by_name_and_value_and_many_are_counted():
    stored = {"training": {"batch_size": 8, "rates": {"a": 0.1}, "gone": None}, "task": {"examples": "a" * 64}, "seed": 0}
    here = {"training": {"batch_size": 16, "rates": {"a": 0.1, "b": 0.2}}, "task": {"examples": "b" * 64}, "seed": 0}
    names = {"training": "attention.training", "task": "attention"}
    with pytest.raises(CheckpointError) as refused:
        restore(build(), snapshot(build(), parameters=stored), parameters=here, names=names)
    assert str(refused.value) == (
        "the checkpoint must be of a run with these parameters, got attention.examples: bbbbbbbbbbbb… here, aaaaaaaaaaaa… in the "
        "checkpoint; attention.training.batch_size: 16 here, 8 in the checkpoint; attention.training.gone: nothing here, null in "
        "the checkpoint; attention.training.rates.b: 0.2 here, nothing in the checkpoint; go on with the checkpoint's values, or "
        "remove its folder to train this part anew"
    )
    found = differences({str(i): i for i in range(9)}, {str(i): -i for i in range(9)})
    assert len(found) == 8  # 0 and -0 are equal
    assert summary(found).endswith("; 5: 5 here, -5 in the checkpoint and 3 more")


def test_tied_weights_survive(tmp_path):
    net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    net[1].weight = net[0].weight
    state = TrainState(net, build_optimizer({"all": ([net[0].weight], 0.1)}), None, 0, 0, 0)
    before = net[0].weight.detach().clone()
    save_checkpoint(tmp_path / "c", snapshot(state))
    apply_update(state, net(torch.ones(1, 3)).sum(), max_grad_norm=None)
    restore(state, load_checkpoint(tmp_path / "c"))
    assert torch.equal(net[1].weight, before)
    assert net[1].weight is net[0].weight


def numbered(step):
    """A checkpoint of which every tensor and counter says ``step``."""
    tensors = {f"w{i}": torch.full((64, 256), float(step)) for i in range(3)}
    moments = {f"{name}:m": tensor.clone() for name, tensor in tensors.items()}
    optimizer, progress = {"tensors": moments, "scalars": {}, "groups": []}, {"step": step, "epoch": 0, "seed": 0}
    return Checkpoint(policy=tensors, optimizer=optimizer, reference=None, rng=capture_rng(), progress=progress)


def steps_in(folder):
    """Every step that some part of the checkpoint says."""
    found = load_checkpoint(folder)
    tensors = [*found.policy.values(), *found.optimizer["tensors"].values()]
    return {found.progress["step"], *(int(x) for tensor in tensors for x in tensor.unique())}


def write_and_die(folder, step, *, at):
    """In a process of its own, of which the n-th operation on the file system is the last thing that it does."""
    if (pid := os.fork()) == 0:
        left, code = [at], 1

        def counted(function):
            def call(*args, **kwargs):
                left[0] -= 1
                return function(*args, **kwargs) if left[0] >= 0 else os._exit(9)

            return call

        try:
            for name in ("mkdir", "fsync", "rename", "unlink", "rmdir", "open"):
                setattr(os, name, counted(getattr(os, name)))
            shutil.rmtree = counted(shutil.rmtree)
            save_checkpoint(folder, numbered(step))
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_killed_writer_leaves_the_old_or_the_new_checkpoint_whole(tmp_path):
    save_checkpoint(tmp_path / "c", numbered(0))
    before, code, moved = 0, 9, []
    while code == 9:
        code = write_and_die(tmp_path / "c", before + 1, at=len(moved))
        (after,) = steps_in(tmp_path / "c")
        moved.append(after - before)
        before = after
    assert (code, moved[-1]) == (0, 1)
    assert len(moved) > 15
    assert set(moved[:-1]) == {0, 1}  # both outcomes were seen, deaths before the swap and after it, and nothing else
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("place", ["flush", "swap"])
def test_a_full_disk_leaves_the_old_checkpoint_and_nothing_half_written(tmp_path, monkeypatch, place):
    folder, rename = tmp_path / "c", Path.rename
    save_checkpoint(folder, snapshot(build()))
    old = names_in(folder)

    def refuse(path, target=None):
        if target is None or ".partial-" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(*((os, "fsync") if place == "flush" else (Path, "rename")), refuse)
        with pytest.raises(CheckpointError, match=r"must be writable, got .*No space left on device; free some space"):
            save_checkpoint(folder, snapshot(build(seed=1)))
    assert names_in(folder) == old
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def head_alone():
    state = build()
    return dataclasses.replace(state, optimizer=build_optimizer({"x": (list(state.policy[3].parameters()), 1.0)}))


def shorter(steps):
    return lambda: dataclasses.replace(build(), total_steps=steps)


@pytest.mark.parametrize(
    ("taken", "other", "message"),
    [
        (build, lambda: build(width=9), "must fit the policy"),
        (build, lambda: build(reference=False), "reference policy must be the run's, got one for none"),
        (build, lambda: build(replay=(3, 2)), "replay buffer must be the run's, got none for one"),
        (build, lambda: build(coefficients={"entropy": 0.1}), r"the run's coefficients, got none for \['entropy'\]"),
        (build, head_alone, "must hold the optimiser's parameters"),
        (lambda: build(replay=(3, 2)), build, "replay buffer must be the run's, got one for none"),
        (lambda: build(replay=(3, 2)), lambda: build(replay=(4, 2)),
         "must fit the replay buffer, got: the stored replay must have the bounds .* use the same parameters"),
        (lambda: train(build(), 3)[0], shorter(2), "as long as its checkpoint, got 2 steps after 3; give it more epochs"),
        *((lambda bad=bad: build(coefficients={"entropy": bad}), build, f"'entropy' must be finite, got {bad} at step 0")
          for bad in (math.nan, math.inf)),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_neither_stored_nor_restored(taken, other, message):
    with pytest.raises(CheckpointError, match=message):
        restore(other(), snapshot(taken(), progress={"total_steps": 4}))
