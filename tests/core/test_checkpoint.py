import dataclasses
import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from grpo_pipeline.core import tensorfiles
from grpo_pipeline.core.checkpoint import (
    CheckpointError,
    has_checkpoint,
    load_checkpoint,
    load_progress,
    restore,
    save_checkpoint,
    snapshot,
)
from grpo_pipeline.core.optim import advance, apply_update, build_optimizer
from grpo_pipeline.core.reference import frozen_copy
from grpo_pipeline.core.replay import ReplayBuffer, split_groups
from grpo_pipeline.core.rng import step_generator
from grpo_pipeline.core.types import Rollouts, TrainState


def build(seed=0, *, width=8, reference=True, replay=None, coefficients=None):
    torch.manual_seed(seed)
    policy = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Dropout(0.3), nn.Linear(width, 1))
    head = list(policy[3].parameters())
    body = list(policy[0].parameters()) + list(policy[1].parameters())
    optimizer = build_optimizer({"body": (body, 1e-2), "head": (head, 3e-2)}, weight_decay=0.1, betas=(0.7, 0.9))
    kept = None if replay is None else ReplayBuffer(*replay)
    copy = frozen_copy(policy) if reference else None
    return TrainState(policy, optimizer, copy, 0, 0, seed, replay=kept, coefficients=coefficients or {})


def train(state, steps, generator):
    """Use the global stream (dropout), a named stream (data) and the optimiser's moments."""
    for _ in range(steps):
        x = torch.randn(6, 4, generator=generator)
        loss = (state.policy(x) - x.sum(dim=1, keepdim=True)).square().mean()
        state, _ = apply_update(state, loss, max_grad_norm=1.0)
        state = advance(state, epoch=state.step // 3)
    return state


def train_with_replay(state, steps):
    """Fill and draw from the buffer, and adapt a coefficient; returns what was replayed."""
    seen = []
    for _ in range(steps):
        generator = step_generator(state.generator_seed, state.step)
        shape = (4, 2, 3)
        rollouts = Rollouts(
            torch.randint(0, 9, shape, generator=generator),
            -torch.rand(shape, generator=generator, dtype=torch.float64),
            torch.rand(shape, generator=generator) > 0.2,
        )
        drawn = state.replay.draw(2, step=state.step, generator=generator)
        signal = torch.rand(4, generator=generator)
        rows = range(4 * state.step, 4 * state.step + 4)
        state.replay.add(split_groups(rollouts, rows, signal=signal, step=state.step, temperature=1 / (1 + state.step)))
        state = advance(dataclasses.replace(state, coefficients={"entropy": state.coefficients["entropy"] * 1.1 + 1e-3}))
        seen.append((state.coefficients, [(g.row, g.step, g.temperature, g.signal) for g in drawn]))
    return state, seen


def tensors_of(state):
    named = {f"policy.{name}": t for name, t in state.policy.state_dict().items()}
    named |= {f"reference.{name}": t for name, t in state.reference.state_dict().items()}
    moments = state.optimizer.state_dict()["state"]
    return named | {f"optimizer.{i}.{key}": t for i, entry in moments.items() for key, t in entry.items()}


def test_resumed_equals_unbroken_bit_by_bit(tmp_path):
    generator = torch.Generator().manual_seed(5)
    state = train(build(), 4, generator)
    save_checkpoint(tmp_path / "c", snapshot(state, generators={"data": generator}))
    unbroken = train(state, 5, generator)

    other, fresh = torch.Generator().manual_seed(77), build(seed=9)
    resumed = restore(fresh, load_checkpoint(tmp_path / "c"), generators={"data": other})
    assert (resumed.step, resumed.epoch, resumed.generator_seed) == (4, 1, 0)
    resumed = train(resumed, 5, other)
    assert (resumed.step, resumed.epoch) == (unbroken.step, unbroken.epoch)
    got, want = tensors_of(resumed), tensors_of(unbroken)
    assert got.keys() == want.keys()
    assert len([name for name in want if name.startswith("optimizer")]) == 6 * 3
    assert [name for name in want if not torch.equal(got[name], want[name])] == []


def test_snapshot_is_a_copy_and_restore_leaves_it_one(tmp_path):
    generator = torch.Generator().manual_seed(5)
    state = train(build(), 2, generator)
    taken = snapshot(state, generators={"data": generator})
    save_checkpoint(tmp_path / "before", taken)
    train(state, 2, generator)
    resumed = restore(build(seed=3), taken, generators={"data": generator})
    train(resumed, 2, generator)
    save_checkpoint(tmp_path / "after", taken)
    for file in (tmp_path / "before").iterdir():
        assert file.read_bytes() == (tmp_path / "after" / file.name).read_bytes()


def test_round_trip_of_the_rest(tmp_path):
    state = build(reference=False)
    taken = snapshot(state, progress={"batch": 3, "order": [2, 0, 1]}, config_digest="abc", extra={"run_id": "r1"})
    taken.extra["child"] = "r2"
    save_checkpoint(tmp_path / "deep" / "c", taken)
    loaded = load_checkpoint(tmp_path / "deep" / "c")
    assert loaded.progress == {"step": 0, "epoch": 0, "seed": 0, "batch": 3, "order": [2, 0, 1]}
    assert load_progress(tmp_path / "deep" / "c") == loaded.progress
    assert loaded.extra == {"run_id": "r1", "child": "r2"}
    assert loaded.config_digest == "abc"
    assert loaded.reference is None
    groups = build(seed=1, reference=False)
    restore(groups, loaded, config_digest="abc")
    assert [(g["name"], g["lr"], g["betas"]) for g in groups.optimizer.param_groups] == [
        ("body", 1e-2, (0.7, 0.9)),
        ("head", 3e-2, (0.7, 0.9)),
    ]


def test_replay_and_coefficients_go_on_bit_by_bit(tmp_path):
    state, _ = train_with_replay(build(replay=(6, 3), coefficients={"entropy": 0.01}), 3)
    save_checkpoint(tmp_path / "c", snapshot(state))
    assert "replay.safetensors" in {p.name for p in (tmp_path / "c").iterdir()}
    unbroken, seen = train_with_replay(state, 5)
    fresh, _ = train_with_replay(build(seed=4, replay=(6, 3), coefficients={"entropy": 0.5}), 1)
    resumed = restore(fresh, load_checkpoint(tmp_path / "c"))
    assert resumed.replay is fresh.replay
    resumed, seen_again = train_with_replay(resumed, 5)
    assert seen_again == seen
    assert sum(len(drawn) for _, drawn in seen) == 10
    assert resumed.coefficients == unbroken.coefficients
    got, want = resumed.replay.state(), unbroken.replay.state()
    assert got.scalars == want.scalars
    assert got.tensors.keys() == want.tensors.keys()
    assert [name for name, tensor in want.tensors.items() if not torch.equal(got.tensors[name], tensor)] == []


def test_a_snapshot_shares_neither_replay_nor_coefficients(tmp_path):
    state, _ = train_with_replay(build(replay=(6, 3), coefficients={"entropy": 0.01}), 2)
    taken = snapshot(state)
    save_checkpoint(tmp_path / "before", taken)
    state.coefficients["entropy"] = 7.0
    state, _ = train_with_replay(state, 2)
    resumed = restore(build(replay=(6, 3), coefficients={"entropy": 0.5}), taken)
    resumed.coefficients["entropy"] = 8.0
    for held in (state.replay, resumed.replay):
        for stored in held.groups:
            stored.actions.fill_(-1)
    save_checkpoint(tmp_path / "after", taken)
    for file in (tmp_path / "before").iterdir():
        assert file.read_bytes() == (tmp_path / "after" / file.name).read_bytes()


def test_an_empty_replay_survives(tmp_path):
    save_checkpoint(tmp_path / "c", snapshot(build(replay=(6, 3))))
    state, _ = train_with_replay(build(replay=(6, 3), coefficients={"entropy": 0.5}), 1)
    restored = restore(dataclasses.replace(state, coefficients={}), load_checkpoint(tmp_path / "c"))
    assert len(restored.replay) == 0
    assert restored.coefficients == {}


def test_format_1_is_read_as_a_run_without_replay_and_coefficients(tmp_path):
    generator = torch.Generator().manual_seed(5)
    state = train(build(), 2, generator)
    save_checkpoint(tmp_path / "c", snapshot(state))
    path = tmp_path / "c" / "checkpoint.json"
    header = json.loads(path.read_text())
    assert header.pop("format") == 2
    assert (header.pop("replay"), header.pop("coefficients")) == (None, {})
    path.write_text(json.dumps({"format": 1, **header}))
    old = load_checkpoint(tmp_path / "c")
    assert (old.replay, old.coefficients) == (None, {})
    resumed = restore(build(seed=3), old)
    assert resumed.step == 2
    assert [name for name, t in tensors_of(state).items() if not torch.equal(tensors_of(resumed)[name], t)] == []
    with pytest.raises(CheckpointError, match="replay buffer must be the run's, got none for one"):
        restore(build(replay=(2, 2)), old)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_coefficient_that_is_not_finite_is_not_stored(value):
    with pytest.raises(CheckpointError, match=f"coefficient 'entropy' must be finite, got {value} at step 0"):
        snapshot(build(coefficients={"entropy": value}))


def test_only_safetensors_and_json_are_written(tmp_path):
    save_checkpoint(tmp_path / "c", snapshot(build()))
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == [
        "checkpoint.json",
        "optimizer.safetensors",
        "policy.safetensors",
        "reference.safetensors",
    ]
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
    json.loads((tmp_path / "c" / "checkpoint.json").read_text())


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


@pytest.mark.parametrize("how", ["each_operation", "random_moments"])
def test_a_killed_writer_leaves_the_old_or_the_new_checkpoint_whole(tmp_path, how):
    script = Path(__file__).with_name("killed_writer.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "c"), how],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    deaths = [json.loads(line) for line in done.stdout.splitlines()]
    assert deaths[-1]["finished"]
    assert deaths[-1]["after"] == deaths[-1]["before"] + 1
    if how == "each_operation":
        assert len(deaths) > 15
        assert all(d["after"] in (d["before"], d["before"] + 1) for d in deaths)
        # Both outcomes were seen: deaths before the swap and after it.
        assert {d["after"] - d["before"] for d in deaths[:-1]} == {0, 1}
    else:
        assert all(d["after"] >= d["before"] for d in deaths)
        assert deaths[-2]["after"] > 0
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("place", ["write", "flush", "swap"])
def test_a_full_disk_leaves_the_old_checkpoint_and_nothing_half_written(tmp_path, monkeypatch, place):
    folder = tmp_path / "c"
    save_checkpoint(folder, snapshot(build()))
    old = {p.name: p.read_bytes() for p in folder.iterdir()}
    full = OSError(errno.ENOSPC, "No space left on device")

    def refuse(*args, **kwargs):
        raise full

    def refuse_to_leave_partial(path, target, rename=Path.rename):
        return refuse() if ".partial-" in path.name else rename(path, target)

    with monkeypatch.context() as patch:
        if place == "write":
            patch.setattr(tensorfiles, "save_file", refuse)
        elif place == "flush":
            patch.setattr(os, "fsync", refuse)
        else:
            patch.setattr(Path, "rename", refuse_to_leave_partial)
        with pytest.raises(CheckpointError, match=r"must be writable, got .*No space left on device; free some space"):
            save_checkpoint(folder, snapshot(build(seed=1)))
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == old
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_a_real_write_error_is_reported_the_same_way(tmp_path):
    code = (
        "import resource, sys\nfrom pathlib import Path\nsys.path.insert(0, sys.argv[2])\nimport killed_writer as w\n"
        "folder = Path(sys.argv[1])\nw.save_checkpoint(folder, w.numbered(1))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "try:\n    w.save_checkpoint(folder, w.numbered(2))\nexcept w.CheckpointError as error:\n    print(error)\n"
        "print(w.read(folder))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "c"), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    message, step = done.stdout.splitlines()
    assert "must be writable" in message
    assert "File too large" in message
    assert step == "1"
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def damage_truncate(folder):
    path = folder / "policy.safetensors"
    path.write_bytes(path.read_bytes()[:-7])


def damage_flip_a_bit(folder):
    path = folder / "optimizer.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))


def damage_remove(folder):
    (folder / "reference.safetensors").unlink()


def damage_header(folder):
    (folder / "checkpoint.json").write_text("{", encoding="utf-8")


def damage_format(folder):
    path = folder / "checkpoint.json"
    path.write_text(path.read_text().replace('"format": 2', '"format": 99'), encoding="utf-8")


def damage_no_header(folder):
    (folder / "checkpoint.json").unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_truncate, "policy.safetensors must have check sum"),
        (damage_flip_a_bit, "optimizer.safetensors must have check sum"),
        (damage_remove, "reference.safetensors must be readable"),
        (damage_header, "checkpoint.json must be a readable JSON file"),
        (damage_no_header, "checkpoint.json must be a readable JSON file"),
        (damage_format, "must be of format 1 or 2, got 99"),
    ],
)
def test_a_damaged_checkpoint_is_refused_with_the_file_and_the_remedy(tmp_path, damage, message):
    folder = tmp_path / "c"
    state = train(build(), 1, torch.Generator())
    save_checkpoint(folder, snapshot(state))
    damage(folder)
    with pytest.raises(CheckpointError, match=f"{message}.*; the checkpoint is damaged: remove {folder}"):
        load_checkpoint(folder)


def test_absent(tmp_path):
    assert not has_checkpoint(tmp_path / "c")
    with pytest.raises(FileNotFoundError, match="must exist"):
        load_checkpoint(tmp_path / "c")


@pytest.mark.parametrize(
    ("other", "digest", "message"),
    [
        (lambda: build(), "new", "got digest 'old' instead of 'new'"),
        (lambda: build(width=9), None, "must fit the policy"),
        (lambda: build(reference=False), None, "reference policy must be the run's, got one for none"),
        (lambda: build(replay=(3, 2)), None, "replay buffer must be the run's, got none for one"),
        (lambda: build(coefficients={"entropy": 0.1}), None, r"must hold the run's coefficients, got none for \['entropy'\]"),
        (
            lambda: dataclasses.replace(s := build(), optimizer=build_optimizer({"x": (list(s.policy[3].parameters()), 1.0)})),
            None,
            "must hold the optimiser's parameters",
        ),
    ],
)
def test_restore_refuses_what_does_not_fit(other, digest, message):
    taken = snapshot(build(), config_digest="old")
    with pytest.raises(CheckpointError, match=message):
        restore(other(), taken, config_digest=digest)


@pytest.mark.parametrize(
    ("replay", "message"),
    [
        (None, "replay buffer must be the run's, got one for none"),
        ((4, 2), "must fit the replay buffer, got: the stored replay must have the bounds .* use the same parameters"),
    ],
)
def test_restore_refuses_a_replay_that_does_not_fit(replay, message):
    taken = snapshot(build(replay=(3, 2)))
    with pytest.raises(CheckpointError, match=message):
        restore(build(replay=replay), taken)
