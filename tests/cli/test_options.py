"""The parsers of options that several commands share."""

import argparse

import pytest

from seqtop.cli import options
from seqtop.cli.parser import build_parser
from seqtop.state.fields import FIELDS
from seqtop.transport.curve_keys import KeyFileError


def test_columns_are_listed_once_and_unknown_ones_are_named() -> None:
    assert options.parse_columns("out, request,out") == ["out", "request"]
    with pytest.raises(argparse.ArgumentTypeError, match="no column 'ouch'") as caught:
        options.parse_columns("request,ouch")
    assert all(key in str(caught.value) for key in FIELDS)


def test_an_unknown_field_of_a_filter_is_answered_with_all_fields() -> None:
    assert options.parse_filter("prompt>1k").source == "prompt>1k"
    with pytest.raises(argparse.ArgumentTypeError, match="no field 'zzz'") as caught:
        options.parse_filter("zzz>1k")
    assert all(key in str(caught.value) for key in FIELDS)
    with pytest.raises(argparse.ArgumentTypeError, match="regular expression"):
        options.parse_filter("re:/[/")


@pytest.mark.parametrize("command", [["check", "run.seqtop"], ["record", "-o", "run.seqtop"]])
def test_a_duration_has_a_unit_or_is_in_seconds(command: list[str]) -> None:
    for text, seconds in (("60", 60.0), ("60s", 60.0), ("2m", 120.0), ("0.2", 0.2), ("1h", 3600)):
        assert build_parser().parse_args([*command, "--duration", text]).duration == seconds


def test_a_sort_key_can_be_reversed() -> None:
    forward, backward = options.parse_sort("out"), options.parse_sort("-out")
    assert forward.key == backward.key == "out"
    assert forward.descending != backward.descending
    with pytest.raises(argparse.ArgumentTypeError, match="'nothing'"):
        options.parse_sort("nothing")


@pytest.mark.parametrize("arguments", [["--server-key", "key"], ["--client-key", "key"]])
def test_keys_are_given_in_pairs(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    options.add_curve_keys(parser)
    assert options.curve_keys(parser.parse_args([])) is None
    with pytest.raises(KeyFileError, match="belong together"):
        options.curve_keys(parser.parse_args(arguments))
