"""List the files of masks that no row names, and warn of them."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder
from grpo_pipeline.tasks.attention.data.params import DataParams
from grpo_pipeline.tasks.attention.data.planes import SEVERAL_FILES, split_address, split_key
from grpo_pipeline.tasks.attention.data.row_paths import read_paths
from grpo_pipeline.tasks.attention.data.table_columns import PATHS
from grpo_pipeline.tasks.text_lines import composed

logger = logging.getLogger(__name__)


def unnamed_masks(raw: ImageFolder, params: DataParams) -> dict[str, list[str]]:
    """List the mask files that no row names, per kind of mask: they may be outlines of other images.

    They are looked for beside those that are named, in folders that hold no image of the data set.
    """
    named: dict[str, set[str]] = {name: set() for name in PATHS}
    for line in raw.manifest.itertuples(index=False, name=None):
        cells = dict(zip(raw.manifest.columns, line, strict=True))
        paths = read_paths(cells, params.columns, params.folders, may_be_empty=PATHS)
        for name, path in paths.items():
            # An HDF5 file holds its masks under keys; unnamed keys are not searched.
            files = (split_address(file)[0] for file in path.split(SEVERAL_FILES))
            named[name] |= {file for file in files if file and not split_key(file)[1]}
    taken = set().union(*named.values())
    folders_of_images = {str(PurePosixPath(file).parent) for file in named["image"]}
    found = {}
    for name in PATHS[1:]:
        folders = {str(PurePosixPath(file).parent) for file in named[name]} - folders_of_images
        endings = {PurePosixPath(file).suffix.lower() for file in named[name]}
        there = {
            composed(f"{folder}/{path.name}".removeprefix("./"))
            for folder in folders
            if (raw.root / folder).is_dir()
            for path in (raw.root / folder).iterdir()
            if path.suffix.lower() in endings and path.is_file()
        }
        found[name] = sorted(there - taken)
    return found


def warn_of_unnamed(unnamed: Mapping[str, Sequence[str]]) -> None:
    """Log the mask files that no row names."""
    for name, files in unnamed.items():
        if files:
            logger.warning(
                "%d files beside those of %s belong to no row of the manifest, such as %r: are they outlines of other images?",
                *(len(files), name, files[0]),
            )
