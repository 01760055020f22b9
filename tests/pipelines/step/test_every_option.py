"""Every algorithm option, through the loop itself: it changes the trained weights, or is refused with a sentence.

The options are those of the pydantic models, of a union those of each kind: a new one has no settings here and fails the first
test. A setting is a patch and the patch of its default; null takes a part away. An option acts if one of three steps from one
start ends at other weights with it than with its default, to the bit. Parts do not know each other (tests/house/test_parts.py);
some of several together, ``TOGETHER``, are tried from micro-batches.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
import torch
from pydantic import BaseModel, ValidationError
from tiny_attention import merge, training_params
from tiny_choices import TinyChoices, own_rates
from tiny_engines import Elsewhere

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.objective.policy import PolicyLoss
from grpo_pipeline.pipelines.step import recipe
from grpo_pipeline.pipelines.training import loop as fold_module
from grpo_pipeline.pipelines.training.loop import StepRunner, quiet_nodes
from grpo_pipeline.pipelines.training.order import rows_of_step
from grpo_pipeline.pipelines.training.replayed_batches import plan_batch, remember
from grpo_pipeline.pipelines.training.start import build_state

TASK, BY_ENGINE, STEPS = TinyChoices(), Elsewhere(), 3
CLIPPED = ("ppo", "grpo", "dr_grpo", "dapo", "bnpo", "gspo", "luspo", "gmpo", "clip_cov")
TIMES = ("step_seconds", "samples_per_second", "peak_memory_mb")
TRAINING = own_rates(training_params(
    epochs=STEPS, batch_size=8, group_size=4, micro_batch_size=None, temperature={"start": 1.0}, gradient_report_every_steps=1000,
    optimizer={"learning_rate_schedule": {"start": 1.0}, "max_grad_norm": None},
), 0.3)  # fmt: skip
BASE: dict[str, Any] = {
    "losses": {
        "supervised": {"weight": 0.5}, "kl": {"weight": 0.1}, "value": {"weight": 0.1},
        "entropy": {"weight": 0.05},
        "policy": {
            "kind": "grpo", "weight": 1.0, "clip_low": 0.2, "clip_high": 0.02, "ratio_level": "decision",
            "reduction": "per_sequence",
        },
    },
    "update_epochs": 2, "advantage": {"method": "group", "std": "sample"},
}  # fmt: skip
CONTROL = {"losses": dict.fromkeys(("policy", "kl", "value", "entropy")), "update_epochs": 1}


def kind(name: str, **policy: Any) -> dict[str, Any]:
    """Return the patch of another kind of policy loss, without what BASE has and this kind does not know."""
    return {"losses": {"policy": ({} if name in CLIPPED else {"clip_low": None, "clip_high": None}) | {"kind": name} | policy}}


KINDS: dict[str, dict[str, Any]] = {
    "reinforce": merge(kind("reinforce"), {"update_epochs": 1}),
    "ppo": kind("ppo") | {"advantage": {"baseline": "value"}},
    "gspo": kind("gspo", ratio_level="sequence"),
    "cispo": kind("cispo", ratio_cap=1.02),
    "sapo": kind("sapo"),
    "dr_grpo": kind("dr_grpo", reduction="constant"),
    "dapo": kind("dapo", reduction="per_decision"),
    "bnpo": kind("bnpo", reduction="per_decision_local"),
    "luspo": kind("luspo", ratio_level="sequence", reduction="per_sequence_sum"),
    "gmpo": kind("gmpo", ratio_level="sequence"),
    "vespo": kind("vespo", ratio_level="joint"),
    "clip_cov": kind("clip_cov", cov_share=0.2, cov_low=0.0),
    "kl_cov": kind("kl_cov", cov_share=0.2),
}
BEST_OF_2 = {"advantage": {"method": "pass_at_k", "k": 2}}
STEERED = {"nats": 1.2, "learning_rate": 0.02, "minimum": 0.0, "maximum": 1.0}
REPLAYED = {"capacity": 8, "max_age_steps": 5, "share": 0.5, "importance_cap": 3.0}
MASKED = {"kind": "mask", "level": "decision", "cap": 1.2, "floor": 0.8}
CAPPED = {"correction": {"kind": "truncate", "level": "decision", "cap": 1.2}}


def in_reward(estimator: str = "k3") -> dict[str, Any]:
    """Return the patch that pays the KL in the reward."""
    return {"losses": {"kl": None}, "kl_in_reward": {"weight": 0.1, "estimator": estimator}}


@pytest.fixture(scope="module", autouse=True)
def nodes_arranged_once() -> Iterator[None]:
    """Thousands of loops of the same nodes: here nothing replaces one of them."""
    with pytest.MonkeyPatch.context() as patch:
        for table in ("collect", "learn", "move"):
            patch.setattr(recipe, table, cache(getattr(recipe, table)))
        patch.setattr(fold_module, "_peak_memory_mb", lambda device: 0.0)
        with quiet_nodes():
            yield


Settings = list[tuple[str, dict[str, Any], dict[str, Any]]]


@dataclass(frozen=True)
class Setting:
    """A value of an option that is not its default: the patch, and the patch with the default that it is compared with."""

    path: str
    label: str
    patch: dict[str, Any]
    default: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.path} = {self.label}"


def at(path: str, value: Any, **beside: Any) -> dict[str, Any]:
    """Return the nested patch of a dotted path, with further patches beside it."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return merge(beside, value)


def inside(section: str, whole: dict[str, Any], **values: Any) -> dict[str, Settings]:
    """Return settings inside of a section that is off by default: compared with the section as ``whole`` has it."""
    return {
        f"{section}.{key}": [(str(v), at(section, {**whole, key: v}), at(section, whole))] for key, v in values.items()
    }  # fmt: skip


def simple(path: str, *values: Any, **beside: Any) -> Settings:
    return [(str(value), at(path, value, **beside), beside) for value in values]


def refers(**reference: Any) -> dict[str, Any]:
    """Return the patch of the reference of the KL."""
    return at("losses.kl.reference", reference)


ONE_VALUE = {
    "losses.supervised": None, "losses.supervised.weight": 0.9, "losses.kl": None, "losses.kl.weight": 0.6,
    "losses.value": None, "losses.value.weight": 0.6,
    "losses.value.clip": 0.02, "losses.entropy": None, "losses.entropy.weight": 0.3, "losses.policy.clip_low": 0.02,
    "losses.policy.clip_high": 0.5, "losses.policy.delta": 1.03, "losses.policy.dual_clip": 1.05, "advantage.std": "population",
    "advantage.baseline": "value", "advantage.top_k_ratio": 0.75, "advantage.eps": 0.5,
    "advantage.clip": 0.7,
}  # fmt: skip
SETTINGS: dict[str, Settings] = {path: simple(path, value) for path, value in ONE_VALUE.items()} | {
    "losses.policy": [("null", CONTROL, {}), ("null alone", {"losses": {"policy": None}}, {})],
    "losses.policy.kind": [(name, patch, {}) for name, patch in KINDS.items()],
    "losses.policy.weight": simple("losses.policy.weight", 0.4, {"kind": "linear", "start": 1.0, "end": 0.0}),
    "losses.policy.ratio_level": simple("losses.policy.ratio_level", "joint", "sequence"),
    "losses.policy.reduction": simple(
        "losses.policy.reduction", "per_sequence_sum", "per_decision", "constant", "per_decision_local"
    ),
    "losses.policy.max_decisions": simple("losses.policy.max_decisions", 8, losses={"policy": {"reduction": "constant"}}),
    "losses.policy.cov_share": [
        *simple("losses.policy.cov_share", 0.5, **KINDS["clip_cov"]),
        *simple("losses.policy.cov_share", 0.5, **KINDS["kl_cov"]),
    ],
    "losses.policy.cov_low": simple("losses.policy.cov_low", 0.3, **KINDS["clip_cov"]),
    "losses.policy.cov_high": simple("losses.policy.cov_high", 0.1, **KINDS["clip_cov"]),
    "losses.policy.kl_weight": simple("losses.policy.kl_weight", 3.0, **KINDS["kl_cov"]),
    "losses.policy.top_entropy": simple("losses.policy.top_entropy", 0.5),
    "losses.policy.ratio_cap": simple("losses.policy.ratio_cap", 1.2, **KINDS["cispo"]),
    "losses.kl.estimator": simple("losses.kl.estimator", "k2", "k3", "ratio_k3"),
    "losses.kl.reference.update": [(each, refers(update=each), {}) for each in ("copy", "ema")],
    "losses.kl.reference.every_steps": simple("losses.kl.reference.every_steps", 2, **refers(update="copy")),
    "losses.kl.reference.decay": simple("losses.kl.reference.decay", 0.5, **refers(update="ema")),
    "losses.entropy.target": [("on", at("losses.entropy.target", STEERED), {})],
    **inside("losses.entropy.target", STEERED, nats=0.9, learning_rate=0.1, minimum=0.5, maximum=0.01),
    "update_epochs": simple("update_epochs", 1, 3),
    "target_kl": simple("target_kl", 1e-4),
    "advantage.method": [
        *simple("advantage.method", "leave_one_out", "mean_only", "batch", "per_reward", "reinforce_plus_plus", "opo"),
        ("pass_at_k", BEST_OF_2, {}),
        ("per_reward and kl_in_reward", at("advantage.method", "per_reward", **in_reward("k1")), in_reward("k1")),
    ],
    "advantage.k": [("3", merge(BEST_OF_2, {"advantage": {"k": 3}}), BEST_OF_2)],
    "advantage.credit": simple("advantage.credit", "leave_one_out", "marginal", "marginal_to_go", "to_go"),
    "kl_in_reward": [("on", in_reward(), {}), ("beside losses.kl", {"kl_in_reward": in_reward()["kl_in_reward"]}, {})],
    "kl_in_reward.weight": simple("kl_in_reward.weight", 0.6, **in_reward()),
    "kl_in_reward.estimator": simple("kl_in_reward.estimator", "k1", "k2", **in_reward()),
    "dynamic_sampling": [("on", {"dynamic_sampling": {"max_retries": 1}}, {})],
    **inside("dynamic_sampling", {"max_retries": 1}, max_retries=8),
    "replay": [("on", {"replay": REPLAYED}, {})],
    **inside("replay", REPLAYED, capacity=1, max_age_steps=1, share=0.25, importance_cap=1.0),
    "correction": [("on", CAPPED, {})],
    "correction.kind": [("mask", at("correction", CAPPED["correction"] | {"kind": "mask"}), CAPPED)],
    **inside("correction", MASKED, level="sequence", cap=1.05, floor=0.95),
    "proposal": simple("proposal", "oracle", "none"),
}
# Read before training begins, from a folder: test_reference.py and the end-to-end test of an arm with a path.
ELSEWHERE = {"losses.kl.reference.path"}
ALL = [Setting(path, *setting) for path, settings in SETTINGS.items() for setting in settings]


def members(annotation: Any) -> Iterator[Any]:
    """Yield the types of a union, tagged or not; of any other annotation itself."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from members(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for one in get_args(annotation):
            yield from members(one)
    else:
        yield annotation


def option_paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted path of every field, of each kind of a section; one that may be off is an option beside those inside."""
    for name, field in model.model_fields.items():
        choices = [*members(field.annotation)]
        sections = [choice for choice in choices if isinstance(choice, type) and issubclass(choice, BaseModel)]
        if not sections or type(None) in choices:
            yield prefix + name
        for section in sections:
            yield from option_paths(section, f"{prefix}{name}.")


@cache
def resolve(text: str) -> AlgorithmParams | str:
    """Return the parameters of BASE with a patch (JSON), or the sentence of the refusal."""
    try:
        return AlgorithmParams.model_validate(json.loads(text))
    except ValidationError as refused:
        first = refused.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def parameters(*patches: dict[str, Any]) -> AlgorithmParams | str:
    whole = dict(BASE)
    for patch in patches:
        whole = merge(whole, patch)
    return resolve(json.dumps(whole, sort_keys=True))


@cache
def _training(text: str) -> tuple[list[bytes], Iterator[bytes]]:
    """Return the weights after each step so far, and the training that goes on."""
    return [], _steps(AlgorithmParams.model_validate_json(text))


def task_of(algorithm: AlgorithmParams) -> TinyChoices:
    """Return the task: where samples are corrected, an engine draws them."""
    return TASK if algorithm.correction is None else BY_ENGINE


def _steps(algorithm: AlgorithmParams) -> Iterator[bytes]:
    task = task_of(algorithm)
    state, runner = build_state(algorithm, TRAINING, 0, task, None), StepRunner(task, algorithm, TRAINING)
    for step in range(STEPS):
        rows, replayed = plan_batch(algorithm, state, rows_of_step(TASK.rows(None, "train"), step, batch_size=8, seed=0))
        done = runner.run(state, TASK.make_batch(None, rows), replayed)
        remember(state, done.experience, rows, replayed)
        state = done.state
        yield b"".join(p.detach().numpy().tobytes() for p in state.policy.parameters())


def weights(algorithm: AlgorithmParams, steps: int) -> bytes:
    """Return the weights after so many steps, as bytes; no step is done twice, and none that nobody asks for."""
    found, going_on = _training(algorithm.model_dump_json())
    while len(found) < steps:
        found.append(next(going_on))
    return found[steps - 1]


def test_every_option_of_the_models_has_a_setting() -> None:
    assert set(option_paths(AlgorithmParams)) == SETTINGS.keys() | ELSEWHERE
    kinds = [name for model in members(PolicyLoss) for name in get_args(model.model_fields["kind"].annotation)]
    assert sorted(kinds) == sorted([*KINDS, "grpo"])


# A field of a section that the setting takes away, or one that the other kind of a section does not know or has otherwise.
SHAPE = (
    r": Field required$|^losses\.policy: Unable to extract tag using discriminator 'kind'$|"
    r"^(losses\.policy|losses\.kl\.reference)\.\w+\.\w+: (Extra inputs are not permitted$|Input should be ')"
)


@pytest.mark.parametrize("one", ALL, ids=str)
def test_a_setting_acts_or_is_refused_with_a_sentence(one: Setting) -> None:
    with_it, without = parameters(one.patch), parameters(one.default)
    assert isinstance(without, AlgorithmParams)
    if isinstance(with_it, str):
        assert re.search(rf": .*must .*[;:] |{SHAPE}", with_it, re.DOTALL)
        return
    assert any(weights(with_it, n) != weights(without, n) for n in range(1, STEPS + 1))


TOGETHER = {
    "joint": merge(kind("dr_grpo", reduction="constant", ratio_level="joint"), at("losses.kl.estimator", "k3")),
    "sequences": merge(KINDS["gspo"], at("losses.kl.estimator", "k3"))
    | {"dynamic_sampling": {"max_retries": 2}, "advantage": {"method": "batch"}},
    "held": merge(KINDS["kl_cov"], {"losses": {"policy": {"top_entropy": 0.5}}})
    | {"update_epochs": 3, "target_kl": 1e-3, "advantage": {"method": "opo", "clip": 0.5}, "replay": REPLAYED},
    "engine": CAPPED | {"dynamic_sampling": {"max_retries": 2}, "advantage": {"credit": "marginal"}},
    "turns": {"dynamic_sampling": {"max_retries": 2}, "replay": REPLAYED, "advantage": {"credit": "to_go"}},
    "values": merge(KINDS["ppo"], {"losses": {"kl": {"estimator": "ratio_k3"}, "value": {"clip": 0.02}}}),
}
ALONE = {str(one): one.patch for one in ALL if not isinstance(parameters(one.patch), str) and "local" not in str(one.patch)}


@pytest.mark.parametrize("patch", (ALONE | TOGETHER).values(), ids=(ALONE | TOGETHER).keys())
def test_every_setting_gives_the_same_steps_from_micro_batches(patch: dict[str, Any]) -> None:
    """Weights and metrics of eight prompts by threes. Plain steps without clipping: Adam divides by small gradients."""
    algorithm, found = parameters(patch), []
    task = task_of(algorithm)
    for size in (None, 3):
        training = TRAINING.model_copy(update={"micro_batch_size": size, "gradient_report_every_steps": 2})
        state = build_state(algorithm, training, 0, task, None)
        state = replace(state, optimizer=torch.optim.SGD(state.policy.parameters(), lr=0.5))
        metrics = []
        for step in range(STEPS):
            rows, replayed = plan_batch(algorithm, state, rows_of_step(TASK.rows(None, "train"), step, batch_size=8, seed=0))
            done = StepRunner(task, algorithm, training).run(state, TASK.make_batch(None, rows), replayed)
            remember(state, done.experience, rows, replayed)
            state = done.state
            metrics.append({name: value for name, value in done.metrics.items() if name not in TIMES})
        found.append(([p.detach() for p in state.policy.parameters()], metrics))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=0, atol=1e-10)
    for whole, pieces in zip(found[0][1], found[1][1], strict=True):
        assert pieces == pytest.approx(whole, rel=1e-6, abs=1e-9, nan_ok=True)
