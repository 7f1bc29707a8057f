"""Keep secrets out of everything that is printed: addresses, errors, log lines."""

import re

_USERINFO = re.compile(
    r"(?<=://)(?P<user>[^\s:/@'\"]*)"
    # A word to its end, whatever is in it; behind a colon also blanks and quotes, to the end of
    # the line or to the next address.
    r"(?P<rest>(?::[^\s'\"]*(?:(?!://)[^\r\n])*|[^\s'\"]*))@"
)
_FIELD = re.compile(
    r"(?P<name>[\w.-]*(?:pass|pwd|secret|token|key|sig|credential)[\w.-]*)="
    # A quote before a letter is in the value, any other ends it.
    r"(?P<value>(?:[^&;\s'\"]|['\"](?=\w))+)",
    re.IGNORECASE,
)
_HIDDEN = "***"


def redacted(text: str) -> str:
    """Return the text with every password, token and key of the addresses in it hidden.

    Everything from the first colon to the last `@` is taken for a password: people put
    unescaped slashes, quotes and blanks into them. Hiding too much is the safe side.

        >>> redacted("amqp://ann:s3/cret@host/vhost?heartbeat=5")
        'amqp://ann:***@host/vhost?heartbeat=5'
    """
    return _FIELD.sub(rf"\g<name>={_HIDDEN}", _USERINFO.sub(_hide, text))


def _hide(match: re.Match[str]) -> str:
    user, rest = match["user"], match["rest"]
    if not user and rest.startswith("/"):
        # `sqlite:////srv/a@b.db`: a path, and nobody to have a password.
        return match[0]
    return f"{user}:{_HIDDEN}@" if user and rest.startswith(":") else f"{_HIDDEN}@"
