"""The commands that look at rows and change them: status, show, dead, held, prune."""

import json
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from postroom._clock import to_micros
from postroom.cli import change
from postroom.message import Message
from tests.programs.shop import Shop


def states(shop: Shop) -> dict[str, int]:
    """Return rows of the outbox by state, over all routes."""
    routes = shop.cli("status", "--json").json["outbox"]["routes"].values()
    totals = {name: sum(route[name] for route in routes) for name in STATES}
    return {name: count for name, count in totals.items() if count}


STATES = ("scheduled", "ready", "waiting", "held", "sent", "dead")


def parcels(shop: Shop, key: str, number: int = 3) -> list[str]:
    """Park a key: its first message is dead and blocks, the others are held behind it."""
    ids = shop.put(
        *(
            Message(
                type="shop.parcel-packed",
                key=key,
                payload=json.dumps({"n": n, "fill": "x" * (2000 if n == 0 else 1)}).encode(),
            )
            for n in range(number)
        )
    )
    assert shop.cli("relay", "--until-empty").code == 0
    return ids


# status


def test_status_counts_by_route_and_state(shop: Shop) -> None:
    shop.dead(2)
    parcels(shop, "a")
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
    parcels(shop, "a")

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


# dead


def test_dead_list_filters(shop: Shop) -> None:
    shop.dead(1, key="a")
    shop.dead(2, key="b")
    parcels(shop, "c")

    def count(*args: str) -> int:
        return int(shop.cli("dead", "list", "--json", *args).json["count"])

    assert count() == 4
    assert count("--key", "b") == 2
    assert count("--type", "shop.parcel-packed") == 1
    assert count("--route", "default") == 3
    assert count("--since", "1h") == 4
    assert count("--since", "0s") == 0
    assert count("--since", "2999-01-01T00:00:00Z") == 0
    assert count("--limit", "2") == 2


def test_dead_list_for_people_gives_the_reason(shop: Shop) -> None:
    (one,) = shop.dead(1)

    lines = shop.cli("dead", "list").out.splitlines()

    assert lines[0].split() == ["id", "type", "key", "attempts", "given", "up", "reason"]
    assert lines[1].startswith(one)
    assert "1000" in lines[1]
    assert shop.cli("dead", "list", "--key", "none").out == "no dead messages in the outbox\n"


def test_dead_show_knows_only_the_dead(shop: Shop) -> None:
    (dead,), (ready,) = shop.dead(1), shop.put(shop.order())

    assert shop.cli("dead", "show", dead, "--json").json["state"] == "dead"
    assert shop.cli("show", ready).code == 0
    assert shop.cli("dead", "show", ready).code == 4


def test_a_dry_run_is_exact_and_changes_nothing(shop: Shop) -> None:
    shop.dead(3)

    for action in ("replay", "discard"):
        done = shop.cli("dead", action, "--limit", "2", "--dry-run", "--json")
        assert done.json == {"action": action, "count": 2, "dry_run": True}

    assert states(shop) == {"dead": 3}


@pytest.mark.parametrize("action", ["replay", "discard"])
def test_without_a_limit_all_are_meant(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.setattr(change, "_CHUNK", 2)
    shop.dead(5)

    listed = shop.cli("dead", "list", "--limit", "2", "--json").json
    counted = shop.cli("dead", action, "--dry-run")
    done = shop.cli("dead", action, "--yes", "--json").json

    told = {"replay": "sent again", "discard": "deleted"}[action]
    assert (listed["count"], listed["total"]) == (2, 5)
    assert counted.out == f"5 dead messages would be {told}\n"
    assert done["count"] == 5
    assert states(shop) == ({"ready": 5} if action == "replay" else {})


def test_a_position_names_one_of_two_copies(shop: Shop) -> None:
    order = shop.order()
    shop.reject("shipping", order)
    shop.reject("shipping", order)
    group = ("--from", "shipping")
    letters = shop.cli("dead", "list", *group, "--json").json["messages"]
    first, second = (str(letter["position"]) for letter in letters)

    text = shop.cli("dead", "list", *group).out
    done = shop.cli("dead", "discard", second, *group, "--yes", "--json")
    missing = shop.cli("dead", "discard", second, *group, "--yes")
    left = shop.cli("dead", "list", *group, "--json").json["messages"]

    assert [line.split()[0] for line in text.splitlines()] == ["position", first, second]
    assert (done.json["count"], missing.code) == (1, 4)
    assert [str(letter["position"]) for letter in left] == [first]


def test_release_of_an_unknown_id_exits_with_4(shop: Shop) -> None:
    head, follower, _ = parcels(shop, "a")

    done = shop.cli("held", "release", head, follower, "--yes")

    assert (done.code, done.out) == (4, "")
    assert f"no dead head of a key: {follower}" in done.err
    assert shop.cli("held", "list", "--json").json["count"] == 1


def test_replay_sends_again_under_the_same_id(shop: Shop) -> None:
    ids = shop.dead(3)

    done = shop.cli("dead", "replay", *ids[:2], "--yes", "--json")

    assert done.json == {"action": "replay", "count": 2, "dry_run": False}
    assert states(shop) == {"dead": 1, "ready": 2}
    assert shop.cli("show", ids[0], "--json").json["attempts"] == 0


def test_discard_deletes(shop: Shop) -> None:
    ids = shop.dead(2, key="a")

    done = shop.cli("dead", "discard", "--key", "a", "--yes")

    assert (done.code, done.out) == (0, "2 dead messages were deleted\n")
    assert shop.cli("show", ids[0]).code == 4


@pytest.mark.parametrize("action", ["replay", "discard"])
def test_without_a_terminal_nothing_is_changed_unless_told(shop: Shop, action: str) -> None:
    shop.dead(1)

    done = shop.cli("dead", action)

    assert (done.code, done.out) == (5, "")
    assert "--yes" in done.err
    assert states(shop) == {"dead": 1}


def test_nothing_to_change_needs_no_answer(shop: Shop) -> None:
    assert shop.cli("dead", "replay").code == 0


def test_one_unknown_id_stops_the_whole_change(shop: Shop) -> None:
    (dead,) = shop.dead(1)

    done = shop.cli("dead", "discard", dead, "nothing", "--yes")

    assert done.code == 4
    assert "nothing" in done.err
    assert states(shop) == {"dead": 1}


def test_the_dead_letters_of_a_group(shop: Shop) -> None:
    ids = shop.reject("shipping", shop.order(1), shop.order(2, key="a"), reason="no address")

    listed = shop.cli("dead", "list", "--from", "shipping", "--json").json
    assert [(m["id"], m["error"]) for m in listed["messages"]] == [
        (ids[0], "no address"),
        (ids[1], "no address"),
    ]
    assert shop.cli("dead", "list", "--from", "shipping", "--key", "a", "--json").json["count"] == 1
    assert (
        shop.cli("dead", "list", "--from", "shipping", "--since", "0s", "--json").json["count"] == 0
    )
    assert shop.cli("dead", "show", ids[1], "--from", "shipping", "--json").json["key"] == "a"
    assert shop.cli("dead", "list", "--json").json["count"] == 0


def test_replay_and_discard_in_a_group(shop: Shop) -> None:
    ids = shop.reject("shipping", shop.order(1), shop.order(2), shop.order(3))
    group = ("--from", "shipping")

    dry = shop.cli("dead", "replay", ids[0], *group, "--dry-run", "--json")
    replayed = shop.cli("dead", "replay", ids[0], *group, "--yes", "--json")
    discarded = shop.cli("dead", "discard", "--limit", "1", *group, "--yes", "--json")

    assert (dry.json["count"], replayed.json["count"], discarded.json["count"]) == (1, 1, 1)
    (queue,) = shop.cli("status", "--json").json["broker"]["queues"]
    assert (queue["ready"], queue["dead"]) == (1, 1)


def test_an_unknown_group_exits_with_4_and_a_suggestion(shop: Shop) -> None:
    shop.reject("shipping", shop.order())

    done = shop.cli("dead", "list", "--from", "shiping")

    assert done.code == 4
    assert "did you mean 'shipping'?" in done.err


# held


def test_held_list_shows_the_head_and_how_many_wait(shop: Shop) -> None:
    first, *_ = parcels(shop, "a", number=3)
    parcels(shop, "b", number=2)

    listed = shop.cli("held", "list", "--json").json
    (key_a,) = shop.cli("held", "list", "--key", "a", "--json").json["keys"]

    assert [(each["key"], each["held"]) for each in listed["keys"]] == [("a", 2), ("b", 1)]
    assert (key_a["head"], key_a["state"], key_a["route"]) == (first, "dead", "parcels")
    assert first in shop.cli("held", "list").out
    assert shop.cli("held", "list", "--key", "none").out == "no key is blocked\n"


def test_release_lets_a_key_go_on(shop: Shop) -> None:
    parcels(shop, "a")
    parcels(shop, "b")

    dry = shop.cli("held", "release", "--key", "a", "--dry-run", "--json")
    done = shop.cli("held", "release", "--key", "a", "--yes", "--json")
    assert shop.cli("relay", "--until-empty").code == 0

    assert dry.json == {"action": "release", "count": 1, "dry_run": True}
    assert done.json == {"action": "release", "count": 1, "dry_run": False}
    assert [each["key"] for each in shop.cli("held", "list", "--json").json["keys"]] == ["b"]


# prune


def sent_long_ago(shop: Shop, days: int) -> None:
    """Send a message, and let it and a handled id be so old."""
    shop.put(shop.order())
    assert shop.cli("relay", "--until-empty").code == 0
    then = to_micros(datetime.now(UTC) - timedelta(days=days))
    connection = sqlite3.connect(shop.path / "shop.db", isolation_level=None)
    connection.execute("update postroom_outbox set settled_at = ?", (then,))
    connection.close()


def test_prune_goes_by_the_settings(shop: Shop) -> None:
    sent_long_ago(shop, days=8)

    dry = shop.cli("prune", "--dry-run", "--json")
    done = shop.cli("prune")

    assert dry.json == {"sent": 1, "inbox": 0, "dry_run": True}
    assert done.out.splitlines() == [
        "1 sent messages older than 7d deleted",
        "0 handled ids older than 30d deleted",
    ]
    assert states(shop) == {}


def test_prune_of_one_kind_leaves_the_other(shop: Shop) -> None:
    sent_long_ago(shop, days=8)

    assert shop.cli("prune", "--inbox-older-than", "30d", "--json").json["sent"] == 0
    assert shop.cli("prune", "--sent-older-than", "9d", "--json").json["sent"] == 0
    assert shop.cli("prune", "--sent-older-than", "7d", "--json").json["sent"] == 1


def test_prune_never_touches_what_was_not_sent(shop: Shop) -> None:
    shop.dead(1)
    shop.put(shop.order())

    shop.cli("prune", "--sent-older-than", "0s")

    assert states(shop) == {"dead": 1, "ready": 1}


def test_prune_refuses_to_forget_what_can_be_replayed(shop: Shop) -> None:
    refused = shop.cli("prune", "--inbox-older-than", "1d")

    assert refused.code == 2
    assert "would take effect twice" in refused.err
    assert shop.cli("prune", "--inbox-older-than", "1d", "--force").code == 0


def test_audit_lists_changes_the_newest_first(shop: Shop) -> None:
    assert shop.cli("audit").out == "nobody changed anything\n"
    shop.dead(2, key="a")
    assert shop.cli("dead", "replay", "--limit", "1", "--yes").code == 0
    assert shop.cli("dead", "discard", "--key", "a", "--yes").code == 0

    records = shop.cli("audit", "--json").json["records"]

    assert [(each["action"], each["count"]) for each in records] == [("discard", 1), ("replay", 1)]
    assert records[0]["actor"].startswith("cli:")
    assert '"key": "a"' in records[0]["detail"]
    assert "discard" in shop.cli("audit").out.splitlines()[1]


def test_changes_are_written_down_with_who_made_them(shop: Shop) -> None:
    shop.dead(1)

    shop.cli("dead", "discard", "--yes")

    connection = sqlite3.connect(shop.path / "shop.db")
    ((actor, action, count),) = connection.execute(
        "select actor, action, count from postroom_audit"
    ).fetchall()
    connection.close()
    assert actor.startswith("cli")
    assert (action, count) == ("discard", 1)
    assert Path(shop.path / "shop.db").exists()
