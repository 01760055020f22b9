"""Write docs/parameters.md: type, bounds, default and meaning of every parameter.

    python docs/parameters.py             (or: make parameters)

Types, bounds and meanings are those of the pydantic models that nodes of the registered pipelines read; defaults are those of
conf/base, and of the models for parts that it does not have. A meaning is the ``description`` of a field, or its line under
``Attributes:`` in the docstring of its model.
tests/test_documents.py fails when the page is out of date, or a parameter has no meaning.
"""

import re
import sys
import textwrap
import types
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types as bounds
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from kedro.validation.type_extractor import TypeExtractor  # noqa: E402

from grpo_pipeline.core.agreement import EXECUTION  # noqa: E402
from grpo_pipeline.core.objective.part import Weighed  # noqa: E402
from grpo_pipeline.core.schedules import Schedule  # noqa: E402
from grpo_pipeline.pipeline_registry import register_pipelines  # noqa: E402
from grpo_pipeline.pipelines.arms import described_arms  # noqa: E402
from grpo_pipeline.runs.run_config_loader import RunConfigLoader  # noqa: E402
from grpo_pipeline.settings import CONFIG_LOADER_ARGS  # noqa: E402
from grpo_pipeline.tasks import TASKS, find_task  # noqa: E402

PAGE = ROOT / "docs" / "parameters.md"
BASE = ROOT / "conf" / "base"
SIMPLE = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "`true` or `false`",
    Any: "any value",
    object: "any value",
}
SIGNS = {
    bounds.Ge: ("at least", "ge"),
    bounds.Gt: ("above", "gt"),
    bounds.Le: ("at most", "le"),
    bounds.Lt: ("below", "lt"),
}
OF_RUN = "a run"
HEAD = """# Parameters

Written by `make parameters` from the models that check the parameters, and from `conf/base`; do not edit it by hand.

A parameter is set in `conf/<environment>/parameters.yml`, or in any file there whose name begins so, or for one run:
`make run PARAMS=attention.training.epochs=8`. An unknown key, a value outside its bounds and a combination that does not work
are refused before anything is trained, with a sentence that names the key.

Types: a **section** holds the keys that follow it. **or null** means that a key may be null, which switches the thing off.
A **schedule** is a number, or a section `{kind, start, end, warmup_steps}` with kind `constant`, `linear` or `cosine`.
Keys marked ↻ only say how a run is executed: they may change when it is resumed. Where sections differ, the usual default
stands first, and then the sections with another one.

`<task>.arms` lists the arms that a run trains, and each arm is a section of that name ([running.md](running.md)).
"""


@cache
def sections() -> dict[str, type[BaseModel]]:
    """Return the path of each section of conf/base -> the model that a node reads it with."""
    models = TypeExtractor(register_pipelines()).extract_types_from_pipelines()
    found = {path: next(models_in(hint)) for path, hint in models.items()}
    for spec in map(find_task, TASKS):  # an arm's own section is one of the task's again
        for arm in described_arms(
            spec.name, base()[spec.name]
        ):  # one that no run trains by default
            found.setdefault(
                f"{spec.name}.{arm}.algorithm", found[f"{spec.name}.{spec.arms[0]}.algorithm"]
            )
        for stage in spec.with_stages_of(base()[spec.name]).stages:  # an optional one, too
            for name, path in (
                ("algorithm", f"{spec.arms[0]}.algorithm"),
                ("training", "training"),
            ):
                found.setdefault(f"{spec.name}.{stage}.{name}", found[f"{spec.name}.{path}"])
        own = ((arm, section) for arm, sections in spec.own.items() for section in sections)
        found |= {
            f"{spec.name}.{arm}.{section}": found[f"{spec.name}.{section}"] for arm, section in own
        }
    return {path: found[path] for path in sorted(found) if value_at(base(), path) is not ...}


@cache
def base() -> dict[str, Any]:
    """Return the parameters of conf/base, as a run reads them."""
    loader = RunConfigLoader(str(ROOT / "conf"), env="base", **CONFIG_LOADER_ARGS)
    parameters: dict[str, Any] = loader["parameters"]
    return parameters


def value_at(values: Any, path: str) -> Any:
    """Return the value under a dotted path, ``...`` where there is none."""
    for part in path.split("."):
        if not isinstance(values, Mapping) or part not in values:
            return ...
        values = values[part]
    return values


def models_in(hint: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that an annotation holds, however deep."""
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        yield hint
    for part in get_args(hint):
        yield from models_in(part)


def meanings(model: type[BaseModel]) -> dict[str, str]:
    """Return the meaning of each field: its description, or its line under ``Attributes:`` of the model or a parent."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        _, _, attributes = cleandoc(each.__doc__ or "").partition("Attributes:\n")
        listed = re.split(r"\n(?=\S)", textwrap.dedent(attributes))
        entries = (re.fullmatch(r"(\w+): (.+)", entry.strip(), re.DOTALL) for entry in listed)
        found |= {entry[1]: " ".join(entry[2].split()) for entry in entries if entry}
    described = {
        name: field.description for name, field in model.model_fields.items() if field.description
    }
    return {
        key_of(name, field): (found | described).get(name, "").replace("``", "`").rstrip(".")
        for name, field in model.model_fields.items()
    }


def key_of(name: str, field: FieldInfo) -> str:
    """Return what a field is called in YAML, where it may be a word that Python keeps for itself."""
    return field.alias or name


def spelled(hint: Any, metadata: tuple[Any, ...] = ()) -> str:
    """Return an annotation in words, with its bounds."""
    origin, parts = get_origin(hint), get_args(hint)
    limits = [text for text in map(limit, flat(metadata)) if text]
    if origin is Annotated:
        return spelled(parts[0], (*metadata, *parts[1:]))
    if origin in (Union, types.UnionType):
        named = dict.fromkeys(spelled(part) for part in parts if part is not type(None))
        name = " or ".join(named) + (" or null" if type(None) in parts else "")
        return ", ".join([name, *limits])
    if origin is Literal:
        return ", ".join(f"`{yaml_text(part)}`" for part in parts)
    if origin is tuple and parts[-1:] != (...,):
        return "list of " + ", ".join(map(spelled, parts))
    if origin in (tuple, list, frozenset, set):
        name = f"list of {spelled(parts[0])}"
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        name = f"mapping from {spelled(parts[0])} to {spelled(parts[1])}"
    elif isinstance(hint, type) and issubclass(hint, BaseModel):
        name = "section"
    else:
        name = "schedule" if hint is Schedule else SIMPLE[hint]
    return ", ".join([name, *limits])


def flat(metadata: tuple[Any, ...]) -> Iterator[Any]:
    """Yield bounds one by one, also those inside a Field."""
    for each in metadata:
        if isinstance(each, FieldInfo):
            yield from flat(tuple(each.metadata))
        else:
            yield each


def limit(each: Any) -> str:
    """Return one bound in words, "" for what is none."""
    for kind, (word, attribute) in SIGNS.items():
        if isinstance(each, kind):
            return f"{word} {getattr(each, attribute)}"
    if isinstance(each, bounds.MinLen):
        return f"at least {each.min_length} of them" if each.min_length > 1 else "not empty"
    pattern = getattr(each, "pattern", None)
    return f"matches `{pattern}`".replace("|", "\\|") if pattern else ""


def rows(model: type[BaseModel], values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield the table's rows of a model; ``values`` has what each section holds, ``...`` where it holds nothing.

    Raises:
        ValueError: if a field has no meaning.
    """
    said = meanings(model)
    for attribute, field in model.model_fields.items():
        name = key_of(attribute, field)
        if not said[name]:
            raise ValueError(
                f"{model.__name__}.{name} must have a meaning, got none; add a line under Attributes in its docstring"
            )
        inner = {section: value_at(value, name) for section, value in values.items()}
        mark = " ↻" if EXECUTION in field.metadata else ""
        kind = spelled(field.annotation, tuple(field.metadata)).replace(" | ", " or ")
        usual = default(inner, is_section=kind.startswith("section"))
        if all(value is ... for value in inner.values()) and not field.is_required():
            # Of a part that conf/base does not have.
            usual = shown(field.get_default(call_default_factory=True))
        meaning = said[name].replace("|", "\\|")
        many = "mapping from" in kind
        below = dict.fromkeys(inner, ...) if many else inner
        place = f"{above}{name}.<name>." if many else f"{above}{name}."
        models = [*dict.fromkeys(models_in(field.annotation))]
        # The row of a term's weight says what the term is.
        is_term = not many and any(issubclass(each, Weighed) for each in models)
        if not is_term:
            yield f"| `{above}{name}`{mark} | {kind} | {usual} | {meaning} |"
        for row in rows_of_kinds(models, below, place):
            _, key, number, weight, *_ = re.split(r"(?<!\\)\|", row)
            if is_term and key == f" `{place}weight` ":
                yield f"|{key}|{number}|{weight if weight.strip() else ' none '}| {meaning} |"
            else:
                yield row


def rows_of_kinds(
    models: Sequence[type[BaseModel]], values: Mapping[str, Any], above: str
) -> Iterator[str]:
    """Yield the rows of a section of one kind or several: each key once, with the kinds that have it where not all do."""
    found: dict[str, list[str]] = {}  # key -> the cells of its row
    types: dict[
        str, dict[str, list[str]]
    ] = {}  # key -> type -> the kinds whose key is of that type
    tag, kinds = kinds_of(models)
    for model in models:
        for row in rows(model, values, above):
            _, key, spelling, *_ = cells = re.split(r"(?<!\\)\|", row)
            found.setdefault(key, cells)
            types.setdefault(key, {}).setdefault(spelling, []).extend(kinds[model])
    for key, (_, _, spelling, usual, meaning, _) in found.items():
        having = [kind for those in types[key].values() for kind in those]
        (_, *others) = types[key].items()
        if key.startswith(f" `{above}{tag}`"):
            spelling = f" {', '.join(f'`{kind}`' for kind in having)} "
        elif others:
            apart = (f"{other.strip()} with {tag} {', '.join(those)}" for other, those in others)
            spelling = f"{spelling.rstrip()}; {'; '.join(apart)} "
        if len(having) < sum(map(len, kinds.values())):
            meaning = f"{meaning.rstrip()} ({tag} {', '.join(having)}) "
        yield f"|{key}|{spelling}|{usual}|{meaning}|"


def kinds_of(
    models: Sequence[type[BaseModel]],
) -> tuple[str, dict[type[BaseModel], Sequence[str]]]:
    """Return the key that tells models apart, and its values of each; one nameless value of a model that stands alone."""
    for name in models[0].model_fields if models else ():
        fields = [model.model_fields.get(name) for model in models]
        values = [get_args(field.annotation) for field in fields if field and is_literal(field)]
        listed = [value for those in values for value in those]
        if len(values) == len(models) and len({*listed}) == len(listed):
            return name, dict(zip(models, values, strict=True))
    return "kind", dict.fromkeys(models, ("",))


def is_literal(field: FieldInfo) -> bool:
    """Check whether a field takes listed values alone."""
    return get_origin(field.annotation) is Literal


def filled(section: Any, model: Any) -> Any:
    """Return a section with the keys that it leaves out, as its model fills them."""
    if not isinstance(section, Mapping | BaseModel) or not isinstance(model, BaseModel):
        return section
    given = section if isinstance(section, Mapping) else {}
    fields = type(model).model_fields.items()
    checked = {key_of(name, field): getattr(model, name) for name, field in fields}
    return {name: filled(given.get(name, value), value) for name, value in checked.items()}


def default(values: Mapping[str, Any], *, is_section: bool) -> str:
    """Return the value of all sections, or the most frequent one and the sections with others."""
    texts = {
        section.rpartition(".")[0]: shown(value)
        for section, value in values.items()
        if value is not ...
    }
    if is_section:
        texts = {section: "" if text != "`null`" else text for section, text in texts.items()}
    if not texts:
        return ""
    usual = Counter(texts.values()).most_common(1)[0][0]
    others: dict[str, list[str]] = {}
    for section, text in texts.items():
        if text != usual:
            others.setdefault(text, []).append(section)
    if usual == "" and len(others) == 0:
        return ""
    return "; ".join(
        [
            usual or "set",
            *(f"{', '.join(found)}: {text or 'set'}" for text, found in others.items()),
        ]
    )


def shown(value: Any) -> str:
    """Return a value as YAML; of a long mapping its keys, and nothing of a section, whose keys follow."""
    if isinstance(value, BaseModel):
        return ""
    if isinstance(value, Schedule):
        return shown(
            value.start if value.kind == "constant" and not value.warmup_steps else asdict(value)
        )
    if isinstance(value, Mapping) and len(yaml_text(value)) > 60:
        return f"{len(value)} keys"
    return "`" + yaml_text(value).replace("|", "\\|") + "`"


def yaml_text(value: Any) -> str:
    """Return a value on one line of YAML."""
    plain = list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump(plain, default_flow_style=True, width=10_000, sort_keys=False).strip()
    return text.removesuffix("\n...").strip()


def commented(file: Path) -> Iterator[str]:
    """Yield rows of a flat YAML file whose comments say what its keys mean."""
    for line in file.read_text(encoding="utf-8").splitlines():
        if found := re.fullmatch(r"(\w+): (\S+)\s+# (.+)", line):
            yield f"| `{found[1]}` | `{found[2]}` | {found[3]} |"


def page() -> str:
    """Return docs/parameters.md."""
    values, by_model = base(), dict[type[BaseModel], list[str]]()
    for path, model in sections().items():
        by_model.setdefault(model, []).append(path)
    groups: dict[str, list[str]] = {}
    for model, paths in sorted(by_model.items(), key=lambda pair: pair[1]):
        tasks = {path.partition(".")[0] for path in paths}
        of_run = tasks.isdisjoint(TASKS)
        group = "every task" if len(tasks) > 1 else f"the {tasks.pop()} task"
        group = OF_RUN if of_run else group
        groups.setdefault(group, []).extend(
            section(model, {path: read(model, value_at(values, path)) for path in paths})
        )
    lines = [
        HEAD,
        "## Of a run",
        "`parameters.yml`, and the folders of `globals.yml`, which a run may set like parameters.",
        "",
    ]
    lines += ["| key | default | meaning |", "|---|---|---|"]
    lines += [*commented(BASE / "parameters.yml"), *commented(BASE / "globals.yml"), ""]
    lines += groups.pop(OF_RUN)
    for group in sorted(groups, key=lambda name: (name != "every task", name)):
        lines += [f"## Of {group}", "", *groups[group]]
    return "\n".join(lines).rstrip() + "\n"


def read(model: type[BaseModel], section: Any) -> Any:
    """Return a section of conf/base with every key; null stays null."""
    return None if section is None else filled(section, model.model_validate(section))


def section(model: type[BaseModel], values: Mapping[str, Any]) -> Iterator[str]:
    """Yield heading and table of a model; ``values`` has the paths of its sections."""
    paths = ", ".join(f"`{path}`" for path in values)
    yield (
        f"### {' and '.join(dict.fromkeys(path.rpartition('.')[2] for path in values))}"
        if len(values) > 1
        else f"### {paths}"
    )
    yield cleandoc(model.__doc__ or "").split("\n\n")[0].replace("\n", " ").replace("``", "`")
    yield ""
    if len(values) > 1:
        yield f"Sections: {paths}"
        yield ""
    yield "| key | type and bounds | default | meaning |"
    yield "|---|---|---|---|"
    yield from rows(model, values)
    yield ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} is written")
