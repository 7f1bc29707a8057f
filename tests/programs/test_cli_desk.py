"""The commands that change rows, and look at what there is to change: dead, held, prune, audit."""

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from postroom._clock import to_micros
from postroom.cli import change
from tests.programs.shop import Shop

# dead


def test_dead_list_filters(shop: Shop) -> None:
    shop.dead(1, key="a")
    shop.dead(2, key="b")
    shop.parcels("c")

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

    assert shop.states() == {"dead": 3}


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
    assert shop.states() == ({"ready": 5} if action == "replay" else {})


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
    head, follower, _ = shop.parcels("a")

    done = shop.cli("held", "release", head, follower, "--yes")

    assert (done.code, done.out) == (4, "")
    assert f"no dead head of a key: {follower}" in done.err
    assert shop.cli("held", "list", "--json").json["count"] == 1


def test_replay_sends_again_under_the_same_id(shop: Shop) -> None:
    ids = shop.dead(3)

    done = shop.cli("dead", "replay", *ids[:2], "--yes", "--json")

    assert done.json == {"action": "replay", "count": 2, "dry_run": False}
    assert shop.states() == {"dead": 1, "ready": 2}
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
    assert shop.states() == {"dead": 1}


def test_nothing_to_change_needs_no_answer(shop: Shop) -> None:
    assert shop.cli("dead", "replay").code == 0


def test_one_unknown_id_stops_the_whole_change(shop: Shop) -> None:
    (dead,) = shop.dead(1)

    done = shop.cli("dead", "discard", dead, "nothing", "--yes")

    assert done.code == 4
    assert "nothing" in done.err
    assert shop.states() == {"dead": 1}


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


def test_a_missing_id_is_told_where_consumers_keep_theirs(shop: Shop) -> None:
    done = shop.cli("dead", "show", "nothing")

    assert done.code == 4
    assert "--from GROUP" in done.err


# held


def test_held_list_shows_the_head_and_how_many_wait(shop: Shop) -> None:
    first, *_ = shop.parcels("a", number=3)
    shop.parcels("b", number=2)

    listed = shop.cli("held", "list", "--json").json
    (key_a,) = shop.cli("held", "list", "--key", "a", "--json").json["keys"]

    assert [(each["key"], each["held"]) for each in listed["keys"]] == [("a", 2), ("b", 1)]
    assert (key_a["head"], key_a["state"], key_a["route"]) == (first, "dead", "parcels")
    assert first in shop.cli("held", "list").out
    assert shop.cli("held", "list", "--key", "none").out == "no key is blocked\n"


def test_release_lets_a_key_go_on(shop: Shop) -> None:
    shop.parcels("a")
    shop.parcels("b")

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
    assert shop.states() == {}


def test_prune_of_one_kind_leaves_the_other(shop: Shop) -> None:
    sent_long_ago(shop, days=8)

    assert shop.cli("prune", "--inbox-older-than", "30d", "--json").json["sent"] == 0
    assert shop.cli("prune", "--sent-older-than", "9d", "--json").json["sent"] == 0
    assert shop.cli("prune", "--sent-older-than", "7d", "--json").json["sent"] == 1


def test_prune_never_touches_what_was_not_sent(shop: Shop) -> None:
    shop.dead(1)
    shop.put(shop.order())

    shop.cli("prune", "--sent-older-than", "0s")

    assert shop.states() == {"dead": 1, "ready": 1}


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
