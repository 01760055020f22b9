"""Training with nothing at its default ends at the weights of plain loops over prompts, samples and decisions, in float64.

The loops share no formula with the package: they read which rows and actions were drawn, and do the rest by hand.
"""

import math
import statistics
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest
import torch
from tiny_attention import merge, section
from tiny_choices import CHOICES, LENGTH, WIDTH, ChoicePolicy, TinyChoices
from torch import Tensor

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.storage.checkpoint import NoCheckpoint
from grpo_pipeline.pipelines.training import nodes
from grpo_pipeline.pipelines.training.start import build_state

SEED, STEPS, PROMPTS, GROUP, BETAS = 7, 6, 5, 3, (0.9, 0.999)
PARTS = {"hits": 1.3, "small": 4.0}
RATES = {"encoder": 0.03, "head": 0.07}
GROUPS = {"encoder": ("embedding",), "head": ("head", "value", "chosen")}


def line(start: float, end: float, **more: Any) -> dict[str, Any]:
    return {"kind": "linear", "start": start, "end": end, **more}


@dataclass
class Uneven(TinyChoices):
    """Prompts of unequal weight, samples that nobody scored; notes what was asked for."""

    seen: list[dict[str, Any]] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)

    def make_batch(self, data: Any, rows: np.ndarray, *, generator: Any = None) -> Any:
        self.seen.append({"rows": rows.tolist()})
        return super().make_batch(data, rows, generator=generator)

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        self.seeds.append(kwargs["generator"].initial_seed())
        drawn = super().sample(*args, **kwargs)
        self.seen[-1] |= {"temperature": kwargs["temperature"], "drawn": drawn.actions.clone()}
        return drawn

    def pay(self, batch: Any, rollouts: Any) -> Any:
        parts, _ = super().pay(batch, rollouts)
        first = rollouts.actions[..., 0]
        is_lost = (first == 1) | ((batch.rows == 6)[:, None] & (first != 3))  # of row 6 nearly all, often all of the group
        return {name: part.masked_fill(is_lost, math.nan) for name, part in parts.items()}, PARTS

    def reward(self, batch: Any, rollouts: Any, outcomes: Any) -> Any:
        self.seen[-1] |= {"actions": rollouts.actions.clone(), "is_valid": rollouts.is_valid.clone(), "of_subsets": []}
        self.seen[-1]["parts"] = self.pay(batch, rollouts)[0]
        return self.seen[-1]["parts"], PARTS

    def subset_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        found = super().subset_rewards(*args, **kwargs)
        self.seen[-1]["of_subsets"] += found.tolist()  # by micro-batches
        return found

    def prompt_weights(self, batch: Any) -> Tensor:
        return 0.5 + 0.25 * batch.rows.double()

    def fingerprint(self, data: Any, *, draws: bool = True) -> dict[str, Any]:
        return {}

    def validate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        return {}


BASE: dict[str, Any] = {
    "losses": {
        "supervised": {"weight": line(0.9, 0.2)},
        "policy": {
            "kind": "grpo", "weight": line(0.7, 1.6, warmup_steps=2), "clip_low": 0.02, "clip_high": 0.05,
            "ratio_level": "decision", "reduction": "per_sequence",
        },
        "kl": {
            "weight": line(0.3, 0.8), "estimator": "k3", "reference": {"update": "ema", "every_steps": 2, "decay": 0.6},
        },
        "value": {"weight": line(0.5, 0.1), "clip": 0.01},
        "entropy": {"weight": line(0.05, 0.2)},
    },
    "update_epochs": 2, "advantage": {"method": "group", "std": "population", "eps": 0.03},
    "replay": {"capacity": 6, "max_age_steps": 2, "share": 0.5, "importance_cap": 1.1},
}  # fmt: skip
ARMS: dict[str, dict[str, Any]] = {
    "decisions": {},
    "sequences": {
        "losses": {
            "policy": {"kind": "gspo", "ratio_level": "sequence"}, "kl": None,
            "entropy": {"target": {"nats": 1.2, "learning_rate": 0.05, "minimum": 0.01, "maximum": 0.3}},
        },
        "kl_in_reward": {"weight": line(0.3, 0.8), "estimator": "k1"},
        "advantage": {"method": "batch", "std": "population", "eps": 0.03},
    },
    "counted": {
        "losses": {
            "policy": {"kind": "dapo", "reduction": "per_decision"},
            "kl": {"estimator": "k2", "reference": {"update": "frozen", "every_steps": None, "decay": None}},
            "value": {"clip": None},
        },
        "advantage": {"method": "leave_one_out"},
    },
    "constant": {
        "losses": {
            "policy": {"kind": "dr_grpo", "reduction": "constant", "max_decisions": 4}, "kl": {"estimator": "exact"},
        },
        "advantage": {"method": "mean_only", "baseline": "value"},
    },
    "credited": {"advantage": {"credit": "marginal"}, "losses": {"policy": {"reduction": "per_decision"}}},
}  # fmt: skip
LOOPS: dict[str, dict[str, Any]] = {
    "micro_batches": {"micro_batch_size": 2, "encoder_refresh": "every_epoch"},
    "whole": {"micro_batch_size": None, "encoder_refresh": "once", "optimizer": {"clip": "joint"}},
}


def algorithm_of(arm: str) -> AlgorithmParams:
    return AlgorithmParams.model_validate(merge(BASE, ARMS[arm]))


def training_of(loop: str) -> TrainingParams:
    fixed = {
        "epochs": STEPS, "batch_size": PROMPTS, "group_size": GROUP, "temperature": line(1.6, 0.7),
        "optimizer": {
            "learning_rates": RATES, "weight_decay": 0.3, "max_grad_norm": 0.2, "clip": "per_group",
            "learning_rate_schedule": {"kind": "cosine", "start": 1.0, "end": 0.1, "warmup_steps": 1},
        },
        "gradient_report_every_steps": 2, "validate_every_epochs": 100, "checkpoint_every_steps": 100, "log_every_steps": 1,
    }  # fmt: skip
    whole = merge(section("training"), merge(fixed, LOOPS[loop]))
    whole["optimizer"]["learning_rates"] = RATES  # those of this task alone
    return TrainingParams.model_validate(whole)


def trained(arm: str, loop: str, seed: int = SEED) -> tuple[Uneven, ChoicePolicy, list[dict[str, Any]]]:
    task, algorithm, training = Uneven(), algorithm_of(arm), training_of(loop)
    state = build_state(algorithm, training, seed, task, None)
    done = nodes.train(algorithm, training, "never", task, None, state, NoCheckpoint("nowhere"), {})
    rows = [row for rows, _ in done for row in rows if row["split"] == "train"]
    return task, state.policy, rows


def scheduled(schedule: dict[str, Any], step: int) -> float:
    warm = schedule.get("warmup_steps", 0)
    if step < warm:
        return schedule["start"] * (step + 1) / (warm + 1)
    share = min(1.0, (step - warm) / (STEPS - 1 - warm))
    if schedule["kind"] == "cosine":
        share = (1 - math.cos(math.pi * share)) / 2
    return schedule["start"] + share * (schedule["end"] - schedule["start"])


def log_softmax(logits: list[Tensor]) -> list[Tensor]:
    highest = max(float(x.detach()) for x in logits)
    total = sum((x - highest).exp() for x in logits)
    return [x - highest - total.log() for x in logits]


def clamp(x: Tensor, low: float, high: float) -> Tensor:
    """Outside of the bounds the gradient is 0 and not absent: Adam's momentum goes on."""
    return 0 * x + low if float(x) < low else 0 * x + high if float(x) > high else x


def spread_of(rewards: list[list[float]]) -> float:
    """Return the mean over prompts of the standard deviation (n - 1) of the samples that were scored."""
    known = [[r for r in group if not math.isnan(r)] for group in rewards]
    return sum(statistics.stdev(group) if len(group) > 1 else 0.0 for group in known) / len(known)


@dataclass
class Stored:
    row: int
    actions: list[list[int]]
    logprobs: list[list[float]]
    step: int
    signal: float


class PlainLoop:
    """The same run as nothing but loops."""

    def __init__(self, arm: str, loop: str) -> None:
        self.p, self.t = merge(BASE, ARMS[arm]), merge(training_of(loop).model_dump(), {})
        self.losses, self.in_reward = self.p["losses"], self.p.get("kl_in_reward")
        policy = ChoicePolicy(SEED)
        self.w = {name: p.detach().clone().requires_grad_() for name, p in policy.named_parameters()}
        self.reference = {name: p.detach().clone() for name, p in self.w.items()}
        self.moments = {name: [torch.zeros_like(p), torch.zeros_like(p), 0] for name, p in self.w.items()}
        self.stored: list[Stored] = []
        self.alpha: float | None = None
        self.metrics: list[dict[str, float]] = []

    def features(self, row: int, w: dict[str, Tensor]) -> list[Tensor]:
        return [w["embedding"][row, i] for i in range(WIDTH)]

    def choices(self, features: list[Tensor], w: dict[str, Tensor]) -> list[Tensor]:
        return log_softmax([sum(features[i] * w["head"][i, v] for i in range(WIDTH)) / self.temperature for v in range(CHOICES)])

    def value(self, features: list[Tensor]) -> Tensor:
        return sum(features[i] * self.w["value"][i] for i in range(WIDTH))

    def logprobs(self, row: int, actions: list[list[int]], w: dict[str, Tensor]) -> list[list[float]]:
        found = [float(x) for x in self.choices(self.features(row, w), w)]
        return [[found[a] for a in sample] for sample in actions]

    def step(self, number: int, seen: dict[str, Any]) -> None:
        self.number, self.temperature = number, scheduled(line(1.6, 0.7), number)
        rows, valid = seen["rows"], seen["is_valid"].tolist()
        actions = [
            [[a for a, is_valid in zip(sample, mask, strict=True) if is_valid] for sample, mask in zip(group, masks, strict=True)]
            for group, masks in zip(seen["actions"].tolist(), valid, strict=True)
        ]
        assert seen["temperature"] == pytest.approx(self.temperature, abs=1e-15)
        importance = self.replayed(rows, actions, seen)
        old = [self.logprobs(row, group, self.w) for row, group in zip(rows, actions, strict=True)]
        ref = [self.logprobs(row, group, self.reference) for row, group in zip(rows, actions, strict=True)]
        values = [float(self.value(self.features(row, self.w))) for row in rows]
        rewards = [[sum(PARTS[name] * float(part[p, g]) for name, part in seen["parts"].items()) for g in range(GROUP)]
                   for p in range(PROMPTS)]  # fmt: skip
        if self.in_reward is not None:
            weight = scheduled(self.in_reward["weight"], number)
            for p in range(PROMPTS):
                for g in range(GROUP):
                    rewards[p][g] -= weight * sum(o - r for o, r in zip(old[p][g], ref[p][g], strict=True))
        if self.p["advantage"].get("credit"):
            advantages = self.of_decisions(rewards, rows, actions, seen["of_subsets"])
        else:
            advantages = [[[a] * LENGTH for a in group] for group in self.advantages(rewards, rows, values)]
        taught = [sum(abs(a) for sample in group for a in sample) / GROUP / LENGTH for group in advantages]
        frozen = [[x.detach() for x in self.features(row, self.w)] for row in rows]
        collected = []
        for epoch in range(self.p["update_epochs"]):
            again = epoch == 0 or self.t["encoder_refresh"] == "every_epoch"
            features = [self.features(row, self.w) for row in rows] if again else frozen
            weighed = [[[a * importance[p][g] for a in sample] for g, sample in enumerate(group)]
                       for p, group in enumerate(advantages)]  # fmt: skip
            terms = self.terms(epoch, rows, features, actions, seen, old, ref, values, rewards, weighed)
            self.update(self.gradient(self.weights(terms), terms))
            collected.append({name: float(term) for name, term in terms.items()})
        entropy = -collected[-1]["entropy"]
        if (target := self.losses["entropy"].get("target")) is not None:
            moved = self.weights(terms)["entropy"] + target["learning_rate"] * (target["nats"] - entropy)
            self.alpha = min(target["maximum"], max(target["minimum"], moved))
        self.move_reference()
        self.remember(rows, actions, old, taught, fresh=PROMPTS - self.n_replayed)
        found = {name: [one[name] for one in collected if name in one] for name in collected[0]}
        self.metrics.append({name: sum(values) / len(values) for name, values in found.items()})
        self.metrics[-1] |= {"reward": np.nanmean(rewards), "spread": spread_of(rewards), "epochs": len(collected)}
        if self.ages:
            self.metrics[-1] |= {"age": np.mean(self.ages), "importance": np.mean(importance[-len(self.ages) :])}

    def replayed(self, rows: list[int], actions: list[Any], seen: dict[str, Any]) -> list[list[float]]:
        """Say how likely each sample is now beside when it was drawn; the last prompts are those that are replayed."""
        self.stored = [one for one in self.stored if self.number - one.step <= self.p["replay"]["max_age_steps"]]
        self.n_replayed = min(int(self.p["replay"]["share"] * PROMPTS), len(self.stored))
        importance = [[1.0] * GROUP for _ in range(PROMPTS)]
        left, self.ages = list(self.stored), []
        for p in range(PROMPTS):
            if p < PROMPTS - self.n_replayed:
                assert torch.equal(seen["drawn"][p], seen["actions"][p])
                continue
            one = next(one for one in left if one.row == rows[p] and one.actions == actions[p])
            left.remove(one)
            self.ages.append(self.number - one.step)
            now = self.logprobs(rows[p], actions[p], self.w)
            for g in range(GROUP):
                moved = math.exp(sum(now[g]) - sum(one.logprobs[g]))
                importance[p][g] = min(self.p["replay"]["importance_cap"], moved)
        return importance

    def advantages(self, rewards: list[list[float]], rows: list[int], values: list[float]) -> list[list[float]]:
        method, eps = self.p["advantage"]["method"], self.p["advantage"].get("eps")
        everything = [r for group in rewards for r in group if not math.isnan(r)]
        found = []
        for row, group, value in zip_longest(rows, rewards, values):
            if self.p["advantage"].get("baseline") == "value":
                found.append([0.0 if math.isnan(r) else (0.5 + 0.25 * row) * (r - value) for r in group])
                continue
            known = [r for r in group if not math.isnan(r)]
            out = []
            for r in group:
                if math.isnan(r) or len(known) < 2 or max(known) - min(known) < 1e-7:
                    out.append(0.0)
                    continue
                mean = sum(known) / len(known)
                if method == "leave_one_out":
                    a = r - (sum(known) - r) / (len(known) - 1)
                else:
                    scope = known if method == "group" else everything
                    middle = sum(scope) / len(scope)
                    a = (r - mean) / (math.sqrt(sum((x - middle) ** 2 for x in scope) / len(scope)) + eps)
                out.append((0.5 + 0.25 * row) * a)
            found.append(out)
        return found

    def of_decisions(self, rewards: Any, rows: Any, actions: Any, of_subsets: Any) -> list[list[list[float]]]:
        """Compare what each decision has added to the reward; one that was not taken has added nothing."""
        found = [[[0.0] * LENGTH for _ in range(GROUP)] for _ in range(PROMPTS)]
        for d in range(LENGTH):
            added = [[0.0] * GROUP for _ in range(PROMPTS)]
            for p in range(PROMPTS):
                for g in range(GROUP):
                    first = [*of_subsets[p][g], rewards[p][g]]  # what the first 0, 1, ... decisions earn
                    taken = d < len(actions[p][g])
                    added[p][g] = math.nan if math.isnan(rewards[p][g]) else first[d + 1] - first[d] if taken else 0.0
            for p, group in enumerate(self.advantages(added, rows, [])):
                for g, a in enumerate(group):
                    found[p][g][d] = a if d < len(actions[p][g]) else 0.0
        return found

    def terms(
        self, epoch: int, rows: Any, features: Any, actions: Any, seen: Any, old: Any, ref: Any, values: Any, rewards: Any, a: Any
    ) -> dict[str, Tensor]:
        loss, kl, value_clip = self.losses["policy"], self.losses["kl"], self.losses["value"]["clip"]
        terms = {name: torch.zeros((), dtype=torch.float64) for name in ("policy", "entropy", "value")}
        if kl is not None:
            terms["kl"] = torch.zeros((), dtype=torch.float64)
        decisions = sum(len(sample) for group in actions for sample in group)
        scored = sum(not all(math.isnan(r) for r in group) for group in rewards)
        for p in range(PROMPTS):
            log_p = self.choices(features[p], self.w)
            terms["entropy"] = terms["entropy"] + sum(x.exp() * x for x in log_p) / PROMPTS
            if exact := kl is not None and kl["estimator"] == "exact":
                before = [x.detach() for x in self.choices(self.features(rows[p], self.reference), self.reference)]
                terms["kl"] = terms["kl"] + sum(x.exp() * (x - y) for x, y in zip(log_p, before, strict=True)) / PROMPTS
            known = [r for r in rewards[p] if not math.isnan(r)]
            if known:
                v, target = self.value(features[p]), sum(known) / len(known)
                error = (v - target) ** 2
                if value_clip is not None:
                    held = values[p] + clamp(v - values[p], -value_clip, value_clip)
                    error = max(error, (held - target) ** 2, key=float)
                terms["value"] = terms["value"] + 0.5 * error / scored
            for g in range(GROUP):
                length = len(actions[p][g])
                over = {"per_sequence": PROMPTS * GROUP * length, "per_decision": decisions, "constant": PROMPTS * GROUP * 4}
                share = 1 / over[loss["reduction"]]
                moved = [log_p[action] - before for action, before in zip(actions[p][g], old[p][g], strict=True)]
                for d in range(length):
                    x = sum(moved) / length if loss["ratio_level"] == "sequence" else moved[d]
                    ratio = x.exp()
                    clipped = clamp(ratio, 1 - loss["clip_low"], 1 + loss["clip_high"])
                    terms["policy"] = terms["policy"] - share * min(ratio * a[p][g][d], clipped * a[p][g][d], key=float)
                    if kl is not None and not exact:
                        away = ref[p][g][d] - log_p[actions[p][g][d]]
                        distance = away**2 / 2 if kl["estimator"] == "k2" else away.exp() - 1 - away
                        terms["kl"] = terms["kl"] + share * distance
        if epoch == 0:
            terms["supervised"] = self.supervised(rows, features, seen)
        return terms

    def supervised(self, rows: Any, features: Any, seen: Any) -> Tensor:
        loss = torch.zeros((), dtype=torch.float64)
        for p in range(PROMPTS):
            padded = seen["actions"][p].tolist()  # a place that was not reached holds CHOICES, which has a row of its own
            chosen = [sum(self.w["chosen"][c, i] for sample in padded for c in sample) / GROUP for i in range(WIDTH)]
            logit = sum(features[p][i] * (1 + chosen[i]) for i in range(WIDTH))
            sign = 1 if rows[p] % 2 else -1
            loss = loss + torch.log(1 + torch.exp(-sign * logit)) / PROMPTS
        return loss

    def weights(self, terms: dict[str, Tensor]) -> dict[str, float]:
        found = {name: scheduled(self.losses[name]["weight"], self.number) for name in terms}
        return found if self.alpha is None else found | {"entropy": self.alpha}

    def gradient(self, weights: dict[str, float], terms: dict[str, Tensor]) -> dict[str, Tensor | None]:
        """Differentiate the weighted sum of the terms; a term of weight 0 leaves the graph."""
        loss = sum(weights[name] * term for name, term in terms.items() if weights[name])
        found = torch.autograd.grad(loss, list(self.w.values()), allow_unused=True)
        return dict(zip(self.w, found, strict=True))

    def update(self, gradients: dict[str, Any]) -> None:
        """Clip and step with decoupled decay; what got no gradient does not move at all."""
        options = self.t["optimizer"]
        scale = scheduled({"kind": "cosine", "start": 1.0, "end": 0.1, "warmup_steps": 1}, self.number)
        norms = {group: math.sqrt(sum(float((gradients[n] ** 2).sum()) for n in names if gradients[n] is not None))
                 for group, names in GROUPS.items()}  # fmt: skip
        for group, names in GROUPS.items():
            norm = math.sqrt(sum(n**2 for n in norms.values())) if options["clip"] == "joint" else norms[group]
            shrink = min(1.0, options["max_grad_norm"] / (norm + 1e-6))  # as torch's clip_grad_norm_ does
            shrink = shrink if norm > options["max_grad_norm"] else 1.0
            for name in names:
                if (g := gradients[name]) is None:
                    continue
                g, rate, moment = g * shrink, RATES[group] * scale, self.moments[name]
                moment[0] = BETAS[0] * moment[0] + (1 - BETAS[0]) * g
                moment[1] = BETAS[1] * moment[1] + (1 - BETAS[1]) * g**2
                moment[2] += 1
                mean, square = (m / (1 - beta ** moment[2]) for m, beta in zip(moment, BETAS, strict=False))
                moved = self.w[name].detach() * (1 - rate * options["weight_decay"]) - rate * mean / (square.sqrt() + 1e-8)
                self.w[name] = moved.requires_grad_()

    def move_reference(self) -> None:
        rule = (self.losses["kl"] or {}).get("reference", {"update": "frozen"})
        if rule["update"] == "frozen" or (self.number + 1) % rule["every_steps"]:
            return
        keep = rule["decay"] if rule["update"] == "ema" else 0.0
        self.reference = {n: keep * old + (1 - keep) * self.w[n].detach() for n, old in self.reference.items()}

    def remember(self, rows: Any, actions: Any, old: Any, taught: list[float], *, fresh: int) -> None:
        for p in range(fresh):
            if taught[p] > 0:
                self.stored.append(Stored(rows[p], actions[p], old[p], self.number, taught[p]))
        self.stored = [one for one in self.stored if self.number - one.step <= self.p["replay"]["max_age_steps"]]
        while len(self.stored) > self.p["replay"]["capacity"]:
            self.stored.remove(min(self.stored, key=lambda one: (one.signal, one.step)))


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("arm", ARMS)
def test_weights_and_metrics_are_those_of_the_plain_loop(arm: str, loop: str) -> None:
    task, policy, rows = trained(arm, loop)
    plain = PlainLoop(arm, loop)
    for number, seen in enumerate(task.seen):
        plain.step(number, seen)
    start = dict(ChoicePolicy(SEED).named_parameters())
    for name, found in policy.named_parameters():
        torch.testing.assert_close(found.detach(), plain.w[name].detach(), atol=1e-7, rtol=0)  # the factor of a clip is float32
        assert (found - start[name]).abs().max() > 1e-2

    names = {"policy/loss": "policy", "value/loss": "value", "supervised/loss": "supervised"}
    names |= {"reward/mean": "reward", "reward/std": "spread"}
    of_replay = {"replay/age_steps": "age", "replay/importance_mean": "importance"}
    for step, row in enumerate(rows):
        found = plain.metrics[step]
        assert ("replay/groups" in row) == ("age" in found)
        for metric, term in names.items():
            assert row[metric] == pytest.approx(found[term], abs=1e-7), (step, metric)
        for metric, term in of_replay.items() if "age" in found else ():
            # A product over the decisions of probabilities from weights that are known to 1e-7.
            assert row[metric] == pytest.approx(found[term], abs=1e-6), (step, metric)
        assert row["policy/entropy"] == pytest.approx(-found["entropy"], abs=1e-7)
        if "kl" in found:
            assert row["kl/reference"] == pytest.approx(found["kl"], abs=1e-7)
        assert (row["step"], row["epoch"]) == (step, step)
        assert row["temperature"] == pytest.approx(1.6 - 0.9 * step / (STEPS - 1))

    # Samples without a score, replayed groups and clipped ratios occur; else the comparison would leave them out.
    parts = torch.stack([seen["parts"]["hits"] for seen in task.seen])
    assert 0.05 < float(parts.isnan().double().mean()) < 0.7
    assert sum(row.get("replay/groups", 0) for row in rows) >= 4
    assert max(row["policy/clip_high"] + row["policy/clip_low"] for row in rows) > 0
    assert len(task.seeds) == len(set(task.seeds)) == STEPS
    assert all(len(set(seen["rows"][:-2])) == PROMPTS - 2 for seen in task.seen)


def test_another_seed_draws_other_rows_and_samples() -> None:
    one, other = (trained("decisions", "whole", seed=seed)[0] for seed in (SEED, SEED + 1))
    assert not set(one.seeds) & set(other.seeds)
    assert one.seen[0]["rows"] != other.seen[0]["rows"]  # of the first step, in which nothing is replayed
