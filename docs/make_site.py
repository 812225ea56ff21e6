"""A hook of MkDocs that gives the site the paths of the repository, in which all links hold.

The documents of this folder link to others beside it, to pictures and to source files. This hook
adds those, and the page of public names, which it makes from `api.md`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
DOCUMENTS = (
    "README.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "engine_stub/weights/README.md",
)
"""The documents of the site that are not in `docs/`."""
_LINK = re.compile(r"\]\(([^)\s#:]+)(?:#[^)\s]*)?\)")
_MODULE = re.compile(r"^## (seqtop[\w.]*)$", re.MULTILINE)


def on_files(_: Files, config: Any) -> Files:
    """Returns the documents by their paths in the repository, and all files that they link to."""
    docs = sorted(path for path in (ROOT / "docs").rglob("*.md"))
    pages = [*(ROOT / name for name in DOCUMENTS), *docs]
    linked = {
        target
        for page in pages
        for link in _LINK.findall(page.read_text(encoding="utf-8"))
        if (target := (page.parent / link).resolve()).is_file()
    }
    files = [_file(config, path) for path in sorted({*pages, *linked})]
    modules = _MODULE.findall((ROOT / "docs/api.md").read_text(encoding="utf-8"))
    reference = "# The public names\n\n" + "\n".join(f"::: {name}" for name in modules)
    files.append(File.generated(config, "docs/reference.md", content=reference))
    return Files(files)


def _file(config: Any, path: Path) -> File:
    return File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path))
