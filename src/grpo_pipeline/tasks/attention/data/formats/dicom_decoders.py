"""Check whether compressed DICOM pixels can be decoded: pydicom decodes run lengths, its plug-ins the rest."""

from typing import Any

from grpo_pipeline.tasks.attention.data.unreadable_file import UnreadableFileError

PACKAGES = {
    "1.2.840.10008.1.2.4.201": "pylibjpeg pylibjpeg-openjpeg",
    "1.2.840.10008.1.2.4.202": "pylibjpeg pylibjpeg-openjpeg",
    "1.2.840.10008.1.2.4.203": "pylibjpeg pylibjpeg-openjpeg",
}
"""Transfer syntax (DICOM PS3.6, table A-1) -> packages with a free licence that decode it; ``python-gdcm`` any other."""

EXTENDED_JPEG = "1.2.840.10008.1.2.4.51"


def check_decoder(pydicom: Any, dataset: Any, relpath: str) -> None:
    """Refuse a compression that no installed package decodes.

    Raises:
        ModuleNotFoundError: if a package for it could be installed, which is no fault of the row.
        UnreadableFileError: if pydicom knows no decoder at all, such as for a film.
    """
    syntax = dataset.file_meta.get("TransferSyntaxUID")
    if syntax is None or not syntax.is_compressed or syntax.is_deflated:
        return
    try:
        decoder = pydicom.pixels.get_decoder(syntax)
    except NotImplementedError as error:
        raise UnreadableFileError(
            f"{relpath!r} must hold still images, got {syntax.name}; export frames"
        ) from error
    # pydicom lists Pillow as a decoder of extended JPEG, but Pillow decodes 8 bits only.
    pillow_fails = (
        syntax == EXTENDED_JPEG
        and int(dataset.BitsStored) > 8
        and set(decoder.available_plugins) == {"pillow"}
    )
    if not decoder.is_available or pillow_fails:
        raise ModuleNotFoundError(
            f"reading {relpath!r} needs a decoder of {syntax.name} that pydicom finds; install one: "
            f"pip install {PACKAGES.get(str(syntax), 'python-gdcm')}"
        )
