"""Execute the notebooks on what the last runs left, and store their outputs: small pictures, and no trace of the machine.

python docs/notebooks.py [read_a_run own_reward]        (needs the extra docs, and a finished run of attention and dialogue)
"""

import argparse
import base64
import io
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
COLOURS, LARGEST = 32, 600  # of a picture; pixels
PHOTOGRAPH = 25_000  # bytes from which a picture is stored as a photograph
VOLATILE = re.compile(r"<(?:Figure|matplotlib\.)[^>\n]*>|object at 0x[0-9a-f]+|\x1b\[[0-9;]*m")


def execute(file: Path) -> None:
    """Execute a notebook in its folder, and write it with its outputs."""
    notebook = nbformat.read(file, as_version=4)
    NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    ).execute()
    for number, cell in enumerate(one for one in notebook.cells if one.cell_type == "code"):
        cell.execution_count = number + 1
        cell.metadata.clear()
        cell.outputs = [tidy(output, number + 1) for output in cell.outputs if is_result(output)]
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    nbformat.validate(notebook)
    nbformat.write(notebook, file)
    print(f"{file.relative_to(ROOT)}: {file.stat().st_size:,} bytes")


def is_result(output: Any) -> bool:
    """Check that an output is a result: a value, what was printed, a picture; the log of Kedro is none."""
    if output.output_type == "stream":
        return bool(output.name == "stdout")
    return output.output_type == "execute_result" or "image/png" in output.get("data", {})


def tidy(output: Any, number: int) -> Any:
    """Make pictures small, and leave out what differs at each execution."""
    if "execution_count" in output:
        output.execution_count = number
    data = output.get("data", {})
    if "image/png" in data:
        kind, encoded = small(data.pop("image/png"))
        data.pop("text/plain", None)
        data[kind] = encoded
    if "text/html" in data:
        data.pop("text/plain", None)
    for kind in ("text/plain", "text/html"):
        if kind in data:
            data[kind] = re.sub(
                r"<style scoped>.*?</style>\n?", "", VOLATILE.sub("", data[kind]), flags=re.DOTALL
            )
    return output


def small(encoded: str) -> tuple[str, str]:
    """Reduce a picture to a width that a page shows and to few colours, or to a photograph; return its kind and content."""
    with Image.open(io.BytesIO(base64.b64decode(encoded))) as picture:
        shown = picture.convert("RGB")
    shown.thumbnail((LARGEST, LARGEST))
    stored, kind = io.BytesIO(), "image/png"
    shown.quantize(COLOURS, dither=Image.Dither.NONE).save(stored, "PNG", optimize=True)
    if stored.tell() > PHOTOGRAPH:
        stored, kind = io.BytesIO(), "image/jpeg"
        shown.save(stored, "JPEG", quality=45)
    return kind, base64.b64encode(stored.getvalue()).decode()


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute what is asked for; return the exit status."""
    names = sorted(file.stem for file in FOLDER.glob("*.ipynb"))
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; all by default"
    )
    given = parser.parse_args(arguments)
    if unknown := sorted({*given.names} - {*names}):
        parser.error(f"NAME must be one of {', '.join(names)}, got {', '.join(unknown)}")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH")))
    )
    for name in given.names or names:
        execute(FOLDER / f"{name}.ipynb")
    return 0


if __name__ == "__main__":
    sys.exit(main())
