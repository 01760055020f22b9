from collections.abc import Iterator
from typing import Any

import pytest
import torch

from grpo_pipeline.core.training import execution
from grpo_pipeline.core.training.execution import check_compiler, choose_device, set_float32_products


@pytest.fixture
def products() -> Iterator[None]:
    before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize(("wanted", "count", "found"), [("auto", 0, "cpu"), ("auto", 2, "cuda"), ("cpu", 2, "cpu"),
                                                        ("cuda:1", 2, "cuda:1"), ("cuda", 1, "cuda")])  # fmt: skip
def test_the_device(wanted: str, count: int, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert choose_device(wanted) == torch.device(found)


@pytest.mark.parametrize(("wanted", "count"), [("cuda", 0), ("cuda:2", 2)])
def test_a_device_that_is_not_there_is_refused(wanted: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(ValueError, match=f"training.device must be a device that torch finds, got {wanted} with {count} CUDA"):
        choose_device(wanted)


@pytest.mark.usefixtures("products")
def test_how_float32_is_multiplied() -> None:
    def now() -> tuple[bool, bool, str]:
        # The last raises where the older and the newer setting of torch are mixed, which torch.compile does not survive.
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()

    before = now()
    set_float32_products("default")
    assert now() == before
    set_float32_products("tf32")
    assert now() == (True, True, "high")
    set_float32_products("ieee")
    assert now() == (False, False, "highest")


def test_a_missing_compiler_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(function: Any) -> Any:
        def run(x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("InvalidCxxCompiler: none\n\nSet TORCHDYNAMO_VERBOSE=1")

        return run

    monkeypatch.setattr(execution.torch, "compile", fail)
    message = (
        r"training.compile must be none where torch cannot compile for cpu, got encoder \(InvalidCxxCompiler: none\); install"
    )
    with pytest.raises(ValueError, match=message) as error:
        check_compiler(torch.device("cpu"))
    assert "VERBOSE" not in str(error.value)
