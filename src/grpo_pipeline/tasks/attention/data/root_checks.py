"""Check that the data root holds what the parameters say is there."""

from collections.abc import Mapping

from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder
from grpo_pipeline.tasks.attention.data.params import DataParams


def check_generated(raw: ImageFolder, generated: Mapping[str, object], params: DataParams) -> None:
    """Refuse a user's folder if the parameters ask for the phantom, and a layout other than the configured one."""
    if bool(raw.cases) != (params.source == "case_folders"):
        layout = "'*/info.json'" if params.source == "case_folders" else "the name of a CSV file"
        raise ValueError(
            f"attention_manifest must be {layout} while attention.data.source is {params.source}, got "
            f"{str(raw.manifest_path)!r}; set it in globals.yml, or change the source"
        )
    if params.source == "phantom" and generated.get("cores") != len(raw.manifest):
        raise ValueError(
            f"{raw.root} must hold the {generated.get('cores')} generated cores while attention.data.source is phantom, "
            f"got {len(raw.manifest)} rows; set attention.data.source: manifest to read your own data"
        )
