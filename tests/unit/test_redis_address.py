"""From a `redis://` address to a driver, without a word about the password."""

import traceback
from pathlib import Path

import pytest

from postroom.brokers.redis import RedisBroker
from postroom.brokers.redis.address import parse
from postroom.drivers import open_broker
from postroom.errors import SettingsError

HUSH = "s3cr3t"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://host", ("host", 6379, 0, None, None, False)),
        ("redis://host/", ("host", 6379, 0, None, None, False)),
        ("rediss://host/3", ("host", 6379, 3, None, None, True)),
        ("redis://ann:pw@host:1/2", ("host", 1, 2, "ann", "pw", False)),
        ("redis://:pw@host", ("host", 6379, 0, None, "pw", False)),
        ("redis://a%40b:p%2Fw@[::1]:1", ("::1", 1, 0, "a@b", "p/w", False)),
    ],
)
def test_an_address_is_taken_apart(url: str, expected: tuple[object, ...]) -> None:
    found = parse(url, environ={})

    assert (
        *(found.host, found.port, found.database),
        *(found.username, found.password, found.secure),
    ) == expected


def test_name_and_password_may_come_from_the_environment() -> None:
    environ = {"POSTROOM_REDIS_USERNAME": "ann", "POSTROOM_REDIS_PASSWORD": HUSH}

    from_environment = parse("redis://host", environ=environ)
    from_address = parse("redis://bob:pw@host", environ=environ)

    assert (from_environment.username, from_environment.password) == ("ann", HUSH)
    assert (from_address.username, from_address.password) == ("bob", "pw")


@pytest.mark.parametrize(
    "url",
    [
        f"redis://ann:{HUSH}/x@host/0",
        f"redis://ann:{HUSH}@host:port/0",
        f"redis://ann:{HUSH}@host/shop",
        f"redis://ann:{HUSH}@host/0/1",
        f"redis://ann:{HUSH}@/0",
        f"redis://ann:{HUSH}@host/0#x",
        f"redis://ann:{HUSH}@[::1/0",
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        open_broker(url)

    told = "".join(traceback.format_exception(caught.value))
    assert HUSH not in told.replace(f'"{url}"', "")
    assert HUSH not in str(caught.value)


def test_no_text_of_the_driver_holds_the_password() -> None:
    broker = open_broker(f"redis://ann:{HUSH}@host/1")

    assert isinstance(broker, RedisBroker)
    assert repr(broker) == "RedisBroker('host:6379/1', prefix='postroom')"
    assert HUSH not in repr(broker._options)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("prefx=a", "unknown option 'prefx' in the address; did you mean 'prefix'?"),
        ("prefix=", "prefix must not be empty"),
        ("missing_stream=keep", "missing_stream must be refuse or create, not 'keep'"),
        ("lease=5", "option 'lease' in the address: '5' is not a duration"),
        ("lease=1ms", "lease must be from 1 s to 1 days"),
        ("connect_timeout=1ms", "connect_timeout must be from 0.1 s"),
        ("max_in_flight=0", "must be at least 1"),
        ("maxlen=0", "must be at least 1"),
        ("max_message_bytes=1000MiB", "max_message_bytes must be from 1 to 536870912"),
        ("replicas=one", "must be at least 1"),
        ("fsync=yes", "'yes' is not true or false"),
        ("cacertfile=/tmp/ca.pem", "certificates need a rediss:// address"),
        ("verify=false", "certificates need a rediss:// address"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_with_the_cure(query: str, expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        open_broker(f"redis://ann:{HUSH}@host/0?{query}")

    assert expected in str(caught.value)
    assert HUSH not in str(caught.value)


def test_files_of_certificates_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"missing\.pem: no such file"):
        open_broker(f"rediss://host?cacertfile={tmp_path}/missing.pem")
    key = tmp_path / "own.key"
    key.write_text("")
    with pytest.raises(SettingsError, match="keyfile needs a certfile"):
        open_broker(f"rediss://host?keyfile={key}")


def test_options_come_from_the_address() -> None:
    broker = open_broker("redis://host?missing_stream=create&maxlen=9&replicas=2&fsync=true")

    assert isinstance(broker, RedisBroker)
    assert not broker.features.reports_unroutable
    assert (broker._sending.maxlen, broker._sending.replicas, broker._sending.fsync) == (9, 2, True)
