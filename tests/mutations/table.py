"""One-line faults of ``core`` and of the molecules' likelihoods, and the tests that find them; ``run.py`` shows that they do.

Kinds: a flipped sign, a mask that is dropped or turned round, a gradient or memory that is no longer cut off (detach), a
rounding term left out (epsilon), the wrong axis, an index or bound off by one, and the wrong denominator.
"""

from dataclasses import dataclass

KINDS = ("sign", "mask", "detach", "epsilon", "axis", "off_by_one", "denominator")


@dataclass(frozen=True)
class Mutation:
    """One fault.

    Attributes:
        name: what is wrong, in a few words; unique.
        kind: one of ``KINDS``.
        file: below src/grpo_pipeline.
        old: text that occurs exactly once in the file.
        new: what takes its place.
        tests: paths below tests/, with or without a test's name; one of them must fail.
    """

    name: str
    kind: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str:
        """Return the text of the file with the fault in it.

        Raises:
            ValueError: unless ``old`` occurs exactly once.
        """
        if (found := text.count(self.old)) != 1:
            raise ValueError(
                f"the text of mutation {self.name} must occur once in {self.file}, got {found} times; correct the table"
            )
        return text.replace(self.old, self.new)


# The word that a fault's name begins with -> the file of ``core`` that it is in, and that file's own tests.
CORE = {
    "accumulator": ("core/backprop/terms.py", "core/backprop/test_accumulator.py"),
    "advantages": ("core/policy_gradient/advantages.py", "core/policy_gradient/test_advantages.py"),
    "checkpoint": ("core/storage/checkpoint.py", "core/storage/test_checkpoint.py"),
    "chunked": ("core/sampling/linear_logprobs.py", "core/sampling/test_linear_logprobs.py"),
    "decision_terms": ("core/backprop/terms.py", "core/backprop/test_terms.py"),
    "denominators": ("core/policy_gradient/denominators.py", "core/policy_gradient/test_denominators.py"),
    "diagnostics": ("core/diagnostics/statistics.py", "core/diagnostics/test_statistics.py"),
    "dynamic": ("core/sampling/dynamic.py", "core/sampling/test_dynamic.py"),
    "entropy": ("core/policy_gradient/entropy.py", "core/policy_gradient/test_entropy.py"),
    "groups": ("core/types.py", "core/test_groups.py"),
    "kl": ("core/policy_gradient/kl.py", "core/policy_gradient/test_kl.py"),
    "losses": ("core/policy_gradient/losses.py", "core/policy_gradient/test_losses.py"),
    "optim": ("core/training/optim.py", "core/training/test_optim.py"),
    "recomputed": ("core/training/micro_batches.py", "core/training/test_recomputed.py"),
    "reductions": ("core/policy_gradient/losses.py", "core/policy_gradient/test_reductions.py"),
    "reference": ("core/training/optim.py", "core/training/test_reference.py"),
    "replay": ("core/training/replay.py", "core/training/test_replay.py"),
    "responses": ("core/backprop/terms.py", "core/backprop/test_responses.py"),
    "returns": ("core/policy_gradient/returns.py", "core/policy_gradient/test_returns.py"),
    "rewards": ("core/rewards.py", "core/test_rewards.py"),
    "rng": ("core/rng.py", "core/test_rng.py"),
    "sampling": ("core/sampling/plackett_luce.py", "core/sampling/test_plackett_luce.py"),
    "schedules": ("core/schedules.py", "core/test_schedules.py"),
    "stopping": ("core/sampling/stopping.py", "core/sampling/test_stopping.py"),
    "surrogates": ("core/policy_gradient/losses.py", "core/policy_gradient/test_surrogates.py"),
    "truncation": ("core/sampling/truncation.py", "core/sampling/test_truncation.py"),
    "units": ("core/policy_gradient/losses.py", "core/policy_gradient/test_units.py"),
}
# A word for a file of the molecules -> the file, and its own tests.
MOLECULES = {
    "entries": ("tasks/molecules/graphs/graphs.py", "tasks/molecules/graphs/test_entries.py"),
    "measured": ("tasks/molecules/batch.py", "tasks/molecules/test_measured.py"),
    "pair_attention": ("tasks/molecules/denoiser/layers.py", "tasks/molecules/denoiser/test_pair_attention.py"),
    "rewards": ("tasks/molecules/rewards.py", "tasks/molecules/test_rewards.py"),
    "row_norm": ("tasks/molecules/denoiser/layers.py", "tasks/molecules/denoiser/test_row_norm.py"),
    "size_groups": ("tasks/molecules/diffusion/trajectories.py", "tasks/molecules/diffusion/test_size_groups.py"),
    "step_chunks": ("tasks/molecules/diffusion/step_scores.py", "tasks/molecules/diffusion/test_step_chunks.py"),
    "step_scores": ("tasks/molecules/diffusion/step_scores.py", "tasks/molecules/diffusion/test_step_scores.py"),
    "trajectory_sampling": (
        "tasks/molecules/diffusion/trajectory_sampling.py",
        "tasks/molecules/diffusion/test_trajectory_sampling.py",
    ),
    "transition": ("tasks/molecules/diffusion/noise.py", "tasks/molecules/diffusion/test_transition.py"),
    "x0_loss": ("tasks/molecules/diffusion/x0_loss.py", "tasks/molecules/diffusion/test_x0_loss.py"),
}


def _fault(name: str, kind: str, old: str, new: str, *tests: str) -> Mutation:
    """Return a fault of the file of ``core`` that the name begins with, to be found by the tests given, or by that file's own."""
    stem = name.split("-")[0]
    file, own = CORE[stem]
    return Mutation(name, kind, file, old, new, tests or (own,))


def _molecule_fault(name: str, kind: str, file: str, old: str, new: str, *tests: str) -> Mutation:
    """Return a fault of ``tasks/molecules``, to be found by the tests given, or by that file's own."""
    place, own = MOLECULES[file]
    return Mutation(f"molecules-{name}", kind, place, old, new, tests or (own,))


def _property(test: str) -> str:
    return f"core/test_properties.py::test_{test}"


MUTATIONS = (
    _fault(
        "advantages-baseline-added",
        "sign",
        "centred = (r - _baseline(r, is_scored, values))",
        "centred = (r + _baseline(r, is_scored, values))",
        _property("an_affine_change_of_the_rewards_changes_no_advantage"),
    ),
    _fault(
        "advantages-baseline-over-prompts",
        "axis",
        "return r.nansum(dim=1, keepdim=True) / is_scored.sum(dim=1, keepdim=True).clamp(min=1)",
        "return r.nansum(dim=0, keepdim=True) / is_scored.sum(dim=0, keepdim=True).clamp(min=1)",
        _property("permuting_the_samples_of_a_group_permutes_advantages_and_gradients"),
    ),
    _fault(
        "advantages-ties-kept",
        "mask",
        "scaled.masked_fill(is_silent[:, None] | ~is_scored, 0.0)",
        "scaled.masked_fill(~is_scored, 0.0)",
    ),
    _fault("advantages-ties-of-float64", "epsilon", "4 * torch.finfo(rewards.dtype).eps", "4 * torch.finfo(r.dtype).eps"),
    _fault(
        "advantages-std-without-eps",
        "epsilon",
        "return 1.0 / (_nanstd(r, is_scored, std=std, dim=1) + eps)",
        "return 1.0 / _nanstd(r, is_scored, std=std, dim=1)",
    ),
    _fault("advantages-std-names-swapped", "denominator", 'int(std == "sample")', 'int(std == "population")'),
    _fault("advantages-with-gradient", "detach", "    r = rewards.detach().double()", "    r = rewards.double()"),
    _fault("advantages-leave-none-out", "off_by_one", "return n / (n - 1).clamp(min=1)", "return n / n.clamp(min=1)"),
    _fault("advantages-share-rounded-up", "epsilon", "keepdim=True).double() - 1e-9).ceil()", "keepdim=True).double()).ceil()"),
    _fault("advantages-one-more-kept", "off_by_one", "order.argsort(dim=1) < kept", "order.argsort(dim=1) <= kept"),
    _fault("advantages-whitening-eps-unscaled", "epsilon", "eps=eps / total", "eps=eps"),
    _fault("advantages-whitening-over-all", "mask", "masked_fill(~is_valid, math.nan).reshape", "reshape"),
    _fault(
        "advantages-prompt-weights-with-gradient",
        "detach",
        "weights.detach().double()[:, None]",
        "weights.double()[:, None]",
        _property("rewards_and_advantages_carry_no_gradient"),
    ),
    _fault(
        "returns-next-value-subtracted", "sign", "deltas = taken + gamma * seen - here", "deltas = taken - gamma * seen - here"
    ),
    _fault("returns-values-with-gradient", "detach", "_pair_values(values.detach(), is_valid)", "_pair_values(values, is_valid)"),
    _fault(
        "returns-padding-ends-the-row",
        "mask",
        "decay = decay.expand_as(x).masked_fill(~is_valid, 1.0)",
        "decay = decay.expand_as(x).masked_fill(~is_valid, 0.0)",
        _property("packed_equals_padded_over_time"),
    ),
    _fault("returns-done-ignored", "mask", "following if dones is None else following.masked_fill(dones, 0.0)", "following"),
    _fault("returns-halves-misaligned", "off_by_one", "torch.cat([even[1:], last[None]])", "torch.cat([even[:-1], last[None]])"),
    _fault(
        "returns-bootstrap-of-padded-rows",
        "mask",
        "last = values[..., -1].masked_fill(~is_valid[..., -1], 0.0)",
        "last = values[..., -1]",
    ),
    _fault("rewards-kl-paid-out", "sign", "total.detach().double() - penalty", "total.detach().double() + penalty"),
    _fault(
        "rewards-kl-of-padding",
        "mask",
        "kl = kl_per_decision.detach().double().masked_fill(~is_valid, 0.0)",
        "kl = kl_per_decision.detach().double()",
    ),
    _fault("rewards-kl-over-samples", "axis", "weight * kl.sum(dim=-1)", "weight * kl.sum(dim=1)"),
    _fault("rewards-kl-with-gradient", "detach", "kl_per_decision.detach().double()", "kl_per_decision.double()"),
    _fault(
        "rewards-total-with-gradient",
        "detach",
        "ruled = total.detach().double()",
        "ruled = total.double()",
        _property("rewards_and_advantages_carry_no_gradient"),
    ),
    _fault("kl-k3-sign", "sign", "return x.expm1() - x", "return x.expm1() + x"),
    _fault("kl-k3-digits-lost", "epsilon", "return x.expm1() - x", "return x.exp() - 1 - x"),
    _fault(
        "kl-rollout-with-gradient",
        "detach",
        "old_logprobs.detach(), is_valid)",
        "old_logprobs, is_valid)",
        _property("no_gradient_reaches_what_was_drawn"),
    ),
    _fault(
        "kl-rollout-own-denominator",
        "denominator",
        "return reduce_units(k3(old, new), is_valid, reduction=reduction, denominator=denominator)",
        "return reduce_units(k3(old, new), is_valid, reduction=reduction)",
    ),
    _fault("kl-reward-with-gradient", "detach", "_masked(logprobs_old.detach(),", "_masked(logprobs_old,"),
    _fault(
        "kl-ratio-held-still",
        "detach",
        "ratio * per_decision",
        "ratio.detach() * per_decision",
        _property("gradients_of_the_hybrid_loss_agree_with_finite_differences"),
    ),
    _fault("kl-of-forbidden-choices", "mask", 'is_allowed & (log_p > -float("inf"))', 'is_allowed | (log_p > -float("inf"))'),
    _fault("surrogates-clip-low-above-one", "sign", "ratio.clamp(1.0 - options.clip_low,", "ratio.clamp(1.0 + options.clip_low,"),
    _fault(
        "surrogates-cispo-weight-with-gradient",
        "detach",
        "-units.ratio.detach().clamp(max=options.ratio_cap)",
        "-units.ratio.clamp(max=options.ratio_cap)",
        _property("the_on_policy_gradient_is_that_of_reinforce"),
    ),
    _fault("surrogates-dual-clip-of-good-actions", "mask", "torch.where(advantages < 0,", "torch.where(advantages > 0,"),
    _fault("surrogates-sapo-taus-swapped", "mask", "masked_fill(advantages <= 0,", "masked_fill(advantages >= 0,"),
    _fault("surrogates-sapo-without-tau", "denominator", "* 4.0 / tau", "* 4.0"),
    _fault(
        "units-log-ratio-added",
        "sign",
        "_kept(logprobs - old_logprobs, is_valid)",
        "_kept(logprobs + old_logprobs, is_valid)",
        _property("the_ratio_is_exactly_one_at_the_first_update"),
    ),
    _fault(
        "units-padding-in-the-ratio",
        "mask",
        "_kept(logprobs - old_logprobs, is_valid)",
        "logprobs - old_logprobs",
        _property("packed_equals_padded"),
    ),
    _fault(
        "units-padded-length",
        "denominator",
        "length = is_valid.sum(-1, keepdim=True).clamp(min=1)",
        "length = is_valid.shape[-1]",
    ),
    _fault(
        "units-rows-wholly-valid",
        "mask",
        "is_valid.any(-1, keepdim=True))",
        "is_valid.all(-1, keepdim=True))",
        "core/diagnostics/test_statistics.py",
    ),
    _fault(
        "reductions-row-length-over-samples",
        "axis",
        "kept = kept / is_valid.sum(dim=-1, keepdim=True).clamp(min=1)",
        "kept = kept / is_valid.sum(dim=1, keepdim=True).clamp(min=1)",
    ),
    _fault(
        "reductions-own-denominator",
        "denominator",
        "loss_denominator(is_valid, reduction, max_decisions) if denominator is None else denominator",
        "loss_denominator(is_valid, reduction, max_decisions)",
        _property("any_split_into_micro_batches_gives_one_gradient"),
    ),
    _fault(
        "reductions-prompts-for-rows",
        "denominator",
        "rows, units = is_valid.shape[0] * is_valid.shape[1], is_valid.shape[2]",
        "rows, units = is_valid.shape[0], is_valid.shape[2]",
    ),
    _fault("reductions-empty-step", "epsilon", "max_decisions).clamp(min=1)", "max_decisions)"),
    _fault("denominators-mean-of-counts", "denominator", "for c in counts]).sum(dim=0)", "for c in counts]).mean(dim=0)"),
    _fault("denominators-unscored-returns", "mask", "(~returns.isnan()).sum()", "returns.isnan().sum()"),
    _fault(
        "denominators-processes-counted-for-sum",
        "denominator",
        'world if gradient_reduction == "mean" else 1',
        'world if gradient_reduction == "sum" else 1',
        "core/policy_gradient/test_denominators.py::test_two_processes_give_the_gradient_of_the_whole_batch",
    ),
    _fault(
        "denominators-at-least-one-each",
        "epsilon",
        'vector.clamp(min=1.0) / (world if gradient_reduction == "mean" else 1)',
        '(vector / (world if gradient_reduction == "mean" else 1)).clamp(min=1.0)',
        _property("a_term_that_one_prompt_of_two_processes_counts_weighs_the_same"),
    ),
    _fault(
        "losses-rollout-with-gradient",
        "detach",
        "UNITS[ratio_level](logprobs, old_logprobs.detach(), is_valid)",
        "UNITS[ratio_level](logprobs, old_logprobs, is_valid)",
    ),
    _fault(
        "losses-advantage-with-gradient",
        "detach",
        "advantages.detach().to(logprobs.dtype).unsqueeze(-1)",
        "advantages.to(logprobs.dtype).unsqueeze(-1)",
    ),
    _fault(
        "losses-value-over-unscored",
        "denominator",
        "is_scored.sum().clamp(min=1) if denominator",
        "is_scored.numel() if denominator",
    ),
    _fault(
        "losses-value-clip-helps", "sign", "torch.maximum(error, (clipped - target)", "torch.minimum(error, (clipped - target)"
    ),
    _fault(
        "losses-returns-with-gradient",
        "detach",
        "target = returns.detach()",
        "target = returns",
        _property("no_gradient_reaches_what_was_drawn"),
    ),
    _fault(
        "losses-old-values-with-gradient",
        "detach",
        "clipped = old_values.detach() +",
        "clipped = old_values +",
        _property("no_gradient_reaches_what_was_drawn"),
    ),
    _fault("losses-first-term-twice", "off_by_one", "sum(weighted[1:], start=weighted[0])", "sum(weighted, start=weighted[0])"),
    _fault("sampling-entropy-negative", "sign", "return -(log_probs.exp() * safe)", "return (log_probs.exp() * safe)"),
    _fault(
        "sampling-entropy-of-excluded-cells",
        "mask",
        'safe = log_probs.masked_fill(log_probs == -float("inf"), 0.0)',
        "safe = log_probs",
    ),
    _fault(
        "sampling-noise-of-zero", "epsilon", "exponential.clamp_min_(torch.finfo(like.dtype).tiny).log_()", "exponential.log_()"
    ),
    _fault("sampling-end-below-one", "epsilon", "distribution = mass / mass[:, -1:]", "distribution = mass"),
    _fault(
        "sampling-taken-cells-remain",
        "mask",
        'z.unsqueeze(1).masked_fill(is_taken, -float("inf")).logsumexp(dim=-1)',
        "z.unsqueeze(1).expand(is_taken.shape).logsumexp(dim=-1)",
        "core/sampling/test_plackett_luce.py::test_likelihood_agrees_with_a_naive_loop",
    ),
    _fault(
        "sampling-temperature-multiplies",
        "denominator",
        "return logits if temperature == 1.0 else logits / temperature",
        "return logits if temperature == 1.0 else logits * temperature",
        "core/sampling/test_plackett_luce.py::test_likelihood_agrees_with_a_naive_loop",
    ),
    _fault(
        "sampling-independent-without-temperature",
        "denominator",
        "return log_policy(logits, is_allowed, temperature).gather",
        "return log_policy(logits, is_allowed).gather",
        "core/sampling/test_plackett_luce.py::test_independent_terms_are_those_of_single_draws",
    ),
    _fault("sampling-remaining-in-reverse", "axis", "logs[::-1], dim=-1)", "logs, dim=-1)"),
    _fault("sampling-repeat-before-first", "off_by_one", "ranked[..., :-1], (1, 0))", "ranked[..., :-1], (0, 1))"),
    _fault("truncation-mass-with-the-choice-itself", "off_by_one", "functional.pad(mass[..., :-1], (1, 0))", "mass"),
    _fault("truncation-one-more-than-k", "off_by_one", "is_kept[..., top_k:] = False", "is_kept[..., top_k + 1 :] = False"),
    _fault("truncation-mass-in-float32", "epsilon", "ranked.to(torch.float64).softmax", "ranked.softmax"),
    _fault(
        "truncation-mass-of-what-top-k-dropped",
        "mask",
        '_mass_before(ranked.masked_fill(~is_kept, -float("inf")))',
        "_mass_before(ranked)",
    ),
    _fault("stopping-one-later", "off_by_one", "device=logits.device) < k_min", "device=logits.device) <= k_min"),
    _fault(
        "stopping-greedy-goes-on",
        "sign",
        "is_stop = _stop_log_odds(z, stops, order) > 0",
        "is_stop = _stop_log_odds(z, stops, order) < 0",
    ),
    _fault("stopping-stop-not-counted", "mask", "~functional.pad(has_stopped[..., :-1], (1, 0), value=False)", "~has_stopped"),
    _fault(
        "stopping-stop-without-temperature",
        "denominator",
        "stops = tempered_logits(per_decision, temperature)",
        "stops = per_decision",
    ),
    _fault(
        "chunked-gradient-sign",
        "sign",
        "log_p.exp_().mul_(-demand.constant[:, None])",
        "log_p.exp_().mul_(demand.constant[:, None])",
    ),
    _fault("chunked-action-of-the-next-block", "off_by_one", "(local >= 0) & (local < width)", "(local >= 0) & (local <= width)"),
    _fault("chunked-mass-does-not-fade", "denominator", "mass = fade * running.mass", "mass = running.mass"),
    _fault("chunked-entropy-without-scale", "denominator", "grad_entropy * scale * entropy", "grad_entropy * entropy"),
    _fault("entropy-away-from-the-target", "sign", "(self.target - measured)", "(measured - self.target)"),
    _fault("entropy-choices-over-rows", "axis", "is_allowed.sum(dim=-1).double().log()", "is_allowed.sum(dim=0).double().log()"),
    _fault(
        "schedules-end-one-late", "off_by_one", "total_steps - 1 - schedule.warmup_steps", "total_steps - schedule.warmup_steps"
    ),
    _fault("schedules-cosine-upside-down", "sign", "(1 + math.cos(math.pi * x))", "(1 - math.cos(math.pi * x))"),
    _fault("schedules-warm-up-from-zero", "off_by_one", "return schedule.start * (step + 1) /", "return schedule.start * step /"),
    _fault("reference-decay-swapped", "sign", "torch.lerp(old, new, 1.0 - decay)", "torch.lerp(old, new, decay)"),
    _fault("reference-takes-gradients", "detach", "reference.requires_grad_(False)", "reference.requires_grad_(True)"),
    _fault("reference-one-step-late", "off_by_one", "step % rule.every_steps", "(step - 1) % rule.every_steps"),
    _fault(
        "reference-equal-weights-drift",
        "epsilon",
        "return torch.where(old == new, old, torch.lerp(old, new, 1.0 - decay))",
        "return torch.lerp(old, new, 1.0 - decay)",
    ),
    _fault(
        "replay-stale-one-early",
        "off_by_one",
        "step - group.step <= self.max_age_steps",
        "step - group.step < self.max_age_steps",
    ),
    _fault("replay-own-fields-of-another-row", "off_by_one", "{name: part[p] for name", "{name: part[p - 1] for name"),
    _fault("replay-weights-of-padding", "mask", "difference.masked_fill(~is_valid, 0.0).sum(dim=-1)", "difference.sum(dim=-1)"),
    _fault(
        "replay-weights-inverted",
        "sign",
        "log_weights.clamp(max=LOG_RATIO_BOUND).exp()",
        "(-log_weights).clamp(max=LOG_RATIO_BOUND).exp()",
    ),
    _fault("replay-shares-memory", "detach", 'detach().to("cpu", copy=True)', "detach()"),
    _fault("replay-weights-with-gradient", "detach", "proximal_logprobs.detach().double()", "proximal_logprobs.double()"),
    _fault(
        "replay-behaviour-with-gradient",
        "detach",
        "behaviour_logprobs.detach().double()",
        "behaviour_logprobs.double()",
        _property("rewards_and_advantages_carry_no_gradient"),
    ),
    _fault("dynamic-replaces-what-teaches", "mask", "is_taken = is_tied & ~find_silent", "is_taken = ~find_silent"),
    _fault(
        "dynamic-one-missing-score-is-silent",
        "mask",
        "rewards.isnan().all(dim=1)",
        "rewards.isnan().any(dim=1)",
        _property("a_group_is_silent_where_all_of_its_advantages_are_zero"),
    ),
    _fault("dynamic-one-attempt-more", "off_by_one", "attempt < max_retries", "attempt <= max_retries"),
    _fault("optim-short-gradients-clipped", "sign", "if norm > max_grad_norm:", "if norm < max_grad_norm:"),
    _fault("optim-rate-divided", "denominator", 'group["lr"] = rate * scale', 'group["lr"] = rate / scale'),
    _fault("optim-norms-added", "denominator", "total = math.hypot(*norms.values())", "total = sum(norms.values())"),
    _fault(
        "checkpoint-resumes-one-later",
        "off_by_one",
        'step=p["step"], epoch',
        'step=p["step"] + 1, epoch',
        _property("resumed_equals_unbroken"),
    ),
    _fault(
        "checkpoint-shares-memory",
        "detach",
        'name: tensor.detach().to("cpu", copy=True) for name',
        "name: tensor.detach() for name",
        "core/storage/test_checkpoint.py::test_snapshot_is_a_copy_and_restore_leaves_it_one",
    ),
    _fault(
        "checkpoint-moments-share-memory",
        "detach",
        'value.detach().to("cpu", copy=True)',
        "value.detach()",
        "core/storage/test_checkpoint.py::test_snapshot_is_a_copy_and_restore_leaves_it_one",
    ),
    _fault(
        "groups-samples-before-prompts",
        "axis",
        "return x.reshape(x.shape[0] // group_size, group_size, *x.shape[1:])",
        "return x.reshape(group_size, x.shape[0] // group_size, *x.shape[1:]).transpose(0, 1)",
    ),
    _fault(
        "groups-copies-before-prompts",
        "axis",
        "return x.unsqueeze(1).expand(x.shape[0], group_size, *x.shape[1:])",
        "return x.unsqueeze(0).expand(group_size, *x.shape)",
    ),
    _fault("rng-places-on-one-axis", "axis", "for place in places for word", "for place in (sum(places),) for word"),
    _fault(
        "diagnostics-ess-of-the-sum",
        "denominator",
        "weights.sum().square() / (weights.numel() * weights.square().sum())",
        "weights.sum().square() / weights.square().sum()",
    ),
    _fault("diagnostics-ess-underflows", "epsilon", "weights = (log_ratio - log_ratio.max()).exp()", "weights = log_ratio.exp()"),
    _fault(
        "diagnostics-dead-in-float32",
        "epsilon",
        "torch.dot(x.flatten().double(), y.flatten().double())",
        "torch.dot(x.flatten(), y.flatten())",
    ),
    _fault("diagnostics-gradient-unweighted", "denominator", "is None else g * weight for p", "is None else g for p"),
    _fault(
        "diagnostics-clip-of-good-actions", "sign", "(r < 1 - options.clip_low) & (a < 0)", "(r < 1 - options.clip_low) & (a > 0)"
    ),
    _fault(
        "diagnostics-kl-reversed",
        "sign",
        "unbounded_k3(units.log_ratio[",
        "unbounded_k3(-units.log_ratio[",
    ),
    _fault("accumulator-batches-counted", "denominator", "self._denominator += float(denominator)", "self._denominator += 1.0"),
    _fault(
        "decision_terms-padded-values",
        "mask",
        "values.masked_fill(~is_counted, 0.0), returns.masked_fill(~is_counted, math.nan)",
        "values, returns",
    ),
    _fault("responses-next-token", "off_by_one", "[:, prompts.shape[1] - 1 : -1]", "[:, prompts.shape[1] :]"),
    _fault(
        "recomputed-in-another-precision", "epsilon", "with torch.enable_grad(), ctx.precision():", "with torch.enable_grad():"
    ),
    _molecule_fault(
        "kl-reversed",
        "sign",
        "step_scores",
        "categorical_kl(p, q, torch.ones_like(q, dtype=torch.bool))",
        "categorical_kl(q, p, torch.ones_like(q, dtype=torch.bool))",
        "tasks/molecules/test_enumeration.py::test_entropy_and_kl_are_sums_over_all_graphs",
    ),
    _molecule_fault("eager-of-the-noise", "off_by_one", "step_scores", "part[:, :, :1].expand", "part[:, :, -1:].expand"),
    _molecule_fault(
        "mean-of-what-has-no-choice",
        "denominator",
        "step_scores",
        ".sum(dim=-1) * int(is_counted), is_open)",
        ".sum(dim=-1), is_open)",
    ),
    _molecule_fault("padding-scored", "mask", "step_scores", "return values.masked_fill(~mask, 0.0)", "return values"),
    _molecule_fault(
        "padded-logprobs",
        "mask",
        "entries",
        ".squeeze(-1).masked_fill(~mask, 0.0)",
        ".squeeze(-1)",
        "tasks/molecules/diffusion/test_step_scores.py",
    ),
    _molecule_fault(
        "loss-of-a-micro-batch",
        "denominator",
        "x0_loss",
        "counts.to(sums)",
        "torch.stack([mask.sum() for mask in masks]).to(sums)",
        "tasks/molecules/test_task.py",
    ),
    _molecule_fault(
        "noise-at-time-zero",
        "off_by_one",
        "x0_loss",
        "torch.randint(1, steps + 1",
        "torch.randint(0, steps",
        "tasks/molecules/test_task.py",
    ),
    _molecule_fault(
        "every-chunk-scores-all",
        "denominator",
        "step_chunks",
        "scores = score_steps(policy, part",
        "scores = score_steps(policy, rollouts",
    ),
    _molecule_fault(
        "graphs-wider-than-their-group",
        "off_by_one",
        "size_groups",
        "(prompts.sizes > low) & (prompts.sizes <= high)",
        "(prompts.sizes >= low) & (prompts.sizes < high)",
    ),
    _molecule_fault(
        "groups-in-another-order",
        "axis",
        "size_groups",
        "torch.cat([group.rows for group in groups]).argsort()",
        "torch.cat([group.rows for group in groups])",
    ),
    _molecule_fault(
        "pairs-of-another-width",
        "axis",
        "size_groups",
        "pair_lookup(wide, device)[first, second]",
        "pair_index(wide)[0][: len(first)]",
    ),
    _molecule_fault(
        "posterior-of-another-time",
        "off_by_one",
        "transition",
        "keep, change = (table[t - 1]",
        "keep, change = (table[t]",
        "tasks/molecules/test_enumeration.py::test_the_probabilities_of_all_trajectories_sum_to_one",
    ),
    _molecule_fault(
        "posterior-multiplied",
        "sign",
        "transition",
        "weights = log_x0 - self._towards",
        "weights = log_x0 + self._towards",
        "tasks/molecules/test_enumeration.py::test_the_probabilities_of_all_trajectories_sum_to_one",
    ),
    _molecule_fault(
        "trajectory-turned-round",
        "axis",
        "trajectory_sampling",
        "parts[::-1]",
        "parts",
        "tasks/molecules/test_enumeration.py::test_a_sampled_trajectory_has_its_enumerated_probability_and_frequency",
    ),
    _molecule_fault(
        "group-of-other-noise",
        "axis",
        "trajectory_sampling",
        "part.repeat_interleave(group_size, dim=0)",
        "part.repeat(group_size, 1)",
    ),
    _molecule_fault("mean-over-prompts", "axis", "rewards", "valid.nanmean(dim=1", "valid.nanmean(dim=0"),
    _molecule_fault(
        "padding-read",
        "mask",
        "pair_attention",
        "~layout.is_node[:, None, None, :]",
        "torch.zeros_like(layout.is_node)[:, None, None, :]",
        "tasks/molecules/denoiser/test_denoiser.py",
    ),
    _molecule_fault(
        "unique-in-a-part",
        "axis",
        "measured",
        "len(results) > 1",
        "len(results) > 99",
        "tasks/molecules/test_task.py::test_uniqueness_in_the_batch_does_not_end_where_a_micro_batch_does",
    ),
    _molecule_fault("norm-scaled-to-nothing", "off_by_one", "row_norm", "1 + scale)", "scale)"),
)
