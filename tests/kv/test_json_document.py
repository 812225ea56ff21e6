"""The JSON document of a prefix cache."""

import json

from seqtop.kv import json_document
from seqtop.transport.connection import Connection
from tests.support.kv_scene import HOSTILE, ScriptedKvSource, digest, run, scene


def encoded(source: ScriptedKvSource) -> str:
    return json_document.encode(source.cache, Connection("tcp://127.0.0.1:5557")).decode()


def test_blocks_trees_and_tiers_agree() -> None:
    source = ScriptedKvSource()
    scene(source)
    document = json.loads(encoded(source))
    assert document["complete"] is True
    assert document["gap"] is None
    assert document["num_blocks"] == len(document["blocks"]) == len(source.cache.blocks)
    assert sum(tree["num_blocks"] for tree in document["trees"]) == document["num_blocks"]
    copies = [medium for block in document["blocks"] for medium in block["copies"]]
    assert document["tiers"] == {medium: copies.count(medium) for medium in set(copies)}
    hashes = {block["hash"] for block in document["blocks"]}
    assert digest(1, 0).hex() in hashes
    roots = {tree["root"] for tree in document["trees"]}
    assert {block["tree"] for block in document["blocks"]} == roots


def test_a_gap_makes_the_document_incomplete() -> None:
    source = ScriptedKvSource()
    assert json.loads(encoded(source))["complete"] is False
    scene(source)
    source.cache.mark_gap("2 messages before number 7 missing")
    document = json.loads(encoded(source))
    assert document["complete"] is False
    assert document["gap"] == "2 messages before number 7 missing"


def test_hostile_names_are_escaped() -> None:
    source = ScriptedKvSource()
    source.send(run(1, 0, 3, lora_name=HOSTILE))
    text = encoded(source)
    assert not set("\x1b\x07\u202e") & set(text)
    assert json.loads(text)["blocks"][0]["lora"] == HOSTILE
