import json
import random
import re
from pathlib import Path

import numpy as np
import torch
from refusals import refuses

from grpo_pipeline.core.rng import Stream, capture_rng, restore_rng, step_generator, stream_key


def draw(generator):
    numpy_stream = np.random.standard_normal(3).tolist()  # noqa: NPY002 the global stream is under test
    return torch.randn(3).tolist(), numpy_stream, random.gauss(0, 1), torch.randn(2, generator=generator).tolist()


def test_every_stream_goes_on_after_a_round_trip_through_json():
    generator = torch.Generator().manual_seed(3)
    draw(generator)  # leaves half of a Box-Muller pair in the global streams
    captured = json.loads(json.dumps(capture_rng({"order": generator})))
    expected = [draw(generator), draw(generator)]
    other = torch.Generator().manual_seed(99)
    draw(other)
    restore_rng(captured, {"order": other})
    assert [draw(other), draw(other)] == expected


def test_each_generator_gets_its_own_state_back():
    names = {"order": 3, "noise": 4, "batch": 5}
    captured = json.loads(json.dumps(capture_rng({name: torch.Generator().manual_seed(seed) for name, seed in names.items()})))
    others = {name: torch.Generator().manual_seed(99) for name in reversed(names)}
    restore_rng(captured, others)
    for name, seed in names.items():
        assert torch.equal(torch.randn(3, generator=others[name]), torch.randn(3, generator=torch.Generator().manual_seed(seed)))


test_refuses = refuses(
    (lambda: restore_rng(capture_rng({"a": torch.Generator()}), {"b": torch.Generator()}), r"\['a'\], got \['b'\]"),
    *((lambda numbers=numbers: step_generator(*numbers), r"of a random stream must be within \[0, 2\^64\), got")
      for numbers in [(-1, 0), (0, -1), (2**64, 0), (0, 2**64)]),
    (lambda: step_generator(0, 0, stream=22), "22'? is not a valid Stream"),
)  # fmt: skip


def test_step_generator_depends_on_each_argument_and_on_nothing_else():
    def first(*args, **kwargs):
        return torch.rand(1, generator=step_generator(*args, **kwargs)).item()

    torch.rand(5)
    assert first(1, 2) == first(1, 2)
    streams = (Stream.ROLLOUTS, Stream.RETRIES)
    assert len({first(seed, step, stream=stream) for seed in range(4) for step in range(4) for stream in streams}) == 32


# Seeds, steps and places of a long run: batches, attempts, contents (64 bits), and what lies around powers of two.
NUMBERS = (*range(60), 2**16, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63, 2**64 - 1)


def test_no_two_streams_in_use_share_a_key_or_a_seed():
    """Every name of the registry, at up to two places: all keys differ, and so do the seeds that are made of them."""
    some = (0, 1, 2, 21, 31, 41, 2**32, 2**64 - 1)
    places = [(), *((one,) for one in NUMBERS), *((one, two) for one in some for two in some)]
    where = [(seed, stream, place) for seed in (0, 1, 2**32) for stream in Stream for place in places]
    keys = {stream_key(seed, stream, *place) for seed, stream, place in where}
    assert len(keys) == len(where)
    seeds = {step_generator(seed, *place, stream=stream).initial_seed() for seed, stream, place in where}
    assert len(seeds) == len(where)


def test_a_key_says_what_it_was_made_of():
    """Fixed widths: seed (2 words), name (2), number of places (1), each place (2); nothing runs into its neighbour."""
    assert all(len(stream_key(0, stream, *range(n))) == 5 + 2 * n for stream in Stream for n in range(4))
    names = {stream_key(0, stream)[2:4] for stream in Stream}
    assert len(names) == len(Stream)
    assert stream_key(2**32 + 7, Stream.BATCH, 2**33)[:2] == (7, 1)
    assert stream_key(0, Stream.BATCH, 2**33)[-2:] == (0, 2)


SOURCE = Path(__file__).resolve().parents[2] / "src/grpo_pipeline"
# What makes a generator without the registry, and why its draws meet no other's.
BY_THEMSELVES = {
    "core/rng.py": "the registry",
    "tasks/attention/data/phantom/generate.py": "generated data: [seed, 1, patient] and [seed, 2, center]",
    "tasks/attention/task.py": "initial weights, torch's global stream, put back afterwards",
    "tasks/attention/model/encoder/outline_pretraining.py": "initial weights, as above; else always the same points",
    "tasks/attention/model/whole_image_network.py": "initial weights and dropout, torch's global stream in a fork",
    "tasks/attention/model/outline_network.py": "initial weights and dropout, as above",
    "tasks/attention/grey_changes.py": "noise on the device, its seed drawn from the batch's generator",
    "tasks/dialogue/data/generated/exchanges.py": "generated data: [seed, 3, persona, number]",
    "tasks/dialogue/data/generated/personas.py": "generated data: [seed, 0] and [seed, 1, number]",
    "tasks/dialogue/data/arithmetic.py": "generated data, of the seed of its section",
    "tasks/dialogue/data/guess_number.py": "the same",
    "tasks/dialogue/retriever/towers.py": "a seed of each prompt, drawn from the generator of its batch; first weights, as below",
    "tasks/dialogue/data/generated/stories.py": "generated data: [seed, 2, cell]",
    "tasks/dialogue/generation/library_generate.py": "torch's global stream in a fork, its seed drawn from the step's generator",
    "tasks/dialogue/generation/openai_server.py": "a seed of each request, of the step's generator",
    "tasks/dialogue/language_model/build.py": "initial weights, as above",
    "tasks/dialogue/language_model/continuation.py": "tokens on which a network is checked, always the same",
    "tasks/dialogue/language_model/library_head.py": "the same",
    "tasks/dialogue/language_model/sampling.py": "draws from one choice: any seed does",
    "testing/policy.py": "named in a remedy",
    "testing/subject.py": "checks of a task, on streams that they put back",
    "tasks/molecules/evaluation/audit.py": "a seed drawn from a generator of the registry",
    "tasks/molecules/batch.py": "the fixed noise of validation",
    "tasks/molecules/data/generate.py": "generated data: [seed, size] and [seed, size, 1]",
    "tasks/molecules/denoiser/graph_policy.py": "initial weights, as above",
}
MAKES = re.compile(r"drawn_on_the_cpu\(|default_rng\(|manual_seed\(|SeedSequence\(|RandomState\(|random\.Random\(|random\.seed\(")


def test_every_generator_is_of_the_registry_or_listed_with_its_reason():
    found = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if MAKES.search(path.read_text(encoding="utf-8"))}
    assert sorted(found) == sorted(BY_THEMSELVES)


def test_a_stream_is_drawn_from_in_one_place():
    """In one module of the shared code, or in one of each task (two tasks never draw in one run)."""
    users = {stream: [] for stream in Stream}
    for path in sorted(SOURCE.rglob("*.py")):
        where = path.relative_to(SOURCE).parts
        for name in set(re.findall(r"Stream\.([A-Z_]+)", path.read_text(encoding="utf-8"))):
            if where != ("core", "rng.py"):
                users[Stream[name]].append("/".join(where[:2]) if where[0] == "tasks" else "shared")
    for stream, owners in users.items():
        assert owners, f"nothing draws from {stream}"
        assert len(owners) == len(set(owners)), f"{stream} is drawn from in {owners}"
        assert len(owners) == 1 or "shared" not in owners, f"{stream} is drawn from in {owners}"
