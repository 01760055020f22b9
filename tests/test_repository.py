"""Rules for the repository as a whole: nothing pickled, nothing personal, pins that fit, documents that are true."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "grpo_pipeline"
PICKLES = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
PICKLING_CALLS = {"torch.save", "pd.read_pickle"}
PICKLING_UNLESS_TOLD = {"np.save", "np.savez", "np.savez_compressed"}
# Where a comment or a docstring may send its reader.
HOSTS_TO_READ = re.compile(
    r"(www\.|docs\.)?(arxiv|doi|github|kedro|mlflow|pytorch|apache|w3)\.(org|com)|scholar\.cu\.edu\.eg|<host"
)
LOCAL_HOSTS = {"localhost", "127.0.0.1"}
PERSONAL = re.compile(
    r"/work/|/root/|/home/\w|/Users/|/opt/|file:///|pypi\.|pythonhosted|index-url[= ]+http|(?<![\w.])shared/(?!data\b)"
)
PICKLING_CODE = [
    *("import pickle", "from joblib import dump", "torch.save(x, y)", "torch.load(f)", "torch.load(f, weights_only=False)"),
    *("np.load(f, allow_pickle=True)", "np.save(f, a)", "table.to_pickle(f)"),
]
WIRING = ["kedro", "kedro_datasets", "kedro_viz", "mlflow"]
SCIENCE = ["matplotlib", "pandas", "scipy", "sklearn", "transformers", "yaml"]


def lines(files: tuple[Path, ...]) -> Iterator[tuple[str, str]]:
    """Yield ("file:line", text) for every line of every text file but this one, which has to spell what it looks for."""
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if file != Path(__file__).resolve():
            yield from ((f"{file.relative_to(ROOT)}:{number}", line) for number, line in enumerate(text.splitlines(), start=1))


def pickling(tree: ast.AST) -> Iterator[str]:
    """Yield what in a module pickles or un-pickles."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (f"{node.lineno} import {name.name}" for name in names if name.name.split(".")[0] in PICKLES)
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in PICKLES:
                yield f"{node.lineno} from {module}"
            case ast.Attribute() if ast.unparse(node) in PICKLING_CALLS or node.attr == "to_pickle":
                yield f"{node.lineno} {ast.unparse(node)}"
            case ast.Call(func=function, keywords=keywords) if ast.unparse(function) in PICKLING_UNLESS_TOLD:
                if "allow_pickle" not in {keyword.arg for keyword in keywords}:
                    yield f"{node.lineno} {ast.unparse(function)} without allow_pickle=False"
            # Original checkpoints are pickles; read as tensors alone they run no code.
            case ast.Call(func=function, keywords=keywords) if ast.unparse(function) == "torch.load":
                if "weights_only=True" not in {ast.unparse(keyword) for keyword in keywords}:
                    yield f"{node.lineno} torch.load without weights_only=True"
            case ast.keyword(arg="allow_pickle", value=value) if ast.unparse(value) != "False":
                yield f"{value.lineno} allow_pickle={ast.unparse(value)}"


@cache
def parsed() -> dict[Path, ast.AST]:
    return {file: ast.parse(file.read_text()) for file in sorted(PACKAGE.rglob("*.py"))}


def test_nothing_in_the_package_is_pickled(committed_files: tuple[Path, ...]) -> None:
    assert [code for code in PICKLING_CODE if not list(pickling(ast.parse(code)))] == []
    assert not [f"{file.relative_to(ROOT)}:{what}" for file, tree in parsed().items() for what in pickling(tree)]
    assert not [where for where, line in lines(committed_files) if where.startswith("conf/") and "pickle" in line.lower()]


def test_folders_of_models_are_read_without_network_code_or_pickles() -> None:
    """Every ``from_pretrained`` takes the one set of options; a model's also refuses pickles."""
    calls = [
        (f"{file.name}:{node.lineno}", ast.unparse(node))
        for file, tree in parsed().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".from_pretrained")
    ]
    assert len(calls) >= 4
    weightless = ("AutoTokenizer.", "AutoConfig.")
    assert not [call for call in calls if ("**LOCAL" if call[1].startswith(weightless) else "**SAFE") not in call[1]]


def test_code_names_no_host_but_documentation(committed_files: tuple[Path, ...]) -> None:
    """Documents may link anywhere and tests make hosts up; what runs or configures a run may not."""
    running = tuple(file for file in committed_files if file.suffix != ".md" and ROOT / "tests" not in file.parents)
    hosts = [(where, host) for where, line in lines(running) for host in re.findall(r"https?://([^/\s\"'`)>:,]+)", line)]
    named = [(where, host) for where, host in hosts if not host.startswith("{")]  # {…}: filled in from the configuration
    assert not [f"{where} {host}" for where, host in named if host not in LOCAL_HOSTS and not HOSTS_TO_READ.fullmatch(host)]


def test_no_machine_is_named(committed_files: tuple[Path, ...]) -> None:
    assert not [f"{where} {line.strip()}" for where, line in lines(committed_files) if PERSONAL.search(line)]


def test_generated_files_are_not_committed(committed_files: tuple[Path, ...]) -> None:
    names = [str(file.relative_to(ROOT)) for file in committed_files]
    kept = re.compile(r"^data/(README\.md|0\d_\w+/\.gitkeep)$")
    assert not [name for name in names if name.startswith("data/") and not kept.match(name)]
    assert not [name for name in names if re.search(r"\.(safetensors|pt|pth|npz|db|pkl|pyc)$", name)]
    assert sorted(name for name in names if name.startswith("conf/local/")) == ["conf/local/.gitkeep"]
    # A notebook holds the pictures of its outputs.
    pictures = {file for file in committed_files if file.parent == ROOT / "docs" / "images" or file.suffix == ".ipynb"}
    texts = [file.stat().st_size for file in {*committed_files} - pictures]
    assert max(texts) < 140_000
    assert sum(texts) < 9_000_000
    assert sum(file.stat().st_size for file in pictures) < 2_000_000


def test_telemetry_is_refused() -> None:
    assert yaml.safe_load((ROOT / ".telemetry").read_text()) == {"consent": False}
    assert "kedro_telemetry" not in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]


def pins() -> dict[str, str]:
    """Read constraints.txt as {canonical name: version}."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert not [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line)]
    pairs = [line.split("==") for line in lines]
    assert len({canonicalize_name(name) for name, _ in pairs}) == len(pairs)
    return {canonicalize_name(name): version for name, version in pairs}


def test_every_dependency_is_pinned_inside_its_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    pinned = pins()
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), requirement
    assert pinned["torch"] == "2.13.0"


def test_no_name_of_a_function_is_longer_than_80_characters(committed_files: tuple[Path, ...]) -> None:
    python = [file for file in committed_files if file.suffix == ".py"]
    assert {file.relative_to(ROOT).parts[0] for file in python} >= {"src", "tests", "benchmarks", "docs"}
    named = [(file.relative_to(ROOT), name) for file in python for name in re.findall(r"\bdef (\w+)", file.read_text())]
    assert not [f"{file} {name}" for file, name in named if len(name) > 80]


def test_text_in_the_source_names_files_and_tests_that_exist(committed_files: tuple[Path, ...]) -> None:
    """Those of other projects are named with their project."""
    others = {"build_sam.py", "sascorer.py"}
    python = [path for path in committed_files if path.suffix == ".py"]
    files, tests = {path.name for path in python} | others, "".join(p.read_text() for p in python if "tests" in p.parts)
    named = {
        (path.name, word): word in files or (f"def {word}(" in tests and not word.endswith(".py"))
        for path in python
        if "src" in path.parts and "tests" not in path.parts
        for word in re.findall(r"``(?:[\w/]+/)?(\w+\.py|test_\w+)``", path.read_text())
    }
    assert len(named) > 20
    assert [where for where, exists in named.items() if not exists] == []


def test_imports_on_a_bare_machine() -> None:
    """The modules of core, and then those of tasks, import where the named libraries are not installed."""
    program = "import sys, importlib, json\n"
    program += "for absent, present, modules in json.load(sys.stdin):\n"
    program += "    sys.modules.update(dict.fromkeys(absent))\n"  # None in sys.modules makes an import fail
    program += "    [sys.modules.pop(name, None) for name in present]\n"
    program += "    [importlib.import_module(name) for name in modules]\n"
    given = []
    for package, absent, present in (("core", WIRING + SCIENCE, []), ("tasks", [], SCIENCE)):
        files = sorted(file for file in (PACKAGE / package).rglob("*.py") if "pipelines" not in file.parts)
        names = [".".join(file.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__") for file in files]
        assert len(names) > 5
        given.append((absent, present, names))
    command, said = [sys.executable, "-c", program], json.dumps(given)
    done = subprocess.run(command, input=said, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


def test_styles_are_colours_that_kedro_viz_reads() -> None:
    styles = json.loads((ROOT / ".viz" / "styles.json").read_text())
    for name, style in styles.items():
        flat = {**style, **{key: value for theme in style.get("themes", {}).values() for key, value in theme.items()}}
        assert set(flat) <= {"fill", "stroke", "color", "themes"}, name
        assert all(re.fullmatch(r"#[0-9a-f]{6}", value) for key, value in flat.items() if key != "themes"), name
