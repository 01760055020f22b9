"""Kedro's context, which lets the pipelines have the arms of its parameters."""

from typing import Any

from kedro.framework.context import KedroContext

from grpo_pipeline.pipeline_registry import use_arms

PACKAGE = "grpo_pipeline"


class ProjectContext(KedroContext):
    """A context that tells the registry of its arms before it gives its catalogue: Kedro-Viz calls no hooks."""

    @property
    def catalog(self) -> Any:
        """The catalogue; see ``KedroContext.catalog``."""
        if self._package_name == PACKAGE:  # another project has tasks, or nodes, of its own
            use_arms(self.config_loader["parameters"])
        return super().catalog
