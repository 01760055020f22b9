"""Load a configuration whose globals can be set for a run: ``kedro run --params attention_folder=attention_seed1``."""

from typing import Any

from grpo_pipeline.runs.config_loader import ReplacingConfigLoader

SEPARATORS = ("/", "\\")


class RunConfigLoader(ReplacingConfigLoader):
    """The project's loader; a runtime parameter named like an entry in globals.yml replaces it, and is no parameter.

    So a run can have a folder of results of its own, in every entry of the catalogue at once.

    Raises:
        ValueError: if a name ``…_folder`` is given a path: it is one folder in each layer.
    """

    def __init__(
        self,
        conf_source: str,
        env: str | None = None,
        runtime_params: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Read the globals and replace those that runtime parameters name; see ``OmegaConfigLoader``."""
        runtime = dict(runtime_params or {})
        super().__init__(conf_source, env, runtime, **kwargs)
        # A task of another package needs no line in globals.yml: its folder can be interpolated, and set for a run.
        self["globals"] = {name: folder for name, _, folder in self._folders()} | self._globals
        chosen = {name: runtime.pop(name) for name in set(self._globals) & set(runtime)}
        for name, value in chosen.items():
            if name.endswith("_folder") and (
                not str(value) or any(mark in str(value) for mark in SEPARATORS)
            ):
                raise ValueError(
                    f"{name} must be the name of one folder, got {value!r}; give it without a slash"
                )
        if chosen:
            self["globals"] = {
                **self._globals,
                **{name: str(value) for name, value in chosen.items()},
            }
            self.runtime_params = runtime
