"""The `postroom.toml` that `init` writes: every setting, commented out, with its default."""

import json
import re

from postroom._redact import redacted

_USER = re.compile(r"[^:/]+://[^\s:/@?'\"]+@(?=[^@]*$)")


def template(store: str, broker: str) -> str:
    """Return the file for these addresses; their passwords are left out."""
    return _HEAD + _line("store", store) + _BROKER + _line("broker", broker) + _REST


def _line(name: str, url: str) -> str:
    # Printing hides a lone user too, for it might be a token; here the address has to work.
    user = _USER.match(url)
    at = user.end() if user else 0
    safe = url[:at] + redacted(f"//{url[at:]}").removeprefix("//")
    if safe == url:
        return f"{name} = {json.dumps(url, ensure_ascii=False)}\n"
    address, _, query = safe.partition("?")
    address = address.replace(":***@", "@").replace("***@", "")
    kept = "&".join(option for option in query.split("&") if option and "***" not in option)
    bare = f"{address}?{kept}" if kept else address
    return (
        f"# Passwords and keys are left out here: POSTROOM_{name.upper()} has the whole address.\n"
        f"{name} = {json.dumps(bare, ensure_ascii=False)}\n"
    )


_HEAD = """\
# Settings of Postroom. Everything here can be left out: what is commented out is the default.
# Durations are written "500ms", "15s", "1h30m" or "7d", sizes 1048576 or "1MiB".
# An environment variable comes before this file: POSTROOM_STORE, POSTROOM_RELAY__LEASE, ...

# Where the outbox is: the database of your own data. Three slashes before a relative path, four
# before an absolute one.
"""
_BROKER = """
# Where messages go.
"""
_REST = """
[relay]
# After so long without a sign of life other relays take over. `renewal` is how often a relay
# gives that sign: less than half of the lease.
# lease = "15s"
# renewal = "5s"

# How often it looks whether lanes are to be shared anew.
# share = "1s"

# Messages, and bytes of payload, that are sent together.
# batch = 500
# max_batch_bytes = "8MiB"

# Batches of a route under way at the same time: while one waits for the broker, one is read.
# overlap = 2

# How long the broker may take to confirm: at most lease minus renewal.
# publish_timeout = "5s"

# The longest time between two looks at the outbox, and between two sweeps for what is due.
# poll = "1s"
# sweep = "1s"

# After so many unknown outcomes in a row a message is sent alone.
# suspect_after = 2

# How often a broker or database that cannot be reached is tried.
[relay.probe]
# initial = "200ms"
# maximum = "10s"
# factor = 2.0
# jitter = 0.2

[retention]
# Keep sent messages, for people to look at and to replay, or delete them when they are sent.
# keep_sent = true
# What `postroom prune` deletes: sent messages, and ids of handled messages. A copy that comes
# later than `inbox` takes effect again, so it must not be shorter than `sent`.
# sent = "7d"
# inbox = "30d"

[limits]
# What a put may write; more is refused.
# max_payload_bytes = "1MiB"
# max_headers_bytes = "32KiB"
# max_batch_bytes = "16MiB"
# max_batch = 10000

[log]
# "logfmt" or "json"; "debug", "info", "warning" or "error".
# format = "logfmt"
# level = "info"

# Routes: by which rules messages go. The first whose `types` match takes a message; whatever
# matches none goes by the rules below, which are the defaults.
# To set one of them, uncomment [[routes]] too, and [routes.retry] for what follows it.
# [[routes]]
# name = "default"
# types = ["*"]
# A topic named like the type, unless one is given:
# topic = "everything"
# What a dead message does to the later ones of its key: "continue", or "park" them for a person.
# on_dead = "continue"
# Faster, but gives up the order of a key when a part of a batch is refused:
# pipelined_keys = false
# [routes.retry]
# max_attempts = 10
# initial = "1s"
# maximum = "5m"
# factor = 2.0
# jitter = 0.2
"""
