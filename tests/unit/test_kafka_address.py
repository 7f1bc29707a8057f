"""Addresses of Kafka: what is understood, what is refused, and what is never printed."""

import pytest

from postroom.brokers.kafka.address import PASSWORD, USERNAME, Security, client_config, parse
from postroom.drivers import open_broker
from postroom.errors import SettingsError


@pytest.mark.parametrize(
    ("url", "servers"),
    [
        ("kafka://one", ("one:9092",)),
        ("kafka://one:1234/", ("one:1234",)),
        ("kafka://one:1,two,three:3", ("one:1", "two:9092", "three:3")),
        ("kafka://[::1]:9093,[fe80::1]", ("[::1]:9093", "[fe80::1]:9092")),
    ],
)
def test_places(url: str, servers: tuple[str, ...]) -> None:
    assert parse(url, {}).servers == servers


def test_name_and_password_may_hold_signs() -> None:
    address = parse("kafka://ann%40x:p%2Fw%3A%40@one:1", {})

    assert (address.username, address.password) == ("ann@x", "p/w:@")


def test_name_and_password_come_from_the_environment() -> None:
    address = parse("kafka://one", {USERNAME: "ann", PASSWORD: "s3cr3t"})

    assert (address.username, address.password) == ("ann", "s3cr3t")
    assert "s3cr3t" not in repr(address)


@pytest.mark.parametrize(
    "url",
    [
        "kafka:",
        "kafka://",
        "kafka://user:s3cr3t@",
        "kafka://user:s3cr3t@one:port",
        "kafka://user:s3cr3t@one:0",
        "kafka://user:s3cr3t@one:65536",
        "kafka://user:s3cr3t@one,,two",
        "kafka://user:s3cr3t@::1",
        "kafka://user:s3cr3t@one/topic",
    ],
)
def test_other_shapes_are_refused_without_the_password(url: str) -> None:
    with pytest.raises(SettingsError) as refused:
        open_broker(url)

    assert "s3cr3t" not in str(refused.value)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("cacertfile=/nowhere.pem", "tls=true"),
        ("tls=true&cacertfile=/nowhere.pem", "no such file"),
        ("verify=false", "tls=true"),
        ("sasl=GSSAPI", "must be one of"),
        ("sasl=PLAIN", USERNAME),
        ("partitions=0", "at least 1"),
        ("session_timeout=1ms", "session_timeout"),
        ("topic=x", "unknown option"),
    ],
)
def test_options_that_cannot_work_are_refused(
    query: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(USERNAME, raising=False)

    with pytest.raises(SettingsError, match=said):
        open_broker(f"kafka://one?{query}")


@pytest.mark.parametrize(
    ("url", "security", "protocol"),
    [
        ("kafka://one", Security(), "plaintext"),
        ("kafka://ann:pw@one", Security(), "sasl_plaintext"),
        ("kafka://one", Security(tls=True), "ssl"),
        ("kafka://ann:pw@one", Security(tls=True, sasl="SCRAM-SHA-512"), "sasl_ssl"),
    ],
)
def test_the_protocol_follows_from_what_is_given(
    url: str, security: Security, protocol: str
) -> None:
    config = client_config(parse(url, {}), security)

    assert config["security.protocol"] == protocol
    assert config.get("sasl.mechanism") == (None if "ann" not in url else security.sasl or "PLAIN")
