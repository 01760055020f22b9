import json
from dataclasses import dataclass, field
from pathlib import Path

from kedro.io import AbstractDataset


@dataclass(frozen=True)
class Checkpoint:
    step: int
    extra: dict[str, str] = field(default_factory=dict)


class CheckpointJSON(AbstractDataset):
    def __init__(self, filepath, metadata=None):
        self._filepath = Path(filepath)

    def load(self):
        return Checkpoint(**json.loads(self._filepath.read_text())) if self._filepath.exists() else None

    def save(self, data):
        if data is not False:
            self._filepath.parent.mkdir(parents=True, exist_ok=True)
            partial = self._filepath.with_suffix(".partial")  # a test kills the run at any moment
            partial.write_text(json.dumps({"step": data.step, "extra": data.extra}))
            partial.replace(self._filepath)

    def _describe(self):
        return {"filepath": str(self._filepath)}
