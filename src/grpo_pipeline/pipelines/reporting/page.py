"""Build the report: one HTML page that needs no other file."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jinja2 import ChoiceLoader, Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup
from plotly import graph_objects as go
from plotly.offline import get_plotlyjs
from pydantic import BaseModel

from grpo_pipeline.pipelines.reporting.forest import forest
from grpo_pipeline.statistics.answer import Answer
from grpo_pipeline.statistics.sameness import sameness_sentences

TEMPLATES = Path(__file__).with_name("templates")
# plotly.js offers by default to upload a chart to a public server; these figures may show patients.
PLOTLY_CONFIG = {"displaylogo": False, "responsive": True, "showSendToCloud": False}


@dataclass(frozen=True)
class Page:
    """Contents of a report page.

    Attributes:
        layout: the template that fills the blocks of report.html: its name, or the path of one that lies with its task.
        comparison: the comparison document.
        answer: what it says of the arm that is shown (``statistics.answer``), as plain values.
        noun: what an example of the task is called.
        configuration: the task's parameters as YAML.
        parts: what the layout names: tables, figures, pictures (PNG bytes).
    """

    layout: str | Path
    comparison: Mapping[str, Any]
    answer: Mapping[str, Any]
    noun: str
    configuration: str
    parts: Mapping[str, Any]


def render(page: Page) -> str:
    """Return the page as HTML with scripts, styles and pictures inside; every value is escaped."""
    answer = Answer.model_validate(page.answer)
    return template(page.layout).render(
        comparison=page.comparison,
        answer=answer,
        forest=forest(answer.rows),
        noun=page.noun,
        configuration=page.configuration,
        plotly_js=Markup(get_plotlyjs()),
        same=sameness_sentences(page.comparison.get("sameness", {})),
        **{name: shown(name, part) for name, part in page.parts.items()},
    )


def shown(name: str, part: Any) -> Any:
    """Return a figure as the division of its name, a picture as its source, and anything else as it is."""
    if isinstance(part, go.Figure):
        return figure_html(part, name=name.replace("_", "-"))
    return image_source(part) if isinstance(part, bytes) else part


def template(layout: str | Path) -> Template:
    """Return a page's template, which may use those of every page; every value that it shows is escaped."""
    path = TEMPLATES / layout
    loader = ChoiceLoader([FileSystemLoader(TEMPLATES), FileSystemLoader(path.parent)])
    return Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True
    ).get_template(path.name)


def image_source(png: bytes) -> str:
    """Return a picture as the text that an image element reads it from."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def figure_html(figure: go.Figure, *, name: str) -> Markup:
    """Return a figure as a division that draws itself with the page's own copy of plotly.js."""
    html = figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        include_mathjax=False,
        div_id=name,
        config=PLOTLY_CONFIG,
    )
    return Markup(html)


def configuration_text(parameters: Mapping[str, Any], task: str) -> str:
    """Return the task's part of the parameters as YAML; typed sections are written as plain values."""
    return yaml.safe_dump(
        plain(parameters.get(task, parameters)), sort_keys=False, allow_unicode=True
    )


def plain(value: Any) -> Any:
    """Return parameters as dictionaries, lists and scalars."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
