"""Resolve environments that extend another environment: ``extends: busi`` in ``conf/<env>/globals.yml``.

An environment takes all settings of the extended one, unless it sets them itself. Its results lie in folders of its own, and data
that it names itself do not take the other's origin.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from grpo_pipeline.tasks import TASKS

EXTENDS = "extends"
PLAIN = (None, "base", "local")  # environments whose results lie in the task's own folder
FOLDER, ROOT, ORIGIN = "_folder", "_root", "_origin"


def extended(conf: str | Path, env: str) -> list[Path]:
    """List the folders of the environments that an environment extends, the lowest first; usually empty.

    Args:
        conf: the local folder of all environments; archives and servers are ignored.
        env: name of the environment.

    Raises:
        ValueError: ``extends`` names no environment, or leads back to itself. The sentence names the file.
    """
    chain = [env]
    while (name := _named(Path(conf), chain[-1])) is not None:
        file = Path(conf) / chain[-1] / "globals.yml"
        if not _is_name(name) or not (Path(conf) / name).is_dir():
            others = sorted(
                path.name
                for path in Path(conf).glob("[!.]*")
                if path.is_dir() and path.name not in (*PLAIN, *chain)
            )
            raise ValueError(
                f"{file}: {EXTENDS} must name another environment of {conf}, got {name!r}; take one of {', '.join(others)}"
            )
        if name in chain:
            raise ValueError(
                f"{file}: {EXTENDS} must not lead back to an environment that it comes from, got "
                f"{' -> '.join([*chain, name])}; remove it from one of them"
            )
        chain.append(name)
    return [Path(conf) / name for name in reversed(chain[1:])]


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and Path(name).name == name and name not in PLAIN


def _named(conf: Path, env: str) -> Any:
    """Read the name of the environment that an environment extends."""
    file = conf / env / "globals.yml"
    if not file.is_file():
        return None
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError:
        return None  # the loader names the line
    return content.get(EXTENDS) if isinstance(content, Mapping) else None


def without_results(layers: Sequence[Mapping[str, Any]], env: str | None) -> dict[str, Any]:
    """Merge the globals of environments, the lowest first; the results of the last one get folders of its own.

    Args:
        layers: globals of each environment.
        env: name of the last environment.
    """
    *below, own = layers
    found: dict[str, Any] = {}
    for layer in below:
        found = _without_origins(layer, found) | dict(layer)
    found = {name: value for name, value in found.items() if not name.endswith(FOLDER)}
    found = _without_origins(own, found)
    folders = {} if env in PLAIN else {f"{task}{FOLDER}": f"{task}_{env}" for task in TASKS}
    found = found | folders | dict(own)
    return {name: value for name, value in found.items() if name != EXTENDS}


def _without_origins(layer: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the origins of data whose place a layer redefines."""
    moved = {name.removesuffix(ROOT) + ORIGIN for name in layer if name.endswith(ROOT)}
    return {name: value for name, value in found.items() if name not in moved}
