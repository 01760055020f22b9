"""The command line imports nothing that takes long before a node runs.

Counted are imported modules, not seconds: CPU time depends on what else the machine does.
"""

import copy
import json
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest
import yaml
from kedro.pipeline import Node, Pipeline
from kedro.validation.type_extractor import TypeExtractor
from kedro_processes import clean_environ
from parameter_models import read_parameters

from grpo_pipeline.errors import OWN, is_expected
from grpo_pipeline.pipeline_registry import PIPELINES, LazyPipeline, register_pipelines
from grpo_pipeline.pipelines.of_task import task_pipelines
from grpo_pipeline.pipelines.params import sections
from grpo_pipeline.runs.executor import ExecutorParams
from grpo_pipeline.tasks import BUILT_IN, find_task

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {"IPython", "kedro_datasets", "matplotlib", "mlflow", "pandas", "rdkit", "scipy", "sklearn", "torch", "transformers"}
REGISTERED = register_pipelines()
SHOWN = ("--version", "run --help", "registry list")
REFUSED = {
    "--params atention.training.epochs=3": "did you mean attention?",
    "--params attention_foldr=mine": "did you mean attention_folder?",
    "--params attention.training.group_size=1": "attention.training.group_size must be greater than or equal to 2, got 1",
    "--pipelines molecules --params molecules.training.epochs=0": "must be greater than or equal to 1, got 0",
    "--pipelines dialogue_train --params dialogue.reward_pol.workers=1": "did you mean dialogue.reward_pool?",
    "--params dialogue.rewards.pool.workers=1": "python -m grpo_pipeline.migrate",
    "--params seed=abc": "error: seed must be a whole number of at least 0, got 'abc'; 0 is the default",
    "--params attention.grpo.algorithm.losses.kl.weight=high": (
        "losses.kl.weight must be a number, or a schedule such as {kind: linear, "
    ),
    "--params threads=0": "threads must be a whole number",
    "--params data_folder=a": "must be a parameter of this project",
    "--pipelines atention": "Failed to find the pipeline named 'atention'",
}
# Runs the commands one after the other, and says how each ended and what the first to need it has imported.
COMMANDS = """
import contextlib, io, json, sys
import yaml
from kedro.framework.cli import main
yaml.SafeLoader = yaml.CSafeLoader  # each command reads all files of the configuration
before = set()
for line in json.load(sys.stdin):
    sys.argv, code, said = ["kedro", *line.split()], 0, (io.StringIO(), io.StringIO())
    with contextlib.redirect_stdout(said[0]), contextlib.redirect_stderr(said[1]):
        try:
            main()
        except SystemExit as end:
            code = end.code
    found = {name.partition(".")[0] for name in sys.modules}
    print(json.dumps([code or 0, *(text.getvalue() for text in said), sorted(found - before)]))
    before |= found
"""


@pytest.fixture(scope="module")
def ended() -> dict[str, tuple[int, str, str, set[str]]]:
    """How each command ended: its status, what it said, and the packages that no command before it has imported."""
    lines = [*SHOWN, *(f"run --env smoke {line}" for line in REFUSED)]
    given = {"input": json.dumps(lines), "capture_output": True, "text": True, "timeout": 300, "check": False}
    done = subprocess.run([sys.executable, "-c", COMMANDS], cwd=ROOT, env=clean_environ(), **given)
    assert done.returncode == 0, done.stderr
    answers = map(json.loads, done.stdout.splitlines())
    return {line: (code, said, wrong, set(found)) for line, (code, said, wrong, found) in zip(lines, answers, strict=True)}


def test_functions_that_reward_processes_call_import_neither_torch_nor_pandas() -> None:
    """Each process imports them anew: a second and more for every arm and trial."""
    chemistry = ("logp", "qed", "accessibility", "size", "wanted", "forbidden")
    scores = ("f1", "rouge", "bleu", "exact_match", "number", "pattern", "overlong", "repetition")
    modules = [f"tasks.molecules.rewards.{name}" for name in chemistry] + [f"tasks.dialogue.scores.{name}" for name in scores]
    lines = [*(f"import grpo_pipeline.{name}" for name in modules), "import sys", "print(*sys.modules)"]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True, timeout=120)
    assert {"torch", "pandas"}.isdisjoint(done.stdout.split())


@pytest.mark.parametrize("line", SHOWN)
def test_help_version_and_the_list_of_pipelines_import_nothing_heavy(ended, line: str) -> None:
    code, said, _, found = ended[line]
    assert (code, found & HEAVY) == (0, set())
    assert line != SHOWN[0] or found >= {"grpo_pipeline", "kedro"}
    assert line != SHOWN[2] or yaml.safe_load(said) == sorted(REGISTERED)


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_wrong_on_the_command_line_is_said_before_anything_heavy_is_imported(ended, line: str) -> None:
    code, said, wrong, found = ended[f"run --env smoke {line}"]
    assert (code, said, found & HEAVY) == (1, "", set())
    assert REFUSED[line] in wrong


def test_the_specs_declare_what_the_nodes_read() -> None:
    asked = TypeExtractor(REGISTERED).extract_types_from_pipelines()
    base = read_parameters(ROOT / "conf", "base")
    specs = {task: find_task(task).with_stages_of(base[task]) for task in BUILT_IN}
    declared = {f"{task}.{name}": type_ for task, spec in specs.items() for name, type_ in sections(spec).items()}
    declared["executor"] = ExecutorParams  # of every task
    # Sections of an arm's own are read by the task itself, not as the input of a node.
    own = {f"{task}.{arm}.{name}" for task, spec in specs.items() for arm, names in spec.own.items() for name in names}
    # Whether an optional stage is there depends on the parameters that were read last.
    stages = [f"{task}.{stage}" for task, spec in specs.items() for stage in spec.stages]
    own |= {f"{stage}.{name}" for stage in stages for name in ("algorithm", "training")}
    assert asked == {path: type_ for path, type_ in declared.items() if path in asked or path not in own}


@pytest.mark.parametrize("task", BUILT_IN)
def test_the_names_of_pipelines_are_those_that_are_built(task: str) -> None:
    assert task_pipelines(find_task(task)).keys() == {task, *(f"{task}_{name}" for name in PIPELINES)}


def test_a_pipeline_is_built_once_and_is_like_any_other() -> None:
    builds: list[Pipeline] = []

    def build() -> Pipeline:
        builds.append(Pipeline([Node(len, "a", "b", name="count")]))
        return builds[-1]

    lazy = LazyPipeline(build)
    assert not builds
    assert not hasattr(lazy, "no_such_thing")
    assert (lazy + Pipeline([])).nodes == lazy.nodes == builds[0].nodes
    assert lazy.inputs() == {"a"}
    assert copy.deepcopy(LazyPipeline(build)).outputs() == {"b"}
    assert isinstance(lazy, Pipeline)


@pytest.mark.parametrize("name", OWN)
def test_an_error_that_is_expected_by_name_exists(name: str) -> None:
    kind = resolve_name(name)
    assert f"{kind.__module__}:{kind.__name__}" == name
    assert is_expected(kind.__new__(kind))


def test_an_error_of_a_package_behind_a_link_is_one_of_ours(tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(ROOT / "src" / "grpo_pipeline")
    for place, ours in (("linked/session.py", True), ("other.py", False)):
        with pytest.raises(ValueError, match="wrong") as raised:
            exec(compile("raise ValueError('wrong')", str(tmp_path / place), "exec"), {})
        assert is_expected(raised.value) is ours
