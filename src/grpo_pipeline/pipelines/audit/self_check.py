"""The self-check as a pipeline: does the installed code learn from reward, its functions and the loop that calls them?

The functions are checked by ``core.self_check``, the loop by ``loop_check``.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kedro.pipeline import Node, Pipeline

from grpo_pipeline.core import self_check
from grpo_pipeline.pipelines.audit.loop_check import check_training_loop


def run_self_check(seed: int) -> dict[str, Any]:
    """Run all variants on the bandits, then the training loop; return the figures as JSON values, whether they passed or not."""
    found = self_check.run_self_check(seed)
    return replace(found, variants=(*found.variants, *check_training_loop(seed=seed))).to_dict()


def report_self_check(result: Mapping[str, Any]) -> str:
    """Return the figures as a text table.

    Raises:
        SelfCheckError: if the check did not pass; the result has been saved by then.
    """
    self_check.require_passed(result)
    return self_check.format_table(result)


def create_pipeline() -> Pipeline:
    """Wire the seed -> ``self_check.result`` (JSON) -> ``self_check.table`` (text)."""
    return Pipeline(
        [
            Node(run_self_check, "params:seed", "self_check.result", name="run_self_check"),
            Node(report_self_check, "self_check.result", "self_check.table", name="report_self_check"),
        ]
    )
