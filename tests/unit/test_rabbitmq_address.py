"""From an `amqp://` address to a driver, without a word about the password."""

import traceback
from pathlib import Path

import pytest

from postroom.brokers.rabbitmq import RabbitmqBroker
from postroom.brokers.rabbitmq.address import parse
from postroom.drivers import open_broker
from postroom.errors import SettingsError

HUSH = "s3cr3t"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://host", ("host", 5672, "/", "guest", "guest", False)),
        ("amqp://host/", ("host", 5672, "/", "guest", "guest", False)),
        ("amqps://host/shop", ("host", 5671, "shop", "guest", "guest", True)),
        ("amqp://ann:pw@host:1/%2Fshop", ("host", 1, "/shop", "ann", "pw", False)),
        ("amqp://a%40b:p%2Fw@[::1]:1/v", ("::1", 1, "v", "a@b", "p/w", False)),
        ("amqp://ann@host/v", ("host", 5672, "v", "ann", "", False)),
    ],
)
def test_an_address_is_taken_apart(url: str, expected: tuple[object, ...]) -> None:
    found = parse(url, environ={})

    assert (
        *(found.host, found.port, found.vhost),
        *(found.username, found.password, found.secure),
    ) == expected


def test_name_and_password_may_come_from_the_environment() -> None:
    environ = {"POSTROOM_RABBITMQ_USERNAME": "ann", "POSTROOM_RABBITMQ_PASSWORD": HUSH}

    from_environment = parse("amqp://host/v", environ=environ)
    from_address = parse("amqp://bob:pw@host/v", environ=environ)

    assert (from_environment.username, from_environment.password) == ("ann", HUSH)
    assert (from_address.username, from_address.password) == ("bob", "pw")


@pytest.mark.parametrize(
    "url",
    [
        f"amqp://ann:{HUSH}/x@host/v",
        f"amqp://ann:{HUSH}@host:port/v",
        f"amqp://ann:{HUSH}@host/a/b",
        f"amqp://ann:{HUSH}@/v",
        f"amqp://ann:{HUSH}@host/v#x",
        f"amqp://ann:{HUSH}@[::1/v",
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        open_broker(url)

    told = "".join(traceback.format_exception(caught.value))
    assert HUSH not in told.replace(f'"{url}"', "")
    assert HUSH not in str(caught.value)


def test_no_text_of_the_driver_holds_the_password() -> None:
    broker = open_broker(f"amqp://ann:{HUSH}@host/v")

    assert isinstance(broker, RabbitmqBroker)
    assert repr(broker) == "RabbitmqBroker('host:5672', exchange='postroom')"
    assert HUSH not in repr(broker._options)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("exchnge=a", "unknown option 'exchnge' in the address; did you mean 'exchange'?"),
        ("queue_type=lazy", "queue_type must be classic or quorum, not 'lazy'"),
        ("heartbeat=5", "option 'heartbeat' in the address: '5' is not a duration"),
        ("heartbeat=1ms", "heartbeat must be from 1 s to 3600 s"),
        ("max_in_flight=0", "must be at least 1"),
        ("exchange=", "exchange needs a name"),
        ("declare=maybe", "option 'declare' in the address: 'maybe' is not true or false"),
        ("cacertfile=/no/such/file", "certificates need an amqps:// address"),
    ],
)
def test_options_are_checked(query: str, expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        open_broker(f"amqp://ann:{HUSH}@host/v?{query}")

    assert expected in caught.value.reason
    assert HUSH not in str(caught.value)


def test_options_in_the_address(tmp_path: Path) -> None:
    certificate = tmp_path / "ca.pem"
    query = (
        "exchange=shop&queue_type=classic&single_active_consumer=false&declare=true&heartbeat=5s"
        "&connect_timeout=1s&max_message_bytes=1MiB&max_in_flight=10&groups=billing,shipping"
        f"&cacertfile={certificate}&verify=false"
    )

    broker = open_broker(f"amqps://host/v?{query}")

    assert isinstance(broker, RabbitmqBroker)
    assert broker.features.max_message_bytes == 2**20
    assert not broker.features.ordered_by_key
    assert broker._groups == {"billing", "shipping"}
    assert broker._options.tls is not None
    assert broker._options.tls.cacertfile == str(certificate)
    assert not broker._options.tls.verify
