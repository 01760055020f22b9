"""Exported models for the commands that use them."""

from pathlib import Path

import pytest
from exported_models import export_models


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Task -> folder of an arm with one version of its model."""
    return export_models(tmp_path_factory.mktemp("models"))
