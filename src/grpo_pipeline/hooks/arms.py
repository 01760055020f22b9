"""End the processes that train arms with the run."""

import sys

from kedro.framework.hooks import hook_impl


class ArmHooks:
    """End the processes that train arms with the run, however it ends."""

    @hook_impl
    def before_pipeline_run(self) -> None:
        """Forget what a run before this one has left."""
        self._close()

    @hook_impl
    def after_pipeline_run(self) -> None:
        """End what nobody has asked for."""
        self._close()

    @hook_impl
    def on_pipeline_error(self) -> None:
        """End everything after an error."""
        self._close()

    def on_run_ended(self, error: BaseException) -> None:
        """End everything after Ctrl-C and SIGTERM, too."""
        self._close()

    def _close(self) -> None:
        at_once = sys.modules.get(
            "grpo_pipeline.pipelines.training.at_once"
        )  # a run that trains nothing does without torch
        if at_once is not None:
            at_once.OF_RUN.close()
