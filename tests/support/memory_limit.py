"""Build a data set and train one step in this process, which may not take more than so many bytes beside its own code.

Arguments: a data root with ``manifest.csv``, an output folder, bytes. Prints the bytes of the arrays on disk.
"""

import resource
import sys
import threading
from pathlib import Path

import numpy as np
import yaml
from tiny_attention import CONF, algorithm_params, make_data, make_state, make_task, training_params

from grpo_pipeline.core.storage.checkpoint import NoCheckpoint
from grpo_pipeline.datasets.examples import ExamplesDataset
from grpo_pipeline.pipelines.training.nodes import train
from grpo_pipeline.tasks.attention import task as task_module
from grpo_pipeline.tasks.attention.batch import AttentionData
from grpo_pipeline.tasks.attention.data import checked_rows, example_building
from grpo_pipeline.tasks.attention.data import examples as stored
from grpo_pipeline.tasks.attention.data.params import DataParams
from grpo_pipeline.tasks.attention.pipelines.image_folder import ImageFolderDataset
from grpo_pipeline.tasks.attention.pipelines.nodes import build_examples, check_manifest
from grpo_pipeline.tasks.attention.task import AttentionTask


def data_bytes() -> int:
    """Return what the limit counts: private writable memory; maps of files are not in it."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))
    return int(line.split()[1]) * 1024


def train_one_step(task: AttentionTask, data: AttentionData) -> None:
    """Train until the first metric row."""
    training, algorithm = training_params(epochs=1, batch_size=2), algorithm_params()
    steps = train(algorithm, training, "never", task, data, make_state(task, data, algorithm, training), NoCheckpoint(""), {})
    while not next(steps)[0]:
        pass
    steps.close()


def main(root: str, output: str, limit: str) -> None:
    base = yaml.safe_load((CONF / "base/attention/parameters_data.yml").read_text())["attention"]["data"]
    params = DataParams.model_validate(base | {"source": "manifest", "root": root, "image_size": 256})
    small = np.arange(256 * 256, dtype=np.uint8).reshape(256, 256)
    example_building.usable_cores = checked_rows.usable_cores = lambda: 2
    example_building.CHUNK_BYTES = stored.CHUNK_BYTES = 2**21
    task_module.REFERENCE_BATCH = 2  # a batch is what needs memory, whatever the data set
    threading.stack_size(2**20)  # of 8 MB each, and how many there are at once is a matter of luck
    train_one_step(make_task(), make_data())  # whatever the libraries allocate once, compiled kernels and threads among it
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + int(limit), resource.RLIM_INFINITY))
    try:
        np.concatenate([small[None].repeat(int(limit) // small.size, axis=0)] * 2)
        sys.exit("the limit does not hold")
    except MemoryError:
        pass
    raw = ImageFolderDataset(filepath=root).load()
    checked, _, _ = check_manifest(params, raw, {"source": "manifest", "cores": 0})
    ids = sorted(checked["core_id"])
    splits = {"train": ids[:-4], "val": ids[-4:-2], "test": ids[-2:]}
    dataset = ExamplesDataset(filepath=output, holds="grpo_pipeline.tasks.attention.data.examples:Examples")
    for chunk, _ in build_examples(params, raw, checked, splits):
        dataset.save(chunk)
    examples = dataset.load()
    train_one_step(make_task(examples, patch_size=32, policy={"filters": 1}), AttentionData(examples, None))
    print(sum(path.stat().st_size for path in Path(output).glob("*.npy")))


if __name__ == "__main__":
    main(*sys.argv[1:])
