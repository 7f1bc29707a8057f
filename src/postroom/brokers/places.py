"""The places of several servers in one address, as `one:9092,two:9092`."""

_HIGHEST = 65_535


def servers_of(places: str, *, port: int) -> tuple[str, ...]:
    """Return each as `host:port`, with that port where none is named.

    Raises ValueError, without words of its own: what is wrong may be a piece of a password.
    """
    return tuple(_server(place, port) for place in places.split(","))


def _server(place: str, usual: int) -> str:
    host, colon, port = place.rpartition(":")
    if not colon or place.endswith("]"):
        host, port = place, str(usual)
    bracketed = host.startswith("[") and host.endswith("]")
    if not host or (":" in host and not bracketed) or not port.isdecimal():
        raise ValueError
    if not 0 < int(port) <= _HIGHEST:
        raise ValueError
    return f"{host}:{port}"
