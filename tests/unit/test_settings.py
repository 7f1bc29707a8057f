"""Settings: one object, checked, from the file and the environment."""

import re
from dataclasses import FrozenInstanceError, replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom._clock import LONGEST
from postroom.cli.template import template
from postroom.errors import SettingsError
from postroom.relay import RelayOptions
from postroom.retry import Backoff
from postroom.route import Route
from postroom.settings import Retention, Settings, duration, redacted

HUSH = "s3cr3t"
TEMPLATE = template(Settings().store, Settings().broker)


def load(tmp_path: Path, text: str = "", **environ: str) -> Settings:
    path = tmp_path / "postroom.toml"
    path.write_text(text)
    return Settings.load(path, environ)


def refusal(tmp_path: Path, text: str = "", **environ: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text, **environ)
    return caught.value.reason.replace(f"{tmp_path}/", "")


def test_nothing_set_means_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert Settings.load(environ={}) == Settings()
    assert Settings().store == "sqlite:///postroom.db"


def test_the_template_loads_as_the_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, TEMPLATE) == Settings()


def test_every_commented_line_of_the_template_is_the_default(tmp_path: Path) -> None:
    """Uncommented it still means what it meant before, so the comments tell the truth."""
    setting = re.compile(r"^# (?=\[|\w+ = )", re.MULTILINE)
    text = setting.sub("", TEMPLATE).replace('topic = "everything"\n', "")

    loaded = load(tmp_path, text)

    assert loaded == replace(Settings(), routes=(Route(),))


@pytest.mark.parametrize(
    "line", re.findall(r"^# (\w+ = .*)", TEMPLATE.partition("[[routes]]")[0], re.MULTILINE)
)
def test_each_line_of_the_template_can_be_uncommented_alone(tmp_path: Path, line: str) -> None:
    assert load(tmp_path, TEMPLATE.replace(f"# {line}\n", f"{line}\n", 1)) == Settings()


@pytest.mark.parametrize(
    ("url", "written"),
    [
        ("postgresql://ann@host/shop?schema=a", "postgresql://ann@host/shop?schema=a"),
        (f"postgresql://ann:{HUSH}@host/shop?schema=a", "postgresql://ann@host/shop?schema=a"),
        (f"postgresql://ann:{HUSH}/{HUSH}@host/shop", "postgresql://ann@host/shop"),
        (f"postgresql://host/shop?password={HUSH}&schema=a", "postgresql://host/shop?schema=a"),
        (f"postgresql://host/shop?user=ann&password={HUSH}", "postgresql://host/shop?user=ann"),
        ("amqp://ann@host", "amqp://ann@host"),
        (f"amqp://:{HUSH}@host", "amqp://host"),
        ('sqlite:////srv/"a\\b".db', 'sqlite:////srv/"a\\b".db'),
    ],
)
def test_the_template_has_the_addresses_without_passwords(
    tmp_path: Path, url: str, written: str
) -> None:
    text = template(url, url)
    settings = load(tmp_path, text)

    assert (settings.store, settings.broker) == (written, written)
    assert HUSH not in text
    assert ("POSTROOM_STORE has the whole address" in text) == (url != written)


def test_the_template_shows_every_key(tmp_path: Path) -> None:
    known = re.findall(r"known here: (.*)$", refusal(tmp_path, POSTROOM_RELAY__XXXX="1"))[0]
    for name in known.split(", "):
        assert re.search(rf"\b{name.rpartition('__')[2].lower()} = ", TEMPLATE), name


def test_the_working_directory_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("postroom.toml").write_text("[relay]\nbatch = 7")

    assert Settings.load(environ={}).relay.batch == 7


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    for path, environ in ((tmp_path / "no.toml", {}), (None, {"POSTROOM_CONFIG": "no.toml"})):
        with pytest.raises(SettingsError, match=r"no\.toml: no such file"):
            Settings.load(path, environ)


def test_everything_in_the_file_is_read(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        """
        store = "sqlite:////srv/shop.db"
        [relay]
        lease = "1m"
        renewal = "20s"
        max_batch_bytes = "2MiB"
        probe = { initial = "50ms" }
        [retention]
        keep_sent = false
        sent = "2d"
        inbox = "1w"
        [[routes]]
        name = "mail"
        types = ["mail.*"]
        topic = "outgoing"
        on_dead = "park"
        pipelined_keys = true
        retry = { max_attempts = 3, initial = "2s", factor = 3 }
        [log]
        format = "json"
        level = "debug"
        """,
    )

    assert settings.store == "sqlite:////srv/shop.db"
    assert (settings.relay.lease, settings.relay.renewal) == (
        timedelta(minutes=1),
        timedelta(seconds=20),
    )
    assert settings.relay.max_batch_bytes == 2 * 1024 * 1024
    assert settings.relay.probe.initial == timedelta(milliseconds=50)
    assert settings.relay.probe.maximum == RelayOptions().probe.maximum
    assert not settings.relay.keep_sent
    assert settings.retention == Retention(sent=timedelta(days=2), inbox=timedelta(weeks=1))
    (route,) = settings.routes
    assert (route.name, route.types, route.topic) == ("mail", ("mail.*",), "outgoing")
    assert (route.on_dead, route.pipelined_keys) == ("park", True)
    assert (route.retry.max_attempts, route.retry.backoff.factor) == (3, 3.0)
    assert route.retry.backoff.initial == timedelta(seconds=2)
    assert (settings.log.format, settings.log.level) == ("json", "debug")


def test_the_environment_comes_before_the_file(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        '[relay]\nlease = "30s"\nbatch = 5',
        POSTROOM_STORE="sqlite:///other.db",
        POSTROOM_RELAY__LEASE="40s",
        POSTROOM_RELAY__PROBE__JITTER="0.5",
        POSTROOM_RETENTION__KEEP_SENT="false",
        POSTROOM_LIMITS__MAX_PAYLOAD_BYTES="64KiB",
        POSTROOM_LOG__FORMAT="json",
    )

    assert settings.store == "sqlite:///other.db"
    assert settings.relay.lease == timedelta(seconds=40)
    assert settings.relay.batch == 5
    assert settings.relay.probe.jitter == 0.5
    assert not settings.relay.keep_sent
    assert settings.limits.max_payload_bytes == 65_536
    assert settings.log.format == "json"


def test_settings_never_change() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().store = "memory:"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("stor = 'x'", "postroom.toml: unknown key 'stor' at the top level; did you mean 'store'?"),
        (
            "[relay]\nleas = '1s'",
            "postroom.toml: unknown key 'leas' in [relay]; did you mean 'lease'?",
        ),
        (
            "[relay]\nkeep_sent = false",
            "postroom.toml: unknown key 'keep_sent' in [relay]; it belongs to [retention]",
        ),
        (
            "[log]\ninitial = '1s'",
            (
                "postroom.toml: unknown key 'initial' in [log]; "
                "it belongs to [relay.probe] or [routes.retry]"
            ),
        ),
        (
            "[relay]\non_dead = 'park'",
            "postroom.toml: unknown key 'on_dead' in [relay]; it belongs to [[routes]]",
        ),
        (
            "[log]\nstore = 'x'",
            "postroom.toml: unknown key 'store' in [log]; it belongs to the top, before all tables",
        ),
        (
            "[[routes]]\nname = 'a'\n[[routes]]\nname = 'b'\n[routes.retry]\nmax_attempt = 1",
            (
                "postroom.toml: unknown key 'max_attempt' in [routes[1].retry]; "
                "did you mean 'max_attempts'?"
            ),
        ),
        (
            "[log]\nxyz = 1",
            "postroom.toml: unknown key 'xyz' in [log]; known here: format, level",
        ),
    ],
)
def test_an_unknown_key_is_refused_with_a_suggestion(
    tmp_path: Path, text: str, expected: str
) -> None:
    assert refusal(tmp_path, text) == expected


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("POSTROOM_RELAY__LEASES", "POSTROOM_RELAY__LEASE"),
        ("POSTROOM_RELAY_LEASE", "POSTROOM_RELAY__LEASE"),
        ("POSTROOM_STOER", "POSTROOM_STORE"),
    ],
)
def test_an_unknown_variable_is_refused_with_a_suggestion(
    tmp_path: Path, name: str, meant: str
) -> None:
    assert (
        refusal(tmp_path, "", **{name: "1s"}) == f"{name}: unknown variable; did you mean {meant}?"
    )


def test_variables_of_others_with_our_prefix_are_left_alone(tmp_path: Path) -> None:
    """Kubernetes sets these beside a service that is called postroom."""
    names = ("PORT", "PORT_80_TCP", "PORT_80_TCP_ADDR", "SERVICE_HOST", "SERVICE_PORT")

    load(tmp_path, "", **{f"POSTROOM_{name}": "10.0.0.1" for name in names})


def test_routes_by_the_environment_are_refused(tmp_path: Path) -> None:
    assert "routes are set in postroom.toml" in refusal(tmp_path, POSTROOM_ROUTES__0__NAME="a")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[relay]\nlease = 15",
            'postroom.toml: relay.lease: expected a duration, not 15; for example lease = "15s"',
        ),
        (
            "[relay]\nlease = '15'",
            (
                "postroom.toml: relay.lease: expected a duration, not '15'; "
                'for example lease = "15s"'
            ),
        ),
        (
            "[relay]\nbatch = '500'",
            (
                "postroom.toml: relay.batch: expected a whole number from 1, not '500'; "
                "for example batch = 500"
            ),
        ),
        (
            "[relay]\nbatch = true",
            (
                "postroom.toml: relay.batch: expected a whole number from 1, not True; "
                "for example batch = 500"
            ),
        ),
        (
            "[[routes]]\non_dead = 'stop'",
            (
                "postroom.toml: routes[0].on_dead: expected one of 'continue', 'park', not 'stop'; "
                'for example on_dead = "continue"'
            ),
        ),
        (
            "[[routes]]\ntypes = 'shop.*'",
            (
                "postroom.toml: routes[0].types: expected a list of texts, not 'shop.*'; "
                'for example types = ["shop.*"]'
            ),
        ),
        ("relay = 5", "postroom.toml: relay: expected a table, for example [relay]"),
        (
            "[routes]\nname = 'a'",
            "postroom.toml: routes: expected a list of tables, for example [[routes]]",
        ),
        (
            "store = 5",
            (
                "postroom.toml: store: expected an address, not a value of type int; "
                'for example store = "sqlite:///postroom.db"'
            ),
        ),
    ],
)
def test_a_wrong_kind_is_refused_with_file_key_and_example(
    tmp_path: Path, text: str, expected: str
) -> None:
    assert refusal(tmp_path, text) == expected


def test_a_wrong_variable_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path, POSTROOM_RELAY__BATCH="many") == (
        "POSTROOM_RELAY__BATCH: expected a whole number from 1, not 'many'; for example batch = 500"
    )


@pytest.mark.parametrize(
    "text",
    [
        'renewal = "8s"',
        'lease = "10s"',
        'publish_timeout = "11s"',
        'probe = { initial = "1m", maximum = "1s" }',
        "probe = { jitter = 1.5 }",
        'poll = "0s"',
    ],
)
def test_times_that_cannot_work_are_refused(tmp_path: Path, text: str) -> None:
    assert refusal(tmp_path, f"[relay]\n{text}").startswith("postroom.toml: relay")


def test_an_error_of_a_combination_names_the_variables(tmp_path: Path) -> None:
    assert refusal(tmp_path, POSTROOM_RELAY__LEASE="8s").startswith(
        "postroom.toml: relay, POSTROOM_RELAY__LEASE: renewal must be"
    )


def test_an_inbox_shorter_than_what_can_be_replayed_is_refused(tmp_path: Path) -> None:
    assert "retention.inbox must be at least" in refusal(tmp_path, "[retention]\ninbox = '1d'")


def test_two_routes_of_one_name_are_refused(tmp_path: Path) -> None:
    text = "[[routes]]\nname = 'a'\n[[routes]]\nname = 'a'"

    assert refusal(tmp_path, text) == "postroom.toml: routes: two routes have the same name"


def test_a_file_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, "store =").startswith("postroom.toml: not valid TOML: ")


def test_a_file_that_is_not_utf8_or_a_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "postroom.toml"
    path.write_bytes(b"\xff\xfe")

    with pytest.raises(SettingsError, match="not UTF-8"):
        Settings.load(path, {})
    with pytest.raises(SettingsError, match="cannot be read"):
        Settings.load(tmp_path, {})


def test_a_byte_order_mark_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "postroom.toml"
    path.write_text("[relay]\nbatch = 3", encoding="utf-8-sig")

    assert Settings.load(path, {}).relay.batch == 3


def test_no_error_repeats_a_password(tmp_path: Path) -> None:
    address = f"amqp://ann:{HUSH}@host/"
    told = [
        refusal(tmp_path, f"store = ['{address}']"),
        refusal(tmp_path, f"[relay]\nlease = '{address}'"),
        refusal(tmp_path, POSTROOM_RELAY__LEASE=address),
        refusal(tmp_path, POSTROOM_STORE="", POSTROOM_BROKER=address),
        refusal(tmp_path, f"store = '{address}"),
        repr(Settings(store=address, broker=address)),
    ]

    assert HUSH not in " ".join(told)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sqlite:///postroom.db", "sqlite:///postroom.db"),
        ("sqlite:////srv/a@b.db", "sqlite:////srv/a@b.db"),
        (f"amqp://ann:{HUSH}@host:5672/v?heartbeat=5", "amqp://ann:***@host:5672/v?heartbeat=5"),
        (f"postgresql://u:a/b@{HUSH}#?@host/db", "postgresql://u:***@host/db"),
        (f"nats://{HUSH}@host", "nats://***@host"),
        (f"redis://:{HUSH}@host/0", "redis://***@host/0"),
        (f"https://host/?api_key={HUSH}&x=1", "https://host/?api_key=***&x=1"),
        (
            f"Endpoint=sb://x/;SharedAccessKeyName=root;SharedAccessKey={HUSH}=",
            "Endpoint=sb://x/;SharedAccessKeyName=***;SharedAccessKey=***",
        ),
        (f"cannot reach amqp://u:{HUSH}@h: refused", "cannot reach amqp://u:***@h: refused"),
        (f"amqp://u:a'{HUSH}@h: refused", "amqp://u:***@h: refused"),
        (f'amqp://u:a"{HUSH}@h', "amqp://u:***@h"),
        (f"amqp://u:a {HUSH}@h", "amqp://u:***@h"),
        (f"no amqp://u:a b{HUSH}@h, nats://v:{HUSH} c@k", "no amqp://u:***@h, nats://v:***@k"),
        ("amqp://h:5672/v, see\nann@x and nats://k", "amqp://h:5672/v, see\nann@x and nats://k"),
        ("amqp://h/v was told to ann@x", "amqp://h/v was told to ann@x"),
        (f"host=h password='{HUSH}' x=1", "host=h password=***' x=1"),
        (f"'nats://h?token=a'{HUSH}'", "'nats://h?token=***'"),
    ],
)
def test_redacted_hides_secrets_and_keeps_the_rest(text: str, shown: str) -> None:
    assert redacted(text) == shown


@given(password=st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=6))
def test_redacted_hides_any_password_of_one_line(password: str) -> None:
    if not re.search(r"[\s'\"].*://", password):
        shown = redacted(f"postgresql://ann:{password}@db.example/shop")
        assert shown == "postgresql://ann:***@db.example/shop"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("15s", timedelta(seconds=15)),
        ("500ms", timedelta(milliseconds=500)),
        ("7d", timedelta(days=7)),
        ("1h30m", timedelta(minutes=90)),
        ("1.5h", timedelta(minutes=90)),
        ("2w", timedelta(weeks=2)),
        ("0s", timedelta(0)),
    ],
)
def test_durations(text: str, expected: timedelta) -> None:
    assert duration(text) == expected


@pytest.mark.parametrize("text", ["", "15", "s", "15 s", "-1s", "1s ", "1y", "٣s", "9" * 30 + "d"])
def test_what_is_not_a_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|too long"):
        duration(text)


def test_absurd_times_are_refused(tmp_path: Path) -> None:
    """Such a time could be added to no moment: it broke only what used it first."""
    assert refusal(tmp_path, '[retention]\nsent = "1000000d"\n') == (
        "postroom.toml: retention.sent: 1000000d is too long a time; at most 36500d"
    )
    assert "at most 36500d" in refusal(tmp_path, POSTROOM_RELAY__LEASE="9" * 400 + "w")
    assert load(tmp_path, '[retention]\ninbox = "36500d"\n').retention.inbox == LONGEST


def test_absurd_times_are_refused_in_code() -> None:
    with pytest.raises(ValueError, match=r"retention\.inbox must be from 0 s to 36500 days"):
        Retention(inbox=timedelta.max)
    with pytest.raises(ValueError, match=r"backoff\.maximum must be"):
        Backoff(maximum=timedelta.max)
