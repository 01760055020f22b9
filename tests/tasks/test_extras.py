"""A machine without the extras `dialogue` and `molecules`: what it can do, and what it says about the rest."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from grpo_pipeline.errors import sentence
from grpo_pipeline.pipeline_registry import register_pipelines
from grpo_pipeline.tasks.dialogue import build
from grpo_pipeline.tasks.dialogue.scores import bleu, rouge
from grpo_pipeline.tasks.extras import library, require
from grpo_pipeline.tasks.molecules.pipelines.nodes import generate_molecules

REFUSED = ("rouge_score", "sacrebleu", "rdkit")
SAID = (
    "the library {0} must be installed for this task, got no such module; "
    'run pip install -e ".[{1}]", or install the wheel with its extra {1}'
)
# Lists the pipelines and calls the first node of one where the libraries of the two extras cannot be imported.
PROGRAM = f"""
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {REFUSED!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuse())
import json
from grpo_pipeline.pipeline_registry import register_pipelines
print(json.dumps(sorted(register_pipelines())))
from grpo_pipeline.errors import sentence
from grpo_pipeline.tasks.molecules.pipelines.nodes import generate_molecules
try:
    generate_molecules(None, None)
except ModuleNotFoundError as error:
    print(sentence(error))
"""


def test_the_registry_opens_without_them_and_a_task_says_what_to_install(root: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=root, capture_output=True, text=True, timeout=600, check=True)
    listed, said = done.stdout.splitlines()
    assert json.loads(listed) == sorted(register_pipelines())
    assert said == SAID.format("rdkit", "molecules")


@pytest.mark.parametrize(
    ("name", "extra", "use"),
    [
        ("rdkit", "molecules", lambda: generate_molecules(None, None)),
        ("sacrebleu", "dialogue", lambda: build.build_task(*[None] * 6)),
        ("rouge_score", "dialogue", lambda: rouge.rouge(["a"], [["a"]])),
        ("sacrebleu", "dialogue", lambda: bleu.bleu_counts(["a"], [["a"]])),
    ],
)
def test_what_needs_a_library_says_how_to_get_it(name, extra, use, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    bleu._sacrebleu.cache_clear()
    rouge._rouge_score.cache_clear()
    with pytest.raises(ModuleNotFoundError) as error:
        use()
    assert sentence(error.value) == SAID.format(name, extra)


def test_a_library_that_is_there_is_imported_and_the_extra_that_is_named_brings_it(root: Path) -> None:
    require("math", "json", extra="none")
    assert library("json.decoder", extra="none") is json.decoder
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    brought = {extra: {Requirement(line).name.replace("-", "_") for line in lines} for extra, lines in extras.items()}
    assert set(build.LIBRARIES) <= brought["dialogue"]
    assert "rdkit" in brought["molecules"]
