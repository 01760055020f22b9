"""Build the report: an HTML page that needs no other file."""

import base64
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml
from jinja2 import ChoiceLoader, Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image
from pydantic import BaseModel

from grpo_pipeline.datasets.figure import SVG
from grpo_pipeline.pipelines.reporting.figures import GRID, INK, colour_of
from grpo_pipeline.pipelines.reporting.forest import forest
from grpo_pipeline.pipelines.reporting.glossary import explain, shared_terms
from grpo_pipeline.statistics.answer import Answer
from grpo_pipeline.statistics.sameness import sameness_sentences
from grpo_pipeline.tasks import find_task

LARGE_PICTURE, QUALITY = 100_000, 75  # bytes; of 100
TEMPLATES = Path(__file__).with_name("templates")
SORT_SCRIPT = (TEMPLATES / "sort.js").read_text(encoding="utf-8")
# The page's policy allows this script and no other.
SORT_DIGEST = base64.b64encode(sha256(SORT_SCRIPT.encode("utf-8")).digest()).decode("ascii")


@dataclass(frozen=True)
class Page:
    """Contents of a report page.

    Attributes:
        layout: the template that fills the blocks of report.html: its name, or the path of a task's own template.
        comparison: the comparison document.
        answer: the answer about the shown arm (``statistics.answer``), as plain values.
        noun: the word for an example of the task.
        configuration: the task's parameters as YAML.
        parts: the values that the layout names: tables, drawings (SVG bytes, several by name), pictures (PNG bytes).
    """

    layout: str | Path
    comparison: Mapping[str, Any]
    answer: Mapping[str, Any]
    noun: str
    configuration: str
    parts: Mapping[str, Any]


def render(page: Page) -> str:
    """Render the page as HTML, with styles and pictures inside; its only script sorts tables, and every value is escaped."""
    answer = Answer.model_validate(page.answer)
    terms = shared_terms() | dict(find_task(answer.task).words.terms)
    html = template(page.layout).render(
        comparison=page.comparison,
        answer=answer,
        forest=forest(answer.table, one_scale=bool(answer.others)),
        colours=colour_of(
            page.comparison["arms"],
            control=page.comparison["control"],
            shown=answer.arm,
        ),
        noun=page.noun,
        configuration=page.configuration,
        same=sameness_sentences(page.comparison.get("sameness", {})),
        reward_curve=first_curve(page.parts.get("learning_curves", {})),
        sort_script=Markup(SORT_SCRIPT),
        sort_digest=SORT_DIGEST,
        **{name: shown(part) for name, part in page.parts.items()},
    )
    return explain(html, terms)


def first_curve(curves: Mapping[str, bytes]) -> Markup | None:
    """Choose the panel of the reward if it was measured, else the first panel; None without panels."""
    return inline_svg(curves[min(curves)]) if curves else None


def shown(part: Any) -> Any:
    """Prepare a part for the page: a drawing as markup, several in a grid, a picture as its source, other values unchanged."""
    if isinstance(part, Mapping) and part and all(isinstance(one, bytes) for one in part.values()):
        return Markup('<div class="drawings">{}</div>').format(
            Markup("").join(inline_svg(part[name]) for name in sorted(part))
        )
    if isinstance(part, bytes):
        return inline_svg(part) if b"<svg" in part[:1000] else image_source(part)
    return part


def svg_bytes(figure: Figure) -> bytes:
    """Return a figure as an SVG file, the same bytes for the same figure."""
    file = io.BytesIO()
    with rc_context(SVG):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return file.getvalue()


def inline_svg(drawing: bytes) -> Markup:
    """Return a drawing of Matplotlib as an element of the page, in the colours of the page's theme.

    Every text in it has been escaped by Matplotlib.
    """
    text = drawing.decode("utf-8")
    text = re.sub(r"(?s)<metadata>.*?</metadata>", "", text[text.index("<svg") :])
    for colour, named in (
        (INK, "currentColor"),
        (GRID, "var(--line)"),
        ("#000000", "currentColor"),
    ):
        text = re.sub(colour, named, text, flags=re.IGNORECASE)
    return Markup(text)


def template(layout: str | Path) -> Template:
    """Load a page's template, which may use the shared templates; every value that it shows is escaped."""
    path = TEMPLATES / layout
    loader = ChoiceLoader([FileSystemLoader(TEMPLATES), FileSystemLoader(path.parent)])
    return Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True
    ).get_template(path.name)


def image_source(png: bytes) -> str:
    """Encode a picture for an image element; a large picture as WebP, which is much smaller."""
    kind, data = ("png", png) if len(png) <= LARGE_PICTURE else ("webp", as_webp(png))
    return f"data:image/{kind};base64," + base64.b64encode(data).decode("ascii")


def as_webp(png: bytes) -> bytes:
    """Return a picture, animated or not, as WebP."""
    file = io.BytesIO()
    with Image.open(io.BytesIO(png)) as picture:
        if not getattr(picture, "is_animated", False):
            picture.save(file, "WEBP", quality=QUALITY)
            return file.getvalue()
        # The first frame of an animated PNG may be a still for viewers without animations, and no part of it.
        shown = [
            (frame.convert("RGB"), frame.info.get("duration", 0)) for frame in frames_of(picture)
        ]
    (first, _), *others = shown
    times = [int(duration) for _, duration in shown]
    rest = [frame for frame, _ in others]
    first.save(
        file, "WEBP", quality=QUALITY, save_all=True, append_images=rest, duration=times, loop=0
    )
    return file.getvalue()


def frames_of(picture: Image.Image) -> Iterator[Image.Image]:
    """Yield the frames that an animated picture shows, in their order."""
    begin = 1 if getattr(picture, "default_image", False) else 0
    for number in range(begin, getattr(picture, "n_frames", 1)):
        picture.seek(number)
        yield picture


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
