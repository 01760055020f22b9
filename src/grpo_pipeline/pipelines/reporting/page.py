"""Everything that was computed -> one self-contained HTML page."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup
from plotly import graph_objects as go
from plotly.offline import get_plotlyjs
from pydantic import BaseModel

from grpo_pipeline.pipelines.reporting.tables import Table

# plotly.js offers by default to upload a chart to a public server; these figures may show patients.
PLOTLY_CONFIG = {"displaylogo": False, "responsive": True, "showSendToCloud": False}


@dataclass(frozen=True)
class Page:
    """What the template shows.

    Attributes:
        comparison: the comparison document.
        arms: metrics of the arms with differences.
        baselines: metrics of the other point rules.
        data: counts and digests of the data.
        quarantine: the refused rows.
        learning_curves: figure.
        roc: figure.
        image_sheet: PNG bytes.
        configuration: the task's parameters as YAML.
    """

    comparison: Mapping[str, Any]
    arms: Table
    baselines: Table
    data: Table
    quarantine: Table
    learning_curves: go.Figure
    roc: go.Figure
    image_sheet: bytes
    configuration: str


def render(page: Page) -> str:
    """Return the page as HTML with scripts, styles and pictures inside; every value is escaped."""
    return template("report.html").render(
        page=page,
        comparison=page.comparison,
        plotly_js=Markup(get_plotlyjs()),
        learning_curves=figure_html(page.learning_curves, name="learning-curves"),
        roc=figure_html(page.roc, name="roc"),
        image_sheet=image_source(page.image_sheet),
    )


def template(name: str) -> Template:
    """Return a page's template; every value that it shows is escaped."""
    loader = PackageLoader("grpo_pipeline.pipelines.reporting")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True).get_template(name)


def image_source(png: bytes) -> str:
    """Return a picture as the text that an image element reads it from."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def figure_html(figure: go.Figure, *, name: str) -> Markup:
    """Return a figure as a division that draws itself with the page's own copy of plotly.js."""
    html = figure.to_html(full_html=False, include_plotlyjs=False, include_mathjax=False, div_id=name, config=PLOTLY_CONFIG)
    return Markup(html)


def configuration_text(parameters: Mapping[str, Any], task: str) -> str:
    """Return the task's part of the parameters as YAML; typed sections are written as plain values."""
    return yaml.safe_dump(plain(parameters.get(task, parameters)), sort_keys=False, allow_unicode=True)


def plain(value: Any) -> Any:
    """Return parameters as dictionaries, lists and scalars."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
