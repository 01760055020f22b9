"""Every pair of algorithm options, through the loop itself: each changes the trained weights, is refused, or is listed below.

The options are those of the pydantic models: a new one has no settings here and fails the first test. A setting is a patch and
the patch of its default. "A acts under B" = one of three steps from one start ends at other weights with A beside B than with A's
default beside B, to the bit. Where a setting does not act, exactly one rule of ``SILENT`` has to say why, and the
rules are held to it from the other side: where one applies, the weights have to be the same.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Any, get_args

import pytest
import torch
from pydantic import BaseModel, ValidationError
from tiny_attention import merge, training_params
from tiny_choices import TinyChoices, own_rates

from grpo_pipeline.core.params import AlgorithmName, AlgorithmParams, is_on
from grpo_pipeline.core.policy_gradient.algorithms import CLIPPED
from grpo_pipeline.core.schedules import Schedule
from grpo_pipeline.pipelines.step import recipe
from grpo_pipeline.pipelines.training import loop as fold_module
from grpo_pipeline.pipelines.training.loop import StepRunner, quiet_nodes
from grpo_pipeline.pipelines.training.order import rows_of_step
from grpo_pipeline.pipelines.training.replayed_batches import plan_batch, remember
from grpo_pipeline.pipelines.training.start import build_state

TASK, STEPS = TinyChoices(), 3
TIMES = ("step_seconds", "samples_per_second", "peak_memory_mb")
TRAINING = own_rates(training_params(
    epochs=STEPS, batch_size=8, group_size=4, micro_batch_size=None, temperature={"start": 1.0}, gradient_report_every_steps=1000,
    optimizer={"learning_rate_schedule": {"start": 1.0}, "max_grad_norm": None},
), 0.3)  # fmt: skip
BASE: dict[str, Any] = {
    "name": "grpo", "supervised_weight": 0.5, "policy_weight": 1.0, "kl_weight": 0.1, "value_weight": 0.1, "entropy_weight": 0.05,
    "rollout_kl_weight": 0.05, "update_epochs": 2, "advantage": {"method": "group", "std": "sample"},
    "policy_loss": {"clip_low": 0.2, "clip_high": 0.02, "ratio_level": "decision", "reduction": "per_sequence"},
}  # fmt: skip
OFF = {f"{name}_weight": 0.0 for name in ("policy", "kl", "value", "entropy", "rollout_kl")}
CONTROL = {**OFF, "name": "supervised", "supervised_weight": 1.0, "update_epochs": 1, "policy_loss": None}
NAMES: dict[str, dict[str, Any]] = {
    "supervised": CONTROL,
    "reinforce": {"update_epochs": 1, "rollout_kl_weight": 0.0},
    "ppo": {"advantage": {"baseline": "value"}},
    "gspo": {"policy_loss": {"ratio_level": "sequence"}},
    "cispo": {"policy_loss": {"ratio_cap": 1.02}},
    "sapo": {},
    "dr_grpo": {"policy_loss": {"reduction": "constant"}},
    "dapo": {"policy_loss": {"reduction": "per_decision"}},
    "bnpo": {"policy_loss": {"reduction": "per_decision_local"}},
}
STEERED = {"target": 1.2, "learning_rate": 0.02, "minimum": 0.0, "maximum": 1.0}
REPLAYED = {"capacity": 8, "max_age_steps": 5, "share": 0.5, "importance_cap": 3.0}


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
    return {f"{section}.{key}": [(str(v), {section: {**whole, key: v}}, {section: whole})] for key, v in values.items()}


def simple(path: str, *values: Any, **beside: Any) -> Settings:
    return [(str(value), at(path, value, **beside), beside) for value in values]


ONE_VALUE = {
    "supervised_weight": 0.9, "value_weight": 0.6, "entropy_weight": 0.3, "rollout_kl_weight": 0.5, "value_clip": 0.02,
    "advantage.std": "population", "advantage.baseline": "value", "advantage.top_k_ratio": 0.75, "advantage.eps": 0.5,
    "advantage.tie_tolerance": 0.3, "policy_loss.clip_low": 0.02, "policy_loss.clip_high": 0.5, "policy_loss.delta": 1.03,
    "policy_loss.dual_clip": 1.05, "policy_loss.ratio_cap": 1.2, "policy_loss.tau_positive": 2.0, "policy_loss.tau_negative": 2.0,
}  # fmt: skip
SETTINGS: dict[str, Settings] = {path: simple(path, value) for path, value in ONE_VALUE.items()} | {
    "name": [(name, {"name": name, **patch}, {}) for name, patch in NAMES.items()],
    "policy_weight": simple("policy_weight", 0.4, {"kind": "linear", "start": 1.0, "end": 0.0}),
    "kl_weight": simple("kl_weight", 0.6, 0.0),
    "update_epochs": [*simple("update_epochs", 1, rollout_kl_weight=0.0), *simple("update_epochs", 3)],
    "advantage.method": [
        *simple("advantage.method", "leave_one_out", "mean_only", "batch", "per_reward"),
        *simple("advantage.method", "per_reward", kl_placement="reward", kl_estimator="k1"),
    ],
    "advantage.credit": simple("advantage.credit", "leave_one_out", "marginal", "marginal_to_go"),
    "policy_loss": [("null", {"policy_loss": None}, {})],
    "policy_loss.ratio_level": simple("policy_loss.ratio_level", "joint", "sequence"),
    "policy_loss.reduction": simple("policy_loss.reduction", "per_decision", "constant", "per_decision_local"),
    "policy_loss.max_decisions": simple("policy_loss.max_decisions", 8, policy_loss={"reduction": "constant"}),
    "kl_placement": simple("kl_placement", "reward", kl_estimator="k3"),
    "kl_estimator": [*simple("kl_estimator", "k2", "k3", "ratio_k3"), *simple("kl_estimator", "k1", kl_placement="reward")],
    "reference.update": simple("reference.update", "copy", "ema"),
    "reference.every_steps": simple("reference.every_steps", 2, reference={"update": "copy"}),
    "reference.decay": simple("reference.decay", 0.5, reference={"update": "ema"}),
    "entropy_target": [("on", {"entropy_target": STEERED}, {})],
    **inside("entropy_target", STEERED, target=0.9, learning_rate=0.1, minimum=0.5, maximum=0.01),
    "dynamic_sampling": [("on", {"dynamic_sampling": {"max_retries": 1}}, {})],
    **inside("dynamic_sampling", {"max_retries": 1}, max_retries=8),
    "replay": [("on", {"replay": REPLAYED}, {})],
    **inside("replay", REPLAYED, capacity=1, max_age_steps=1, share=0.25, importance_cap=1.0),
    "proposal": simple("proposal", "oracle", "none"),
}
# Read before training begins, from a folder: test_reference.py and the end-to-end test of an arm with a path.
ELSEWHERE = {"reference.path"}
ALL = [Setting(path, *setting) for path, settings in SETTINGS.items() for setting in settings]


def option_paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted path of every field; a section that may be off is an option beside those inside of it."""
    for name, field in model.model_fields.items():
        choices = (field.annotation, *get_args(field.annotation))
        section = next((c for c in choices if isinstance(c, type) and issubclass(c, BaseModel) and c is not Schedule), None)
        if section is None or type(None) in choices:
            yield prefix + name
        if section is not None:
            yield from option_paths(section, f"{prefix}{name}.")


@dataclass(frozen=True)
class Rule:
    """Settings of these options cannot act where ``when`` holds of the parameters with and without it, for the reason given."""

    paths: tuple[str, ...]
    why: str
    when: Callable[[AlgorithmParams, AlgorithmParams], bool]


def each(condition: Callable[[AlgorithmParams], bool]) -> Callable[[AlgorithmParams, AlgorithmParams], bool]:
    return lambda with_it, without: condition(with_it) and condition(without)


def meaning(p: AlgorithmParams) -> dict[str, Any]:
    """Return the parameters with a name's surrogate in the place of the name, and without what it does not read.

    In one piece ``per_decision_local`` is ``per_decision``. With one update per batch every ratio is 1: no bound is met,
    and clipped surrogates, cispo and reinforce have one gradient.
    """
    found = p.model_dump()
    loss = found["policy_loss"]
    loss["reduction"] = loss["reduction"].removesuffix("_local")
    is_clipped, is_on_policy = p.name in CLIPPED, p.update_epochs == 1
    found["name"] = "clipped" if is_clipped or (is_on_policy and p.name in ("reinforce", "cispo")) else p.name
    if is_on_policy and found["name"] == "clipped":
        found["policy_loss"] = {name: value for name, value in loss.items() if f"policy_loss.{name}" not in BOUNDS}
    return found


CLIPS = ("policy_loss.clip_low", "policy_loss.clip_high")
BOUNDS = (*CLIPS, *(f"policy_loss.{name}" for name in ("delta", "dual_clip", "ratio_cap", "tau_positive", "tau_negative")))
REFERENCE = ("kl_placement", "kl_estimator", "reference.update", "reference.every_steps", "reference.decay")
OF_THE_POLICY = tuple(path for path in SETTINGS if path.startswith("advantage."))
SILENT = [
    Rule(
        ("name", "policy_loss.reduction", *BOUNDS),
        "a name for the surrogate and the reduction that are there anyway, or a bound that no ratio meets: see meaning",
        lambda a, b: "supervised" not in (a.name, b.name) and meaning(a) == meaning(b),
    ),
    Rule((*OF_THE_POLICY, *REFERENCE), "the control has no policy loss: its samples are drawn and compared for the record",
         each(lambda p: p.name == "supervised")),
    Rule(CLIPS, "this surrogate has no clip; arms share the section", each(lambda p: p.name in ("reinforce", "cispo", "sapo"))),
    Rule(REFERENCE, "no KL is paid", each(lambda p: p.name != "supervised" and not is_on(p.kl_weight))),
    Rule(("advantage.std", "advantage.eps"), "this method divides by no deviation",
         each(lambda p: p.name != "supervised" and p.advantage.method in ("leave_one_out", "mean_only"))),
]  # fmt: skip


@cache
def resolve(text: str) -> AlgorithmParams | str:
    """Return the parameters of BASE with a patch (JSON), or the sentence of the refusal."""
    try:
        return AlgorithmParams.model_validate(json.loads(text))
    except ValidationError as refused:
        return str(refused.errors()[0]["msg"])


def parameters(*patches: dict[str, Any]) -> AlgorithmParams | str:
    whole = dict(BASE)
    for patch in patches:
        whole = merge(whole, patch)
    return resolve(json.dumps(whole, sort_keys=True))


@cache
def _training(text: str) -> tuple[list[bytes], Iterator[bytes]]:
    """Return the weights after each step so far, and the training that goes on."""
    return [], _steps(AlgorithmParams.model_validate_json(text))


def _steps(algorithm: AlgorithmParams) -> Iterator[bytes]:
    state, runner = build_state(algorithm, TRAINING, 0, TASK, None), StepRunner(TASK, algorithm, TRAINING)
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
    assert {name for name, *_ in SETTINGS["name"]} | {"grpo"} == set(get_args(AlgorithmName))


@pytest.mark.slow
def test_every_pair_of_settings_acts_is_refused_or_is_listed() -> None:
    problems, acted, silent, refusals = [], 0, 0, set()
    for first, second in combinations([None, *ALL], 2):
        for one, other in ((second, first), (first, second)):
            if one is None or (other is not None and one.path == other.path):
                continue
            beside = {} if other is None else other.patch
            with_it, without = parameters(beside, one.patch), parameters(beside, one.default)
            if isinstance(with_it, str):
                refusals.add(with_it)
                continue
            if isinstance(without, str) or with_it == without:
                continue
            same = all(weights(with_it, n) == weights(without, n) for n in range(1, STEPS + 1))
            rules = [rule for rule in SILENT if one.path in rule.paths and rule.when(with_it, without)]
            acted, silent = acted + (not same), silent + same
            if same != bool(rules):
                problems.append(f"{one} beside {other}: {'silent without a reason' if same else f'acts, but: {rules[0].why}'}")
    assert not problems, "\n".join(problems)
    assert min(acted, silent, len(refusals)) > 20  # none of the three ways out is taken by all
    # "Field required": a field of a section that the other setting takes away.
    odd = [sentence for sentence in refusals if not re.search(r"must .*[;:] |^Field required$", sentence, re.DOTALL)]
    assert not odd


TOGETHER = {
    "joint": {"name": "dr_grpo", "policy_loss": {"reduction": "constant", "ratio_level": "joint"}, "kl_estimator": "k3"},
    "sequences": NAMES["gspo"]
    | {"name": "gspo"}
    | {"kl_estimator": "k3", "dynamic_sampling": {"max_retries": 2}, "advantage": {"method": "batch"}},
    "values": NAMES["ppo"] | {"name": "ppo"} | {"kl_estimator": "ratio_k3", "value_clip": 0.02},
}
ALONE = {str(one): one.patch for one in ALL if not isinstance(parameters(one.patch), str) and "local" not in str(one.patch)}


@pytest.mark.parametrize("patch", (ALONE | TOGETHER).values(), ids=(ALONE | TOGETHER).keys())
def test_every_setting_gives_the_same_steps_from_micro_batches(patch: dict[str, Any]) -> None:
    """Weights and metrics of eight prompts by threes. Plain steps without clipping: Adam divides by small gradients."""
    algorithm, found = parameters(patch), []
    for size in (None, 3):
        training = TRAINING.model_copy(update={"micro_batch_size": size, "gradient_report_every_steps": 2})
        state = build_state(algorithm, training, 0, TASK, None)
        state = replace(state, optimizer=torch.optim.SGD(state.policy.parameters(), lr=0.5))
        metrics = []
        for step in range(STEPS):
            rows, replayed = plan_batch(algorithm, state, rows_of_step(TASK.rows(None, "train"), step, batch_size=8, seed=0))
            done = StepRunner(TASK, algorithm, training).run(state, TASK.make_batch(None, rows), replayed)
            remember(state, done.experience, rows, replayed)
            state = done.state
            metrics.append({name: value for name, value in done.metrics.items() if name not in TIMES})
        found.append(([p.detach() for p in state.policy.parameters()], metrics))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=0, atol=1e-10)
    for whole, pieces in zip(found[0][1], found[1][1], strict=True):
        assert pieces == pytest.approx(whole, rel=1e-6, abs=1e-9, nan_ok=True)
