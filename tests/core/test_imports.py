import subprocess
import sys

CODE = """
import importlib, pkgutil, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ImportError(f"{{name}} is blocked")

sys.meta_path.insert(0, Blocker())
import grpo_pipeline.core
for module in pkgutil.walk_packages(grpo_pipeline.core.__path__, "grpo_pipeline.core."):
    importlib.import_module(module.name)
print(len([name for name in sys.modules if name.startswith("grpo_pipeline.core.")]))
"""
BLOCKED = {"kedro", "kedro_datasets", "mlflow", "pandas", "scipy", "sklearn", "transformers"}


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)


def test_core_imports_without_kedro_and_mlflow():
    done = run(CODE.format(blocked=BLOCKED))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 15


def test_the_blocker_blocks():
    done = run(CODE.format(blocked={"safetensors"}))
    assert "safetensors is blocked" in done.stderr or "safetensors.torch is blocked" in done.stderr
