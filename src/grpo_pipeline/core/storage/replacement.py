"""Replace a file or a folder in one step: a reader finds the old content or the new, never a mixture.

Order of events for a folder: write ``<folder>.partial-<pid>``, flush it to disk, rename the old folder to
``<folder>.previous``, rename the new one into place, remove the old. A process killed between the two renames leaves only
``.previous``, which ``find_complete`` returns. One writer per folder at a time.
"""

import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty partial folder; on leaving, put it in place of ``folder``. On an error the old folder stays.

    Remains of writers that were killed are removed first. The parent folder is created.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(f"{glob.escape(folder.name)}.partial-*"):
        shutil.rmtree(left, ignore_errors=True)
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    try:
        partial.mkdir()
        yield partial
        for path in partial.rglob("*"):
            _flush(path)
        _flush(partial)
        _swap(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def replace_file(path: Path, content: bytes) -> None:
    """Put a file with this content in place of the old one, which stays whole where the disk refuses the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _flush(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def put_in_place(ready: Path, target: Path) -> None:
    """Put a complete file or folder in the place of another; both are on one file system.

    A file keeps its first name, too, where the file system knows links: a reader that was given that name still finds it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if ready.is_dir():
        for path in ready.rglob("*"):
            _flush(path)
        _flush(ready)
        _swap(ready, target)
        return
    _flush(ready)
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    partial.unlink(missing_ok=True)
    try:
        try:
            os.link(ready, partial)
        except OSError:
            ready.replace(target)
        else:
            partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    _flush(target.parent)


def find_complete(folder: Path) -> Path | None:
    """Return the folder that holds the last complete content, or None."""
    return next((path for path in (folder, _previous(folder)) if path.is_dir()), None)


def _swap(partial: Path, folder: Path) -> None:
    previous = _previous(folder)
    if folder.is_dir():
        # Only now: while ``folder`` is missing, ``previous`` is the last complete content.
        shutil.rmtree(previous, ignore_errors=True)
        folder.rename(previous)
    try:
        partial.rename(folder)
    except OSError:
        if previous.is_dir() and not folder.exists():
            previous.rename(folder)
        raise
    _flush(folder.parent)
    shutil.rmtree(previous, ignore_errors=True)


def _previous(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.previous")


def remove_partials(place: Path) -> None:
    """Remove what killed writers left of a file or folder, also in its versions below; nobody may be writing it."""
    for pattern in (f"{place.name}.partial-*", f".{place.name}.partial-*"):
        for path in [*place.parent.glob(pattern), *place.glob(f"*/{pattern}")]:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
