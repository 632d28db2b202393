"""Settings of the engine: ranges and defaults."""

from __future__ import annotations

import ast
import inspect
import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from engine import launch
from engine.config import AT_LEAST_ONE, AT_LEAST_ZERO, OPTIONS, EngineConfig, check_options
from engine.errors import InvalidRequest
from engine.models.cosyvoice3.settings import CosyVoice3Settings

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "engine-options.md"


def rows() -> list[str]:
    """Rows of the page by the code: name, default, and the comment above the setting."""
    lines = inspect.getsource(EngineConfig).split("\n")
    (struct,) = ast.parse("\n".join(lines)).body
    assert isinstance(struct, ast.ClassDef)
    told = {}
    for setting in struct.body:
        if isinstance(setting, ast.AnnAssign) and isinstance(setting.target, ast.Name):
            above = itertools.takewhile(lambda line: line.startswith("    # "), reversed(lines[: setting.lineno - 1]))
            told[setting.target.id] = " ".join(line[6:] for line in reversed(list(above)))
    return [
        f"| `{field.name}` | {shown(field.default)} | {' '.join(told[field.name].split()).replace('``', '`')} |"
        for field in msgspec.structs.fields(EngineConfig)
        if field.name != "cosyvoice3"
    ]


def shown(default: object) -> str:
    if default is None:
        return ""
    return f"`{msgspec.json.encode(default).decode()}`"


def test_page_lists_every_setting() -> None:
    page = PAGE.read_text()
    missing = [row for row in rows() if row not in page]
    assert not missing, "\n".join(missing)


def test_engine_options_page_lists_cosyvoice3_options() -> None:
    groups = CosyVoice3Settings()
    expected = [
        f"| `{group}.{field.name}` | {shown(field.default)} |"
        for group in groups.__struct_fields__
        for field in msgspec.structs.fields(getattr(groups, group))
    ]
    page = PAGE.read_text()
    assert [row for row in expected if row not in page] == []


@pytest.mark.parametrize("name", AT_LEAST_ONE)
def test_a_limit_below_one_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} is 0; it must be at least 1") as caught:
        EngineConfig(**{name: 0})
    assert caught.value.param == name


@pytest.mark.parametrize("value", [-1, math.nan])
@pytest.mark.parametrize("name", AT_LEAST_ZERO)
def test_less_than_nothing_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} is {value}; it must be at least 0") as caught:
        EngineConfig(**{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize("share", [0.0, -1.0, math.nan])
def test_zero_share_of_a_frame_admits_none(share: float) -> None:
    with pytest.raises(InvalidRequest, match=f"admission_utilization is {share}; it must be above 0"):
        EngineConfig(admission_utilization=share)


def test_more_niceness_than_there_is_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="process_nice is 20; it must be at most 19"):
        EngineConfig(process_nice=20)
    assert EngineConfig(process_nice=19).process_nice == 19


def test_a_pinned_shape_holds_the_largest_batch() -> None:
    with pytest.raises(InvalidRequest, match="fixed_batch_rows is 3; max_batch_size is 4"):
        EngineConfig(max_batch_size=4, fixed_batch_rows=3)
    assert EngineConfig(max_batch_size=4, fixed_batch_rows=4).fixed_batch_rows == 4


def test_a_kernel_that_is_not_there_is_refused_on_any_device() -> None:
    with pytest.raises(InvalidRequest, match="disabled_kernels names 'gmev'; known: gemv, ") as caught:
        EngineConfig(disabled_kernels=("norm", "gmev"))
    assert caught.value.param == "disabled_kernels"


@pytest.mark.parametrize(
    ("device", "has_gpu", "visible", "is_cuda"),
    [
        ("cpu", True, None, False),
        ("cuda:1", False, None, True),
        ("auto", True, None, True),
        ("auto", True, "0,1", True),
        ("auto", True, "", False),
        ("auto", True, "-1", False),
        ("auto", True, "-1,0", False),
        ("auto", True, "NoDevFiles", False),
        ("auto", True, " 1,-1", True),
        ("auto", True, "GPU-5f3a,0", True),
        ("auto", True, "MIG-41b3", True),
        ("auto", False, None, False),
    ],
)
def test_by_where_it_will_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str, has_gpu: bool, visible: str | None, is_cuda: bool
) -> None:
    if has_gpu:
        (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(launch, "DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    config = launch._engine_config({}, device)
    assert (config.lead_step_interval_s == 0.0) is is_cuda
    assert config.process_nice == (0 if is_cuda else launch.CPU_NICENESS)
    assert config.sizes_by_memory == (launch.SIZES if is_cuda else ())
    with_rows = launch._engine_config({"max_batch_size": 768}, device)
    assert with_rows.sizes_by_memory == (launch.SIZES[1:] if is_cuda else ())


def fields_of(section: msgspec.Struct, prefix: str = "") -> Iterator[str]:
    for name in section.__struct_fields__:
        value = getattr(section, name)
        yield from fields_of(value, f"{prefix}{name}.") if isinstance(value, msgspec.Struct) else [f"{prefix}{name}"]


@pytest.mark.parametrize("path", tuple(fields_of(EngineConfig())))
def test_options_of_operators_pass_and_constants_are_refused(path: str) -> None:
    *groups, name = path.split(".")
    options: dict[str, object] = {name: 1}
    for group in reversed(groups):
        options = {group: options}
    if path in OPTIONS:
        check_options(options)
        return
    with pytest.raises(InvalidRequest, match=f"{path} is a constant of the engine") as caught:
        check_options(options)
    assert caught.value.param == path


def test_number_of_options_may_only_fall() -> None:
    assert set(fields_of(EngineConfig())) >= OPTIONS
    assert len(OPTIONS) <= 17
