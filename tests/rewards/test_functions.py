import math
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tiny_rewards
from refusals import refuses

from grpo_pipeline.rewards.calling import call_function, texts_beside
from grpo_pipeline.rewards.functions import load_function, shorten
from grpo_pipeline.rewards.measure import Measure
from grpo_pipeline.rewards.measure_check import check_measure, check_names
from grpo_pipeline.rewards.measuring import measure_chunk
from grpo_pipeline.rewards.signature import call_of


def test_loads_by_path_and_accepts_what_can_be_called():
    assert load_function("tiny_rewards:scripted") is tiny_rewards.scripted
    assert load_function("os.path:join.__call__")("a", "b") == "a/b"
    check_measure(Measure("tiny_rewards:scripted"))
    check_measure(Measure("tiny_rewards:slow", {"seconds": 0.5}))


test_refuses_what_cannot_be_called = refuses(
    (Measure("tiny_rewards.scripted"), "must be named package.module:function, got 'tiny_rewards.scripted'"),
    (Measure("tiny_rewards:"), "must be named package.module:function"),
    (Measure("__import__('os'):getcwd"), "must be named package.module:function"),
    (Measure("__main__:f"), "must be in an importable module"),
    (Measure("no_such_module:f"), "must be importable, got ModuleNotFoundError: No module named 'no_such_module'"),
    (Measure("tiny_rewards:nothing"), "must be importable, got AttributeError"),
    (Measure("tiny_rewards:NOT_A_FUNCTION"), "must be callable, got a int"),
    (Measure("tiny_rewards:nothing_taken"), r"must take \(subjects, references\), got TypeError: too many positional"),
    (Measure("tiny_rewards:a_column_by_its_name"), r"missing a required argument: 'level'; .* is columns\['…'\]"),
    (Measure("tiny_rewards:columns_first"), r"must take \(subjects, references\), .* got 'columns' as parameter 1"),
    (Measure("tiny_rewards:slow"), "missing a required argument: 'seconds'"),
    (Measure("tiny_rewards:scripted", {"x": 1}), r"must take \(subjects, references, x=…\), got TypeError"),
    (Measure("tiny_rewards:slow", {"seconds": math.nan}), "options of 'tiny_rewards:slow' must be JSON values"),
    (Measure("tiny_rewards:slow", {"seconds": {1}}), "options of 'tiny_rewards:slow' must be JSON values"),
    by=check_measure,
)


def test_a_function_that_is_async_is_awaited_and_its_samples_at_once():
    measure = Measure("tiny_rewards:later", {"seconds": 0.2})
    check_measure(measure)
    began = time.monotonic()
    found = measure_chunk(load_function(measure.function), measure.options, ["a", "bb", "no", "dddd"], [["x"]] * 4)
    assert time.monotonic() - began < 0.2 * 3
    assert found[:2] + found[3:] == [1.0, 2.0, 4.0]
    assert "it raised ValueError: no" in found[2]


def test_digest_follows_path_options_and_source(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "changing_reward.py"
    source.write_text("def f(replies, answers, k=1):\n    return [0.0] * len(replies)\n\ng = f\n")
    first = Measure("changing_reward:f").digest
    assert first == Measure("changing_reward:f", {}).digest
    assert first != Measure("changing_reward:g").digest
    assert first != Measure("changing_reward:f", {"k": 2}).digest
    source.write_text(source.read_text() + "# changed\n")
    assert first != Measure("changing_reward:f").digest
    del sys.modules["changing_reward"]


def test_one_bad_sample_leaves_its_neighbours_their_values():
    texts = ["ab", "raise", "", "nan", "inf", "exit", "text", "abc"]
    got = measure_chunk(tiny_rewards.scripted, {}, texts, [["x"]] * 7 + [["x", "y"]])
    assert got == [
        2 + 1 / 7,
        "it raised KeyError: 'raise'",
        1 / 7,
        "it returned nan, which is no score",
        "it returned inf, which is no score",
        "it raised SystemExit: 3",
        "it must return numbers, got the text '0.5'",
        3 + 2 / 7,
    ]


def test_a_reward_returns_one_value_each_and_cannot_change_what_it_is_given():
    def greedy(replies, answers):
        replies.clear()
        answers[0].clear()
        return np.ones(2, dtype=np.float32)

    texts, answers = ["a", "b"], [["x"], ["y"]]
    assert measure_chunk(greedy, {}, texts, answers) == [1.0, 1.0]
    assert (texts, answers) == (["a", "b"], [["x"], ["y"]])
    got = measure_chunk(lambda replies, answers: [1.0, 2.0], {}, ["a", "b", "c"], [[], [], []])
    assert got == ["it raised ValueError: it must return one value per sample, got 2 for 1"] * 3
    assert (
        measure_chunk(lambda replies, answers: 1.0, {}, ["a", "b"], [[], []])
        == ["it raised TypeError: it must return one value per sample, got float"] * 2
    )


def test_a_function_with_completions_is_called_by_name():
    here = "tiny_rewards"
    subjects, references = ["a", "bcd"], [("x",), ("y", "z")]
    measure = Measure(f"{here}:as_trl")
    check_measure(measure)
    beside = texts_beside(measure, references, ["pp", "q"])
    # 2 + 10 * 1 + 100 * 1, and 1 + 10 * 3 + 100 * 2.
    assert measure_chunk(tiny_rewards.as_trl, {}, subjects, beside) == [112.0, 231.0]
    # Nobody knows the prompts: empty ones.
    assert measure_chunk(tiny_rewards.as_trl, {}, subjects, texts_beside(measure, references, None)) == [110.0, 230.0]
    scaled = Measure(f"{here}:completions_alone", {"scale": 3.0})
    check_measure(scaled)
    assert texts_beside(scaled, references, ["pp", "q"]) == references
    assert measure_chunk(tiny_rewards.completions_alone, scaled.options, ["x", "z"], references) == [3.0, 0.0]


test_names_that_say_something_else_are_refused = refuses(
    (Measure("tiny_rewards:references_first"), r"must take \(subjects, references\), .* got 'references' as parameter 1"),
    (Measure("tiny_rewards:prompts_and_texts"), "got 'responses' as parameter 2; .* call the samples 'completions'"),
    (Measure("tiny_rewards:other_columns"), "must take its parameters from .*'answers'.*, got 'ground_truth'; rename it"),
    by=check_measure,
)


def test_the_digest_of_a_reward_of_the_project_follows_what_it_is_computed_by(monkeypatch):
    """F1 is computed from normalised words: another text of that module is another reward."""
    of_f1 = "grpo_pipeline.tasks.dialogue.scores"
    read = Path.read_bytes

    def digest_with(changed):
        monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + (b"#" if path.stem == changed else b""))
        return Measure(f"{of_f1}.f1:f1").digest

    assert digest_with("normalisation") != digest_with("nothing") == digest_with("bleu")


def test_a_digest_is_that_of_the_options_and_not_of_their_order():
    one, other = ({"k": 1, "rate": {"low": 0.5, "high": 2}}, {"rate": {"high": 2, "low": 0.5}, "k": 1})
    assert Measure("tiny_rewards:slow", one).digest == Measure("tiny_rewards:slow", other).digest
    assert Measure("tiny_rewards:slow", one).digest != Measure("tiny_rewards:slow", one | {"k": 2}).digest


def test_a_function_gets_prompts_references_and_options_by_the_names_it_takes():
    seen = []

    def everything(completions, **columns):
        seen.append({"completions": completions} | columns)
        return [1.0] * len(completions)

    def without_prompts(completions, answers, scale=1.0, other=None):
        seen.append({"completions": completions, "answers": answers, "scale": scale, "other": other})
        return [scale] * len(completions)

    assert [call_of(function, {}).by_name for function in (everything, without_prompts)] == [
        ("prompts", "references", "answers"), ("answers",),
    ]  # fmt: skip
    assert call_function(everything, {"scale": 2.0}, ["a"], [("p", "x", "y")]) == [1.0]
    references = [["x", "y"]]
    assert seen.pop() == {
        "completions": ["a"], "prompts": ["p"], "references": references, "answers": references, "scale": 2.0,
    }  # fmt: skip
    assert call_function(without_prompts, {"scale": 2.0}, ["a"], [("x", "y")]) == [2.0]
    assert seen.pop() == {"completions": ["a"], "answers": references, "scale": 2.0, "other": None}
    # A parameter that nobody fills may stand there with a default.
    check_names(Measure("mine:reward"), without_prompts)


def test_the_cause_of_a_failure_is_one_line_of_at_most_300_letters():
    def talkative(replies, answers):
        raise ValueError("first\n\n  second " + "x" * 400)

    [said] = measure_chunk(talkative, {}, ["a"], [[]])
    told = "ValueError: first second "
    assert said == f"it raised {told}{'x' * (300 - len(told))}"


def test_a_text_is_cut_beyond_its_limit():
    assert shorten("ab" * 40) == repr("ab" * 40)
    assert shorten("ab" * 40 + "c") == f"{'ab' * 40!r}… (81 characters)"
    assert shorten("abcd", limit=3) == "'abc'… (4 characters)"


def prompts_alone(replies, prompts):
    return [float(len(prompt)) for prompt in prompts]


def replies_alone(replies, *, words):
    return [float(words) for _ in replies]


def old_and_columns(subjects, references, *, columns):
    return [float(len(row) + level) for row, level in zip(references, columns["level"], strict=True)]


CELLS = ['{"level": 1}', '{"level": 2}']


@pytest.mark.parametrize(
    ("function", "options", "values"),
    [
        (prompts_alone, {}, [2.0, 1.0]),
        (replies_alone, {"words": 3}, [3.0, 3.0]),
        (old_and_columns, {}, [2.0, 4.0]),
        (tiny_rewards.levels, {"factor": 2.0}, [2242.0, 4426.0]),
    ],
)
def test_what_a_function_names_beside_its_samples_it_gets(function, options, values, monkeypatch):
    monkeypatch.setattr(tiny_rewards, "under_test", function, raising=False)
    measure = Measure("tiny_rewards:under_test", options)
    check_measure(measure)
    beside = texts_beside(measure, [["x"], ["y", "z"]], ["pp", "q"], CELLS)
    assert measure_chunk(function, options, ["a", "bcd"], beside) == values


def test_an_option_named_as_a_text_beside_the_samples_is_the_option_s():
    def fixed(replies, *, prompts):
        return [float(prompts)] * len(replies)

    assert call_of(fixed, {}).by_name == ("prompts",)
    assert call_of(fixed, {"prompts": 2}).by_name == ()
    assert call_function(fixed, {"prompts": 2}, ["a"], [["x"]]) == [2.0]


def test_nobody_knows_columns_of_a_task_without_them():
    def fallback(completions, columns):
        return [float(len(columns))] * len(completions)

    assert call_function(fallback, {}, ["a"], [("{}", "x")]) == [0.0]


def test_the_second_place_is_that_of_the_references():
    def any_places(*texts, columns):
        return columns

    def by_place(texts, references, /):
        return texts, references

    functions = (any_places, by_place, old_and_columns, min, prompts_alone, replies_alone)
    assert [call_of(function, {}) for function in functions] == [
        (True, ("columns",)), (True, ()), (True, ("columns",)), (True, ()), (False, ("prompts",)), (False, ()),
    ]  # fmt: skip
