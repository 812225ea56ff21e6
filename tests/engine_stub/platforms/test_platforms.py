"""Only the platforms contain code for one kind of device."""

import re
from pathlib import Path

import pytest
import torch

import engine_stub
from engine_stub.platforms import platform_of, resolve_device, resolve_dtype
from engine_stub.platforms.cuda import CudaPlatform

DEVICE_CODE = re.compile(
    r"torch\.cuda|torch\.backends|\.is_cuda|pin_memory|device\.type"
    r"|(==|!=|\bin\b) *\(?\"(cuda|cpu)|startswith\(\"(cuda|cpu)|\"nccl\"|\"gloo\""
)


def test_only_the_platforms_contain_code_for_one_kind_of_device() -> None:
    package = Path(engine_stub.__file__).parent
    platforms, training = package / "platforms", package / "train"
    mentions = [
        f"{file.relative_to(package)}:{number}: {line.strip()}"
        for file in package.rglob("*.py")
        if not ({platforms, training} & {*file.parents})
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        if DEVICE_CODE.search(line)
    ]
    assert mentions == []


def test_each_device_has_its_platform() -> None:
    assert platform_of("cpu") is platform_of(torch.device("cpu"))
    assert platform_of("cuda") is platform_of(torch.device("cuda", 1))
    assert not platform_of("cpu").has_own_memory
    assert platform_of("cuda").has_own_memory


@pytest.mark.parametrize(
    ("capability", "dtype"),
    [((7, 0), "float16"), ((7, 5), "float16"), ((8, 0), "bfloat16"), ((12, 0), "bfloat16")],
)
def test_a_card_without_bfloat16_gets_float16_and_the_log_says_so(
    capability: tuple[int, int],
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(CudaPlatform, "device_count", lambda _: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert resolve_dtype("auto", "cuda", "bfloat16") == dtype
    assert resolve_dtype("auto", "cuda", "float32") == "float32"
    assert resolve_dtype("bfloat16", "cuda", "float32") == "bfloat16"
    warning = (
        "float16 is used instead of the model's bfloat16, which needs compute capability 8.0:"
        " the device has {}.{}".format(*capability)
    )
    assert [record.getMessage() for record in caplog.records] == [warning] * (dtype == "float16")


def test_an_unknown_device_or_dtype_is_refused() -> None:
    assert resolve_device("cpu") == "cpu"
    with pytest.raises(ValueError, match="device must be auto, cpu or cuda, got 'abacus'"):
        resolve_device("abacus")
    with pytest.raises(ValueError, match="cpu:1 was asked for, but torch sees 1"):
        resolve_device("cpu:1")
    assert resolve_dtype("auto", "cpu", "bfloat16") == "float32"
    assert resolve_dtype("auto", "cuda", "bfloat16") == "bfloat16"
    with pytest.raises(ValueError, match="dtype must be auto or a floating-point type"):
        resolve_dtype("int8", "cpu", "float32")
