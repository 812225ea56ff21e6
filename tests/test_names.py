"""One word for a thing, and one thing for a word."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent

SAME_THING = {
    "Admission": "what one scheduler admits, observed in vLLM and in SGLang",
    "SchedulerObserver": "the observer of a scheduler, of vLLM's and of SGLang's",
    "BlockStored": "vLLM's event of this name, which the bundled engine has too",
    "BlockRemoved": "vLLM's event of this name, which the bundled engine has too",
}
"""Classes of two modules that are the same thing in two engines."""


def test_a_class_name_means_one_thing() -> None:
    """Those of modules: the messages of a widget are named within it, as Textual's are."""
    places = defaultdict(list)
    for package in ("seqtop", "engine_stub"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert {name: found for name, found in twice.items() if name not in SAME_THING} == {}
    assert twice.keys() >= SAME_THING.keys()
