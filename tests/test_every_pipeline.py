"""Every registered pipeline runs in `smoke`: none is there to be looked at alone."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from kedro_processes import run
from parameter_models import read_parameters

from grpo_pipeline.pipeline_registry import PIPELINES, SHORT, register_pipelines
from grpo_pipeline.tasks import BUILT_IN, find_task

ROOT = Path(__file__).resolve().parents[1]
REGISTERED = register_pipelines()
WHOLE = ("data", "train", "evaluate")
# A stage before what reads it; what needs nothing of an earlier run comes first, in a project without any of its task. Names that
# stand together are one command: what takes long in a short run is to start it, and to prepare the data and the stages.
COMMANDS = ["step,data", "train,evaluate,gradient_flow,reward_audit", "compare", "predict,cross_validate"]
ORDER = ",".join(COMMANDS).split(",")
# Those that take longest run, in `smoke` too, where what they leave is looked at; the project here holds such a run of attention.
ELSEWHERE = {
    **dict.fromkeys(("attention_data", "attention_train", "attention_evaluate"), "test_end_to_end.py"),
    "attention_compare": "test_end_to_end_compare.py",
    "attention_cross_validate": "test_end_to_end_cross_validation.py",
    "dialogue_compare": "test_end_to_end_dialogue_compare.py",
}
HERE = [
    (task, ",".join(parts))
    for task in BUILT_IN
    for command in COMMANDS
    if (parts := [part for part in command.split(",") if f"{task}_{part}" not in ELSEWHERE])
]
# One of these commands works on another task, too, which is finished first.
BESIDE = {("molecules", COMMANDS[1]): "attention_evaluate"}
# A result that each leaves, below the layers of the data.
LEFT = {
    "step": "07_model_output/*/grpo/probe_table.csv/*/probe_table.csv",
    "data": "05_model_input/*/examples",
    "train": "06_models/*/grpo/model/*",
    "evaluate": "08_reporting/*/report.html",
    "gradient_flow": "08_reporting/*/grpo/gradient_flow.csv",
    "reward_audit": "08_reporting/*/reward_audit/result.json",
    "compare": "08_reporting/*/compare/result.json/*/result.json",
    "cross_validate": "08_reporting/*/cross_validation/result.json/*/result.json",
    "predict": "07_model_output/*/predict/report.json",
}


def test_no_registered_pipeline_is_left_out() -> None:
    """A task from end to end is its three stages; a name without a task is that of the first one."""
    first = next(iter(BUILT_IN))
    again = {"__default__": first, **{name: f"{first}_{name}" for name in SHORT}}
    parts = {f"{task}_{part}" for task in BUILT_IN for part in ORDER}
    assert {*BUILT_IN, *parts, *again} == REGISTERED.keys()
    assert [name for name, other in again.items() if REGISTERED[name] is not REGISTERED[other]] == []
    assert {*ORDER} == {*PIPELINES}
    stages = {task: [REGISTERED[f"{task}_{name}"] for name in WHOLE] for task in BUILT_IN}
    # Beside them the whole reads back what no stage reads.
    unlike = [
        task
        for task, found in stages.items()
        if {*sum(found[1:], start=found[0]).nodes}
        != {node for node in REGISTERED[task].nodes if not node.name.endswith(".read_results")}
    ]
    assert (unlike, LEFT.keys()) == ([], {*PIPELINES})
    for name, file in ELSEWHERE.items():
        first_task, _, short = name.partition("_")
        words = {name, short} if first_task == first else {name}
        text = (ROOT / "tests" / file).read_text("utf-8")
        assert any(f'"{word}"' in text and re.search(rf'"--pipelines", ("{word}"|part\b)', text) for word in words), name


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, copy_of_run: Callable[[Path], Path]) -> Path:
    """One project in which each pipeline finds what those before it have left; attention has run, no other task has."""
    return copy_of_run(tmp_path_factory.mktemp("every") / "project")


@pytest.mark.parametrize(("task", "command"), HERE)
def test_a_registered_pipeline_runs(project: Path, task: str, command: str) -> None:
    spec, parts = find_task(task).with_stages_of(read_parameters(ROOT / "conf", "smoke")[task]), command.split(",")
    trained = () if f"{task}_train" in ELSEWHERE else ("training", *(f"{stage}.training" for stage in spec.stages))
    lengths = [f"{task}.{name}.max_steps=2" for name in trained]
    left = {part: f"data/{LEFT[part]}".replace("*", f"{task}_smoke", 1) for part in parts}
    before, page = files_of(project, left), project / "data/08_reporting/attention_smoke/report.html"
    other, page_before = BESIDE.get((task, command)), page.stat().st_mtime_ns if page.exists() else 0
    names = [*(f"{task}_{part}" for part in parts), *([other] if other else [])]
    params = ",".join([*lengths, f"{task}.evaluation.resamples=50"])
    done = run(project, "--pipelines", ",".join(names), "--params", params, GRPO_PROGRESS="")
    assert done.returncode == 0, done.stderr[-3000:]
    finished = re.findall(r"^(.+): 100%, .*done$", done.stderr, re.MULTILINE)  # a line for each task
    assert sorted(", ".join(finished).split(", ")) == sorted(names)
    found = files_of(project, left)
    assert all(found.values())
    assert [part for part in parts if found[part] == before[part]] == []
    if other:
        # The page of the first task is in place, and said, before anything of the second was begun.
        model = max((project / "data/06_models/molecules_smoke/eager/checkpoint").iterdir())
        last = project / "data/08_reporting/molecules_smoke/report.html"
        times = [page_before, *(path.stat().st_mtime_ns for path in (page, model, last))]
        assert times == sorted({*times})
        assert done.stdout.index("attention_smoke/report.html") < done.stdout.index("molecules_smoke/report.html")


def files_of(project: Path, left: dict[str, str]) -> dict[str, dict[Path, int]]:
    """Return the results of each part, with the times at which they were written."""
    return {part: {path: path.stat().st_mtime_ns for path in project.glob(pattern)} for part, pattern in left.items()}


EXPORTED = [task for task in BUILT_IN if "load_exported" in (ROOT / f"docs/{task}/README.md").read_text("utf-8")]


@pytest.mark.parametrize("task", EXPORTED)
def test_the_block_of_the_document_that_reads_a_trained_model_runs(project: Path, task: str) -> None:
    text = (ROOT / f"docs/{task}/README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if "load_exported" in block]
    model = sorted(project.glob(f"data/06_models/{task}_smoke/grpo/model/*/model"))[-1]
    shown = f"data/06_models/{task}/grpo/model/<version>/model"
    assert shown in block
    done = run(project, code=block.replace(shown, str(model)))
    assert done.returncode == 0, done.stderr[-3000:]


def test_what_the_second_of_several_tasks_would_refuse_is_refused_first(project: Path) -> None:
    pages = [project / f"data/08_reporting/{task}_smoke/report.html" for task in ("attention", "molecules")]
    before = [page.stat().st_mtime_ns for page in pages]
    names = "molecules_train,molecules_evaluate,attention_evaluate"
    done = run(project, "--pipelines", names, "--params", "molecules.evaluation.resamples=0")
    assert (done.returncode, [page.stat().st_mtime_ns for page in pages]) == (1, before)
    assert "molecules.evaluation.resamples must be" in done.stderr
