"""Nodes of the attention task's data pipeline; the checks and the arithmetic are in ``tasks.attention``."""

from collections.abc import Iterator

import pandas as pd

from grpo_pipeline.runs.progress import track
from grpo_pipeline.tasks.attention.data import examples as build
from grpo_pipeline.tasks.attention.data import manifest
from grpo_pipeline.tasks.attention.data import splits as splitting
from grpo_pipeline.tasks.attention.data.clinical import Description
from grpo_pipeline.tasks.attention.data.examples import ExampleChunk
from grpo_pipeline.tasks.attention.data.image_folder import ImageChunk, ImageFolder
from grpo_pipeline.tasks.attention.data.params import DataParams, SplitParams
from grpo_pipeline.tasks.attention.data.phantom.generate import (
    count_cores,
    empty_chunk,
    generate_cores,
    phantom_chunks,
)
from grpo_pipeline.tasks.attention.data.phantom.patients import PhantomParams


def generate_phantom(
    phantom: PhantomParams, data: DataParams
) -> Iterator[tuple[ImageChunk, dict[str, object]]]:
    """Yield the generated cores chunk by chunk, each with a summary of what is written so far.

    With another ``source`` one empty chunk is yielded, which writes nothing.
    """
    if data.source != "phantom":
        yield empty_chunk(), {"source": data.source, "cores": 0, "complete": True}
        return
    total, done = count_cores(phantom), 0
    cores = track(generate_cores(phantom), "generate phantom", total=total)
    for chunk in phantom_chunks(cores, chunk_size=phantom.chunk_size):
        done += len(chunk.rows)
        yield (
            chunk,
            {
                "source": "phantom",
                "cores": done,
                "complete": chunk.is_last,
                "params": phantom.model_dump(mode="json"),
            },
        )


def check_manifest(
    data: DataParams, raw: ImageFolder, generated: dict[str, object]
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, object]]:
    """Check every manifest row and its files; see ``tasks.attention.data.manifest.check_manifest``."""
    return manifest.check_manifest(raw, generated, data)


def split_cores(split: SplitParams, data: DataParams, checked: pd.DataFrame) -> splitting.Splits:
    """Divide the cores by group; see ``tasks.attention.data.splits.split_cores``."""
    return splitting.split_cores(
        manifest.parse_checked(checked, data), split, classes=data.label.scheme
    )


def build_examples(
    data: DataParams, raw: ImageFolder, checked: pd.DataFrame, splits: splitting.Splits
) -> Iterator[tuple[ExampleChunk, Description]]:
    """Yield the model input chunk by chunk; see ``tasks.attention.data.examples.stream_examples``."""
    yield from build.stream_examples(raw, checked, splits, data)
