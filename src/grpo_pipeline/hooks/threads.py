"""Fix how many threads compute, before anything does."""

from collections.abc import Mapping
from typing import Any

from kedro.framework.hooks import hook_impl

from grpo_pipeline.runs.threads import compute_in


class ThreadHooks:
    """Fix how many threads compute, before anything does: for the command line and for whoever opens the catalogue."""

    @hook_impl(tryfirst=True)
    def after_catalog_created(self, parameters: Mapping[str, Any]) -> None:
        """Read the parameter ``threads``."""
        compute_in(parameters["parameters"].get("threads", 1))
