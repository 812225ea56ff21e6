"""The formats of exports: each is documented and tested."""

from pathlib import Path

import pytest

from seqtop.export.formats import FORMATS, export_format

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_described_and_tested(name: str) -> None:
    description = (ROOT / "docs/export.md").read_text()
    assert f"--{name}" in description, f"docs/export.md does not describe --{name}"
    tests = [path.name for path in (ROOT / "tests/export").glob(f"test_{name}*.py")]
    assert tests, f"there is no tests/export/test_{name}.py"
    declared = FORMATS[name]
    assert (declared.write is None) is not (declared.write_directory is None)


def test_a_name_is_declared_once() -> None:
    name = next(iter(FORMATS))
    with pytest.raises(ValueError, match=f"{name!r} is declared twice"):
        export_format(name, "again")(lambda _source, _file: "")
