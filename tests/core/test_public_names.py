"""The names that the package exports, and README's loop on them: it learns, and imports no Kedro."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import grpo_pipeline

README = Path(__file__).resolve().parents[2] / "README.md"


@pytest.mark.parametrize("name", grpo_pipeline.PUBLIC)
def test_each_public_name_is_what_its_module_defines_and_is_documented(name: str) -> None:
    found = getattr(grpo_pipeline, name)
    assert found.__name__ == name
    assert found.__module__.startswith("grpo_pipeline.core.")
    assert found.__doc__
    assert name in dir(grpo_pipeline)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'compute_advantage'"):
        grpo_pipeline.compute_advantage  # noqa: B018


def test_the_loop_of_readme_learns_the_right_action_with_torch_alone() -> None:
    (block,) = [
        text for text in re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL) if "as grpo" in text
    ]
    lines = [line for line in block.splitlines() if line and not line.startswith(("import", "print"))]
    assert len(lines) <= 8
    checked = block + (
        "import sys\nassert logits.softmax(0)[2] > 0.9, logits.softmax(0)\n"
        "assert not {'kedro', 'mlflow', 'pandas', 'transformers'} & {*sys.modules}\n"
    )
    # Every seed: the loop must not depend on a lucky one.
    for seed in range(3):
        code = f"import torch\ntorch.manual_seed({seed})\n{checked}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("tensor([")
