"""Define the project's Kedro context, which passes the arms of its parameters to the pipelines."""

from typing import Any

from kedro.framework.context import KedroContext

from grpo_pipeline.pipeline_registry import use_arms

PACKAGE = "grpo_pipeline"


class ProjectContext(KedroContext):
    """A context that passes its arms to the registry before it builds the catalogue, because Kedro-Viz calls no hooks."""

    @property
    def catalog(self) -> Any:
        """Build the catalogue; see ``KedroContext.catalog``."""
        if self._package_name == PACKAGE:  # another project has tasks, or nodes, of its own
            use_arms(self.config_loader["parameters"])
        return super().catalog
