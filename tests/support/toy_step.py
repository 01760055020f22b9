"""Count what one training step of a toy task runs: the functions of the package, and the lines of their bodies."""

import ast
import inspect
import sys
import textwrap
from types import CodeType, FrameType
from typing import Any

import torch
from tiny_attention import algorithm_params, training_params
from tiny_choices import TinyChoices, own_rates

from grpo_pipeline.pipelines.training.loop import StepRunner, quiet_nodes
from grpo_pipeline.pipelines.training.start import build_state

INNER = ("<lambda>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")


def functions_of_a_step(arm: str) -> dict[str, int]:
    """Map each function that the second step of an arm runs to the lines of its body, docstring left out."""
    torch.set_num_threads(1)
    task = TinyChoices()
    training = own_rates(training_params(epochs=3, batch_size=8, group_size=4), 0.3)
    algorithm = algorithm_params(arm)
    state, run = build_state(algorithm, training, 0, task, None), StepRunner(task, algorithm, training)
    batch = task.make_batch(None, task.rows(None, "train")[:8])
    seen: dict[CodeType, None] = {}

    def follow(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and "/src/grpo_pipeline/" in frame.f_code.co_filename:
            seen.setdefault(frame.f_code)

    with quiet_nodes():
        state, _ = run(state, batch)
        sys.setprofile(follow)
        try:
            run(state, batch)
        finally:
            sys.setprofile(None)
    codes = [code for code in seen if code.co_name not in INNER]
    return {f"{code.co_filename.rpartition('/grpo_pipeline/')[2]}:{code.co_qualname}": body_lines(code) for code in codes}


def body_lines(code: CodeType) -> int:
    """Count the lines from the first statement after the docstring to the last line."""
    node: Any = ast.parse(textwrap.dedent("".join(inspect.getsourcelines(code)[0]))).body[0]
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0
