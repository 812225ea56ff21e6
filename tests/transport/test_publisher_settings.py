"""Settings of the adapter: to admit holders of keys alone, and to keep texts back."""

import logging

import pytest

from seqtop.adapters import vllm as adapter
from seqtop.transport.publisher_settings import PublisherSettings, endpoint_of, from_environment


def test_keys_open_the_way_to_other_machines() -> None:
    given = {
        "SEQTOP_SERVER_SECRET_KEY": "server.key_secret",
        "SEQTOP_AUTHORIZED_CLIENTS": "clients",
    }
    assert endpoint_of(from_environment("tcp://0.0.0.0:5557", given), 0) == "tcp://0.0.0.0:5557"


@pytest.mark.parametrize("given", ["SEQTOP_SERVER_SECRET_KEY", "SEQTOP_AUTHORIZED_CLIENTS"])
def test_half_of_what_keys_need_opens_nothing(
    given: str, endpoint: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SEQTOP_BIND", endpoint)
    monkeypatch.setenv(given, "some/file")
    adapter.register()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "seqtop is off" in record.message
    assert "belong together" in record.message


def test_each_rank_has_an_endpoint_of_its_own() -> None:
    tcp, ipc = (
        PublisherSettings(bind="tcp://127.0.0.1:5557"),
        PublisherSettings(bind="ipc:///tmp/seqtop"),
    )
    assert [endpoint_of(tcp, rank) for rank in range(3)] == [
        "tcp://127.0.0.1:5557",
        "tcp://127.0.0.1:5559",
        "tcp://127.0.0.1:5561",
    ]
    assert [endpoint_of(ipc, rank) for rank in range(2)] == [
        "ipc:///tmp/seqtop",
        "ipc:///tmp/seqtop.dp1",
    ]


def test_settings_come_from_the_environment() -> None:
    for off in ("0", ""):
        given = {"SEQTOP_REDACT": off, "SEQTOP_INSECURE": off}
        assert from_environment("ipc:///tmp/e", given) == PublisherSettings(bind="ipc:///tmp/e")
    given = {
        "SEQTOP_REDACT": "1",
        "SEQTOP_INSECURE": "1",
        "SEQTOP_ENGINE_ID": "night-shift",
        "SEQTOP_TOKENIZER": "",
        "SEQTOP_SERVER_SECRET_KEY": "server.key_secret",
        "SEQTOP_AUTHORIZED_CLIENTS": "clients",
        "SEQTOP_FLIGHT_RECORDER": "records",
        "SEQTOP_FLIGHT_RECORDER_OPTIONS": "--slo ttft=1",
    }
    assert from_environment("ipc:///tmp/e", given) == PublisherSettings(
        bind="ipc:///tmp/e",
        insecure=True,
        engine_id="night-shift",
        tokenizer="",
        redact=True,
        server_secret_key="server.key_secret",
        authorized_clients="clients",
        flight_recorder="records",
        flight_recorder_options="--slo ttft=1",
    )


def test_a_dormant_engine_has_no_flight_recorder() -> None:
    with pytest.raises(ValueError, match="needs an endpoint"):
        from_environment("dormant", {"SEQTOP_FLIGHT_RECORDER": "records"})
