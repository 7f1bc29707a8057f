"""From a `nats://` address to a driver, without a word about the password."""

import traceback
from pathlib import Path

import pytest

from postroom.brokers.nats import NatsBroker
from postroom.brokers.nats.address import parse
from postroom.drivers import open_broker
from postroom.errors import SettingsError

HUSH = "s3cr3t"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("nats://host", (("host:4222",), None, None, None, False)),
        ("nats://host/", (("host:4222",), None, None, None, False)),
        ("tls://host:1", (("host:1",), None, None, None, True)),
        ("nats://ann:pw@one:1,two", (("one:1", "two:4222"), "ann", "pw", None, False)),
        ("nats://a%40b:p%2Fw@[::1]:1", (("[::1]:1",), "a@b", "p/w", None, False)),
        ("nats://[::1]", (("[::1]:4222",), None, None, None, False)),
        ("nats://ann:@host", (("host:4222",), "ann", "", None, False)),
        ("nats://t%2Fok@host", (("host:4222",), None, None, "t/ok", False)),
    ],
)
def test_an_address_is_taken_apart(url: str, expected: tuple[object, ...]) -> None:
    found = parse(url, environ={})

    told = (found.servers, found.username, found.password, found.token, found.secure)
    assert told == expected


def test_who_we_are_may_come_from_the_environment() -> None:
    environ = {"POSTROOM_NATS_USERNAME": "ann", "POSTROOM_NATS_PASSWORD": HUSH}

    from_environment = parse("nats://host", environ=environ)
    from_address = parse("nats://bob:pw@host", environ=environ)
    by_token = parse("nats://host", environ={"POSTROOM_NATS_TOKEN": HUSH})

    assert (from_environment.username, from_environment.password) == ("ann", HUSH)
    assert (from_address.username, from_address.password) == ("bob", "pw")
    assert (by_token.username, by_token.token) == (None, HUSH)


def test_a_name_and_a_token_exclude_each_other() -> None:
    environ = {"POSTROOM_NATS_USERNAME": "ann", "POSTROOM_NATS_TOKEN": HUSH}

    with pytest.raises(ValueError, match="POSTROOM_NATS_TOKEN exclude each other") as caught:
        parse("nats://host", environ=environ)

    assert HUSH not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"nats://ann:{HUSH}/x@host",
        f"nats://ann:{HUSH}@host:port",
        f"nats://ann:{HUSH}@host:70000",
        f"nats://ann:{HUSH}@host/path",
        f"nats://ann:{HUSH}@",
        f"nats://ann:{HUSH}@host,",
        f"nats://ann:{HUSH}@host#x",
        f"tls://ann:{HUSH}@[::1",
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        open_broker(url)

    told = "".join(traceback.format_exception(caught.value))
    assert HUSH not in told.replace(f'"{url}"', "")
    assert HUSH not in str(caught.value)


@pytest.mark.parametrize("named", [f"ann:{HUSH}", HUSH])
def test_no_text_of_the_driver_holds_the_password(named: str) -> None:
    broker = open_broker(f"nats://{named}@host")

    assert isinstance(broker, NatsBroker)
    assert repr(broker) == "NatsBroker('host:4222', stream='postroom')"
    assert HUSH not in repr(broker._options)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("stream=a.b", "stream 'a.b' cannot be a name"),
        ("stream=", "stream '' cannot be a name"),
        ("heartbeat=0.5s", "heartbeat must be from 1 s"),
        ("connect_timeout=0s", "connect_timeout must be from 0.1 s"),
        ("ack_wait=0s", "ack_wait must be from 0.1 s"),
        ("max_age=0s", "max_age must be from 1 s"),
        ("max_in_flight=0", "must be at least 1"),
        ("replicas=none", "must be at least 1"),
        ("max_message_bytes=0", "option 'max_message_bytes' in the address"),
        ("cacertfile=/no/such/file", "need a tls:// address"),
        ("tls_first=true", "need a tls:// address"),
        ("inbox_prefix=a.>", "inbox_prefix 'a.>' cannot be a subject"),
        ("subjects=a b", "subjects: 'a b' cannot be a subject"),
        ("strem=a", "did you mean 'stream'"),
    ],
)
def test_options_are_checked(query: str, expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        open_broker(f"nats://ann:{HUSH}@host?{query}")

    assert expected in caught.value.reason
    assert HUSH not in str(caught.value)


def test_options_in_the_address(tmp_path: Path) -> None:
    certificate = tmp_path / "ca.pem"
    query = (
        "stream=shop&subjects=shop.>,paid.*&declare=true&replicas=3&max_age=7d"
        "&duplicate_window=5m&ack_wait=1m&max_message_bytes=1MiB&max_in_flight=10&heartbeat=5s"
        f"&connect_timeout=1s&inbox_prefix=_INBOX_shop&cacertfile={certificate}&verify=false"
        "&tls_first=true"
    )

    broker = open_broker(f"tls://one,two?{query}")

    assert isinstance(broker, NatsBroker)
    assert broker.features.max_message_bytes == 2**20
    assert broker._making.subjects == ("shop.>", "paid.*")
    assert broker._making.replicas == 3
    assert broker._options.inbox_prefix == "_INBOX_shop"
    assert broker._options.tls is not None
    assert not broker._options.tls.verify
    assert broker._options.tls_first
