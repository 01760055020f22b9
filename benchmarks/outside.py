"""Which images does a trained model call unlike those of its training?

    python benchmarks/outside.py                                   (arm grpo of conf/base; three minutes or so on one core)
    python benchmarks/outside.py --other busi                      (and the images of conf/busi: another organ)
    python benchmarks/outside.py --env busi --other base --json

The model is the newest one of the arm, as `kedro run` has exported it; its limit was fitted to the validation split when it was
exported. Printed is the share that is outside of the held-out images as they are (the test split), and of the same images after
each change below, at the size in which they are stored. Masks stay as they are, but turn with their image; so nothing is flagged
for the lack of a mask. The images of another environment keep the masks that their manifest has.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from PIL import Image, ImageDraw

from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder
from grpo_pipeline.tasks.attention.data.params import DataParams
from grpo_pipeline.tasks.attention.data.planes import Plane
from grpo_pipeline.tasks.attention.data.splits import Splits
from grpo_pipeline.tasks.attention.inference.manifest import check_predict_manifest
from grpo_pipeline.tasks.attention.inference.params import PredictParams
from grpo_pipeline.tasks.attention.inference.predictor import Predictor, build_predictor

ROOT = Path(__file__).resolve().parents[1]
OTHERS = 400
"""Images of another environment at most, spread over its manifest."""
Change = Callable[[np.ndarray, np.random.Generator], np.ndarray]
Share = dict[str, Any]


def own_noise(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return independent pixels with the mean and the spread of the image."""
    return rng.normal(image.mean(), image.std(), image.shape)


def gradient(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return grey levels that rise evenly in some direction."""
    angle = rng.uniform(0, 2 * np.pi)
    rows, columns = np.mgrid[-1 : 1 : image.shape[0] * 1j, -1 : 1 : image.shape[1] * 1j]
    return 127.5 + 90 * (np.sin(angle) * rows + np.cos(angle) * columns)


def shapes(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return even areas with sharp edges over a gradient, as in a photograph of things."""
    height, width = image.shape
    picture = Image.fromarray(np.clip(gradient(image, rng), 0, 255).astype(np.uint8))
    for _ in range(12):
        x, y, size = (
            rng.uniform(0, width),
            rng.uniform(0, height),
            rng.uniform(0.05, 0.3) * min(height, width),
        )
        draw = (
            ImageDraw.Draw(picture).ellipse
            if rng.random() < 0.5
            else ImageDraw.Draw(picture).rectangle
        )
        draw((x - size, y - size, x + size, y + size), fill=int(rng.integers(0, 256)))
    return np.asarray(picture)


def blurred(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the image as an eighth of its pixels would show it."""
    del rng
    height, width = image.shape
    small = Image.fromarray(image).resize(
        (max(1, width // 8), max(1, height // 8)), Image.Resampling.BOX
    )
    return np.asarray(small.resize((width, height), Image.Resampling.BILINEAR))


def speckled(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the image with noise of its own spread added."""
    return image + rng.normal(0, image.std(), image.shape)


CHANGES: dict[str, Change] = {
    "noise, uniform": lambda image, rng: rng.integers(0, 256, image.shape),
    "noise, mean 128, spread 40": lambda image, rng: rng.normal(128, 40, image.shape),
    "noise, mean and spread of the image": own_noise,
    "its pixels in any order": lambda image, rng: rng.permutation(image.ravel()).reshape(
        image.shape
    ),
    "inverted": lambda image, _: 255 - image.astype(int),
    "all black": lambda image, _: np.zeros(image.shape),
    "all white": lambda image, _: np.full(image.shape, 255),
    "gradient": gradient,
    "shapes with sharp edges": shapes,
    "blurred": blurred,
    "noise added": speckled,
    "half the contrast": lambda image, _: image.mean() + (image - image.mean()) / 2,
    "mirrored": lambda image, _: image[:, ::-1],
    "upside down": lambda image, _: image[::-1],
    "turned by 90 degrees": lambda image, _: np.rot90(image),
}
TURNS = ("mirrored", "upside down", "turned by 90 degrees")


@dataclass(frozen=True)
class Changed(ImageFolder):
    """A data root whose images are changed when they are read; masks turn with them."""

    kind: str
    number: int
    seed: int

    def read_plane(self, relpath: str, *, as_mask: bool) -> Plane:
        """Read a plane and change it."""
        plane = super().read_plane(relpath, as_mask=as_mask)
        if as_mask and self.kind not in TURNS:
            return plane
        values = np.asarray(plane.values) if as_mask else grey(plane.values)
        changed = CHANGES[self.kind](values, np.random.default_rng([self.seed, self.number]))
        return replace(plane, values=np.ascontiguousarray(changed) if as_mask else as_grey(changed))


def grey(values: np.ndarray) -> np.ndarray:
    """Return the levels of an 8-bit image, which alone this benchmark changes."""
    if values.dtype != np.uint8:
        raise ValueError(f"images must be stored with 8 bits, got {values.dtype}; convert them")
    return values


def as_grey(values: np.ndarray) -> np.ndarray:
    """Return rounded and clipped levels."""
    return np.ascontiguousarray(np.clip(np.round(values), 0, 255).astype(np.uint8))


@dataclass(frozen=True)
class Images:
    """The images of an environment as prediction reads them."""

    raw: ImageFolder
    rows: pd.DataFrame

    def changed(
        self, kind: str | None, *, seed: int
    ) -> Iterator[tuple[ImageFolder, dict[str, Any]]]:
        """Yield every image with its row."""
        for number, row in enumerate(self.rows.to_dict("records")):
            yield (
                self.raw
                if kind is None
                else Changed(**vars(self.raw), kind=kind, number=number, seed=seed),
                row,
            )


def load(
    env: str, *, arm: str, predictor: Predictor | None = None
) -> tuple[Predictor, Images, Splits | None]:
    """Load an environment's newest model, unless another is given, its images and its splits."""
    with KedroSession.create(project_path=ROOT, env=env) as session:
        context = session.load_context()
        params = PredictParams.model_validate(context.params["attention"]["predict"])
        catalog = context.catalog
        own = predictor or build_predictor(
            catalog.load("attention.predict.models").load(arm, parameter="--arm"), name=arm
        )
        raw = catalog.load("attention.predict.raw")
        data = DataParams.model_validate(context.params["attention"]["data"])
        rows, _, _ = check_predict_manifest(raw, params, data, own.rules)
        return own, Images(raw, rows), None if predictor else catalog.load("attention.splits")


def share(predictor: Predictor, images: Iterator[tuple[ImageFolder, dict[str, Any]]]) -> Share:
    """Return how many images there are, the share that is outside, and how often each group of statistics is beyond."""
    judgements = [predictor.predict(raw, row, seed=0, n_samples=1).judgement for raw, row in images]
    found = [judgement for judgement in judgements if judgement is not None]
    reasons = [
        reason.split(" times")[0].rsplit(" ", 1)[0]
        for one in found
        for reason in one.why.split("; ")
        if " times" in reason
    ]
    return {
        "images": len(found),
        "outside": float(np.mean([one.is_outside for one in found])),
        "distance": float(np.median([one.distance for one in found])),
        "named": {
            name: reasons.count(name) / len(found)
            for name in sorted(set(reasons), key=reasons.count, reverse=True)
        },
    }


def commit() -> str:
    """Return the commit of the working tree, marked where files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=7"]
    return (
        subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        or "unknown"
    )


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return the shares by kind of image, and what the model was fitted on."""
    predictor, images, splits = load(args.env, arm=args.arm)
    if not predictor.can_doubt or predictor.familiarity is None or splits is None:
        raise SystemExit(
            f"error: the model of {args.arm} must know its training images, got one that does not; export it again"
        )
    test = Images(images.raw, images.rows[images.rows["core_id"].isin(splits["test"])])
    some = Images(images.raw, test.rows.iloc[: args.images])
    shares = {"held-out": share(predictor, test.changed(None, seed=args.seed))}
    shares |= {kind: share(predictor, some.changed(kind, seed=args.seed)) for kind in CHANGES}
    for other in args.other:
        _, unlike, _ = load(other, arm=args.arm, predictor=predictor)
        spread = np.unique(np.linspace(0, len(unlike.rows) - 1, OTHERS).round().astype(int))
        some = Images(unlike.raw, unlike.rows.iloc[spread])
        shares[f"images of conf/{other}"] = share(predictor, some.changed(None, seed=args.seed))
    told = predictor.familiarity.told
    fitted = {
        name: getattr(told, name) for name in ("trained_on", "held_out", "clusters", "false_alarms")
    }
    return {
        "env": args.env,
        "arm": args.arm,
        "seed": args.seed,
        "commit": commit(),
        "fitted": fitted,
        "shares": shares,
    }


def main(arguments: list[str]) -> int:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(
        description="Shares of images that a trained model calls outside, by kind."
    )
    parser.add_argument("--env", default="base", help="Kedro environment of the model")
    parser.add_argument("--arm", default="grpo", help="whose newest model")
    parser.add_argument(
        "--other",
        action="append",
        default=[],
        help="environment whose images are of another kind; again for more",
    )
    parser.add_argument(
        "--images",
        type=int,
        default=120,
        help="held-out images that are changed; all of them are judged unchanged",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the noise")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(arguments)
    bootstrap_project(ROOT)
    found = measure(args)
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    told = found["fitted"]
    print(
        f"{found['arm']} of conf/{found['env']}, {told['trained_on']} training and {told['held_out']} validation images of "
        f"{told['clusters']} clusters, false alarms at most {told['false_alarms']:.3f} expected; seed {found['seed']}, "
        f"commit {found['commit']}\n\n| images | n | outside | median distance | named as reason |\n|---|---|---|---|---|"
    )
    for kind, row in found["shares"].items():
        named = ", ".join(f"{name} {part:.2f}" for name, part in list(row["named"].items())[:3])
        print(
            f"| {kind} | {row['images']} | {row['outside']:.3f} | {row['distance']:.1f} | {named} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
