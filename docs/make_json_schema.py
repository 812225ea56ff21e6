"""Writes the JSON Schema of the documents that commands print with `--json` (`make protocol`)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from docs.make_protocol import fields_of, in_json, meanings, schema_of, summary_of
from seqtop.checks.report import Report
from seqtop.diff.report import RunComparisonDocument
from seqtop.explain.outliers import Outliers
from seqtop.explain.report import ExplanationDocument
from seqtop.export.follow import ChangeLine, EndLine, StateLine
from seqtop.export.groups import GroupsDocument
from seqtop.export.json_document import RequestDocument, SequenceDocument, StateDocument
from seqtop.kv.json_document import KvCacheDocument
from seqtop.ledger.report import BlameDocument, HarmTotalsDocument
from seqtop.misses.report import MissesDocument
from seqtop.state import RequestState, SequenceState
from seqtop.state.compare import StateComparison
from seqtop.whatif.advice_report import AdviceDocument
from seqtop.whatif.bisect import Bisection
from seqtop.whatif.recorded_tests_report import RecordedTestsDocument
from seqtop.whatif.report import CapacityDocument, PredictionDocument, SweepDocument

PATH: Final = Path(__file__).with_name("json.schema.json")

DOCUMENTS: Final[dict[str, dict[str, Any]]] = {
    "show": {
        "": StateDocument,
        "compare": StateComparison,
        "by": GroupsDocument,
        "follow": StateLine | ChangeLine | EndLine,
        "kv_events": KvCacheDocument,
    },
    "check": {"": Report, "several": list[Report]},
    "diff": {"": RunComparisonDocument},
    "explain": {
        "": ExplanationDocument,
        "who": BlameDocument,
        "who_totals": HarmTotalsDocument,
        "slow": Outliers,
        "cache": MissesDocument,
    },
    "whatif": {
        "": PredictionDocument,
        "sweep": SweepDocument,
        "capacity": CapacityDocument,
        "bisect": Bisection,
    },
    "advise": {"": AdviceDocument},
    "test": {"": RecordedTestsDocument},
}
"""The types of documents, by command and by the word for one that is not its usual one."""

_MODELS: Final[dict[type, type]] = {
    RequestDocument: RequestState,
    SequenceDocument: SequenceState,
}
"""The structs that say what the fields of others mean."""


def schema() -> str:
    """Returns the JSON Schema: a definition for each document, and those of their parts."""
    types = [
        (command, option, kind)
        for command in DOCUMENTS
        for option, kind in DOCUMENTS[command].items()
    ]
    references, definitions = msgspec.json.schema_components(
        [kind for _, _, kind in types], schema_hook=schema_of, ref_template="#/$defs/{name}"
    )
    for struct in _structs(msgspec.inspect.multi_type_info([kind for *_, kind in types])):
        _describe(struct, definitions[struct.__name__])
    documents = {
        name_of(command, option): {
            "title": f"seqtop {command} --json {option}".strip(),
            **reference,
        }
        for (command, option, _), reference in zip(types, references, strict=True)
    }
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The documents that the commands of seqtop print with --json",
        "anyOf": [{"$ref": f"#/$defs/{name}"} for name in documents],
        "$defs": documents | definitions,
    }
    return json.dumps(document, indent=1) + "\n"


def name_of(command: str, option: str = "") -> str:
    """Returns the name of the definition of a document."""
    return "_".join(filter(None, (command, option)))


def _structs(value: object) -> Iterator[type[msgspec.Struct]]:
    """Yields the structs that types consist of, each once."""
    seen: set[type[msgspec.Struct]] = set()

    def walk(value: object) -> Iterator[type[msgspec.Struct]]:
        if isinstance(value, tuple | list):
            for own in value:
                yield from walk(own)
        elif isinstance(value, msgspec.inspect.Type | msgspec.inspect.Field):
            if isinstance(value, msgspec.inspect.StructType):
                if value.cls in seen:
                    return
                seen.add(value.cls)
                yield value.cls
            for name in value.__struct_fields__:
                yield from walk(getattr(value, name))

    yield from walk(value)


def _describe(struct: type[msgspec.Struct], definition: dict[str, Any]) -> None:
    """Adds the meanings of the fields of a struct, and makes an object of an array."""
    fields = fields_of(struct)
    if "prefixItems" in definition:  # an array in the protocol only
        items = definition.pop("prefixItems")[-len(fields) :] if fields else []
        definition.clear()
        definition |= {
            "title": struct.__name__,
            "type": "object",
            "properties": {
                field.encode_name: item for field, item in zip(fields, items, strict=True)
            },
            "required": [field.encode_name for field in fields],
        }
    for own in definition["properties"].values():
        if own.get("default") == sys.executable:  # of this machine
            del own["default"]
    definition["description"] = in_json(summary_of(struct))
    documented = meanings(_MODELS.get(struct, struct))
    for field in fields:
        if meaning := documented.get(field.name):
            definition["properties"][field.encode_name]["description"] = in_json(meaning)


if __name__ == "__main__":
    PATH.write_text(schema(), encoding="utf-8")
