"""The commands that only look: what status finds wrong, and all that show tells of one message."""

from datetime import UTC, datetime, timedelta

import pytest

from postroom.message import Message
from tests.programs.shop import Shop


def test_status_counts_by_route_and_state(shop: Shop) -> None:
    shop.dead(2)
    shop.parcels("a")
    shop.put(shop.order(), shop.order())

    seen = shop.cli("status", "--json").json

    assert seen["outbox"]["unsent"] == 4
    assert seen["outbox"]["dead"] == 3
    assert seen["outbox"]["blocked_keys"] == 1
    assert seen["outbox"]["routes"]["default"]["ready"] == 2
    assert seen["outbox"]["routes"]["default"]["oldest_unsent_seconds"] >= 0
    assert seen["outbox"]["routes"]["parcels"]["held"] == 2
    assert seen["store"]["schema_version"] == 1
    assert seen["broker"]["reachable"] is True


def test_status_shows_queues_and_dead_letters(shop: Shop) -> None:
    shop.reject("shipping", shop.order(1), shop.order(2))

    seen = shop.cli("status", "--json").json

    (queue,) = seen["broker"]["queues"]
    assert (queue["group"], queue["topic"], queue["dead"]) == ("shipping", "shop.order-placed", 2)
    assert seen["broker"]["dead_letters"] == 2
    assert seen["problems"] == [
        "group shipping: 2 dead letters (postroom dead list --from shipping)"
    ]


def test_status_for_people_names_what_is_wrong(shop: Shop) -> None:
    shop.put(shop.order())

    text = shop.cli("status").out

    assert "sqlite:///shop.db" in text
    assert "! 1 unsent and no relay alive (postroom relay)" in text


def test_status_check_fails_only_when_something_is_wrong(shop: Shop) -> None:
    assert shop.cli("status", "--check").code == 0

    shop.put(shop.order())

    assert shop.cli("status").code == 0
    assert shop.cli("status", "--check").code == 1
    assert shop.cli("status", "--check", "--json").json["problems"]


def test_status_finds_what_waits_too_long(shop: Shop) -> None:
    shop.put(shop.order())

    done = shop.cli("status", "--json", "--max-age", "0s")

    assert any("the oldest unsent message waits for" in each for each in done.json["problems"])


def test_status_worries_about_what_nobody_consumes(shop: Shop) -> None:
    shop.put(shop.order(1), shop.order(2))
    assert shop.cli("relay", "--until-empty").code == 0

    unclaimed = shop.cli("status", "--check", "--json")
    shop.subscribe("shipping", "shop.order-placed")
    fresh = shop.cli("status", "--check", "--json")
    old = shop.cli("status", "--check", "--max-age", "0s", "--json")

    assert unclaimed.code == 1
    assert unclaimed.json["problems"] == ["topic shop.order-placed: 2 messages, nobody subscribes"]
    assert unclaimed.json["broker"]["queues"][0]["group"] == ""
    assert (fresh.code, fresh.json["problems"]) == (0, [])
    assert fresh.json["broker"]["queues"][0]["consumers"] == 0
    assert old.code == 1
    (told,) = old.json["problems"]
    assert told.startswith("group shipping: the oldest message of shop.order-placed waits for ")
    assert told.endswith(" and no consumer is alive")
    assert "(nobody)" not in shop.cli("status").out


def test_status_says_where_blocked_keys_are_shown(shop: Shop) -> None:
    shop.parcels("a")

    assert "1 blocked key (postroom held list)" in shop.cli("status", "--json").json["problems"]


ONE_ROUTE = 'store = "sqlite:///shop.db"\nbroker = "sqlite:///broker.db"\n'
"""Settings from which the route of the parcels was removed."""
STRANDED = "no relay serves route parcels: 1 unsent row (is it in the settings of the relays?)"


def parcel(due: datetime | None = None) -> Message:
    return Message(type="shop.parcel-packed", payload=b"{}", deliver_at=due)


@pytest.mark.parametrize("scheduled", [False, True])
def test_status_finds_messages_of_a_route_that_nobody_serves(
    shop: Shop, *, scheduled: bool
) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    shop.put(parcel(later if scheduled else None))
    (shop.path / "postroom.toml").write_text(ONE_ROUTE)
    routes = {"default": True}

    alone = shop.cli("status", "--check", "--json")
    shop.lease("relay", routes)
    beside = shop.cli("status", "--check", "--json")
    shop.lease("relay", {**routes, "parcels": False})
    served = shop.cli("status", "--check", "--json")

    assert (alone.code, beside.code) == (1, 1)
    assert alone.json["problems"] == ["1 unsent and no relay alive (postroom relay)", STRANDED]
    assert beside.json["problems"] == [STRANDED]
    assert beside.json["relays"][0]["routes"] == ["default"]
    assert STRANDED not in served.json["problems"]


def test_until_empty_is_not_empty_with_messages_that_nobody_serves(shop: Shop) -> None:
    shop.put(parcel(), shop.order())
    (shop.path / "postroom.toml").write_text(ONE_ROUTE)

    done = shop.cli("relay", "--until-empty", "--json")

    assert done.code == 1
    assert (done.json["sent"], done.json["unserved"]) == (1, {"parcels": 1})
    assert f"not empty: {STRANDED}" in done.err


def test_status_goes_on_while_the_broker_is_away(shop: Shop) -> None:
    done = shop.cli("status", "--json", POSTROOM_BROKER="sqlite:////no/such/directory/b.db")

    assert done.code == 3
    assert done.json["broker"]["reachable"] is False
    assert done.json["outbox"]["unsent"] == 0


# show


def test_show_tells_everything_about_one_message(shop: Shop) -> None:
    message = Message(
        type="shop.order-placed", key="order-7", payload=b'{"amount": 0.10}', headers={"a": "b"}
    )
    shop.put(message)

    text, seen = shop.cli("show", message.id).out, shop.cli("show", message.id, "--json").json

    assert (seen["state"], seen["key"], seen["headers"]) == ("ready", "order-7", {"a": "b"})
    assert (seen["payload"], seen["payload_text"]) == ({"amount": 0.1}, '{"amount": 0.10}')
    assert '"amount": 0.1' in text
    assert "order-7" in text


@pytest.mark.parametrize(
    ("content_type", "payload", "expected"),
    [
        ("text/plain", "grün".encode(), {"payload_text": "grün"}),
        ("application/octet-stream", b"\xff\x00", {"payload_base64": "/wA="}),
        ("application/json", b"{broken", {"payload_text": "{broken"}),
    ],
)
def test_show_keeps_any_payload_readable(
    shop: Shop, content_type: str, payload: bytes, expected: dict[str, str]
) -> None:
    message = Message(type="shop.order-placed", content_type=content_type, payload=payload)
    shop.put(message)

    seen = shop.cli("show", message.id, "--json").json

    assert {name: seen[name] for name in seen if name.startswith("payload")} == expected
    assert next(iter(expected.values())) in shop.cli("show", message.id).out


def test_a_message_cannot_steer_the_terminal(shop: Shop) -> None:
    message = Message(
        type="t", content_type="text/plain", payload=b"\x1b]0;owned\x07", key="\x1b[2J"
    )
    shop.put(message)

    assert "\x1b" not in shop.cli("show", message.id).out


def test_show_of_an_unknown_id_exits_with_4(shop: Shop) -> None:
    done = shop.cli("show", "nothing", "--json")

    assert (done.code, done.out) == (4, "")
