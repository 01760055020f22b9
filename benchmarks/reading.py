"""Measure what the checks of raw data cost, as the number of rows grows.

    python benchmarks/reading.py                     (1,000 and 10,000 and 100,000 generated rows; some minutes)
    python benchmarks/reading.py --rows 1000 10000   (fewer)

Rows are written to a file, then read and checked in a process of their own, which tells its CPU seconds, and the memory at its
peak beside what it held before it read. Generated dialogues of the default; molecules of 14 to 29 heavy atoms.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import yaml
from measuring import machine

ROOT = Path(__file__).resolve().parents[1]
GROUPS = ("C", "F", "OC", "Cl", "C#N", "N(C)C", "C(=O)O", "CCO", "C(F)(F)F", "CC(C)C")


def section(task: str) -> dict[str, Any]:
    """Return the data parameters of conf/base, for rows of a user's own."""
    text = (ROOT / f"conf/base/{task}/parameters_data.yml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text)[task])


def write_dialogues(folder: Path, rows: int) -> None:
    """Write rows of as many generated personas as they need, and the stories."""
    from grpo_pipeline.tasks.dialogue.data.text_files import dump_lines

    numbers = random.Random(0)
    examples = [
        {
            "question": f"persona: i am number {n // 4}. i have {numbers.randrange(99)} books. context: hello, and how are you?\n"
            f"i am well. what did you read today, {numbers.randrange(10**6)}?",
            "answers": [f"i read book {numbers.randrange(10**6)} of mine."],
        }
        for n in range(rows)
    ]
    (folder / "examples.jsonl").write_bytes(dump_lines(list(examples)))
    (folder / "stories.jsonl").write_bytes(
        dump_lines([{"id": "a", "title": "", "text": "a baker lost a ring."}])
    )


def write_molecules(folder: Path, rows: int) -> None:
    """Write benzyl benzenes with five drawn groups; some are there twice."""
    numbers = random.Random(0)
    drawn = ([numbers.choice(GROUPS) for _ in range(5)] for _ in range(rows))
    lines = [
        f"c1c({a})c({b})cc({c})c1Cc1ccc({d})cc1{e} m{n}" for n, (a, b, c, d, e) in enumerate(drawn)
    ]
    (folder / "molecules.smi").write_text("\n".join(lines) + "\n", encoding="utf-8")


def check_dialogues(folder: Path) -> Callable[[], int]:
    """Return the check, its modules loaded."""
    from grpo_pipeline.tasks.dialogue.data.checks import check_dialogues
    from grpo_pipeline.tasks.dialogue.data.params import DialogueDataParams
    from grpo_pipeline.tasks.dialogue.pipelines.folder_dataset import DialogueFolderDataset

    params = DialogueDataParams(
        **section("dialogue")["data"] | {"source": {"kind": "jsonl"}, "root": str(folder)}
    )
    return lambda: len(
        check_dialogues(DialogueFolderDataset(filepath=str(folder)).load(), {}, params)[0]
    )


def check_molecules(folder: Path) -> Callable[[], int]:
    """Return the check, its modules loaded."""
    from grpo_pipeline.tasks.molecules.data.checks import check_molecules
    from grpo_pipeline.tasks.molecules.data.params import MoleculeDataParams
    from grpo_pipeline.tasks.text_lines import TextFile

    params = MoleculeDataParams(
        **section("molecules")["data"] | {"source": {"kind": "smiles"}, "root": str(folder)}
    )
    return lambda: len(check_molecules(TextFile(str(folder / "molecules.smi")), {}, params)[0])


WRITERS = {"dialogue": write_dialogues, "molecules": write_molecules}
CHECKS = {"dialogue": check_dialogues, "molecules": check_molecules}


def measure_here(task: str, folder: Path) -> dict[str, float]:
    """Run one check in this process and say what it took."""
    check = CHECKS[task](folder)
    before, cpu, wall = peak_mb(), time.process_time(), time.perf_counter()
    usable = check()
    taken = {
        "usable": usable,
        "cpu_seconds": time.process_time() - cpu,
        "seconds": time.perf_counter() - wall,
    }
    return taken | {"before_mb": before, "peak_mb": peak_mb()}


def peak_mb() -> float:
    """Return the highest memory of this process so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def measure(task: str, rows: int) -> dict[str, float]:
    """Write rows, and check them in a process of their own."""
    with tempfile.TemporaryDirectory() as name:
        WRITERS[task](Path(name), rows)
        command = [sys.executable, __file__, "--child", task, name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--child", nargs=2, metavar=("TASK", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.child:
        print(json.dumps(measure_here(args.child[0], Path(args.child[1]))))
        return
    print(json.dumps(machine.load() | {"rows": args.rows}))
    print(f"{'task':<10} {'rows':>8} {'usable':>8} {'CPU s':>8} {'MiB before':>11} {'MiB peak':>9}")
    for task in WRITERS:
        for rows in args.rows:
            taken = measure(task, rows)
            figures = (
                f"{taken['cpu_seconds']:>8.1f} {taken['before_mb']:>11.0f} {taken['peak_mb']:>9.0f}"
            )
            print(f"{task:<10} {rows:>8} {taken['usable']:>8.0f} {figures}", flush=True)


if __name__ == "__main__":
    main()
