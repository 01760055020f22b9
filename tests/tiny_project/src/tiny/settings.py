from grpo_pipeline.settings import CONFIG_LOADER_ARGS, DISABLE_HOOKS_FOR_PLUGINS, SESSION_CLASS
from grpo_pipeline.settings import HOOKS as OURS
from tiny.kill import Killer

__all__ = ["CONFIG_LOADER_ARGS", "DISABLE_HOOKS_FOR_PLUGINS", "HOOKS", "SESSION_CLASS"]

HOOKS = (*OURS, Killer())
