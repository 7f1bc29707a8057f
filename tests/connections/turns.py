"""A wire between client and server that counts round trips."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Turns:
    """How often the client has waited for the server to answer."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._asked = False
        self.count = 0
        self.port: int = self._listening.getsockname()[1]

    def serve(self) -> None:
        """Pass one connection after the other on, each in threads of its own."""
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._target)
                for source, sink, asks in ((client, server, True), (server, client, False)):
                    thread = threading.Thread(target=self._pump, args=(source, sink, asks))
                    self._threads.append(thread)
                    thread.start()

    def close(self) -> None:
        """Take no more connections, and wait for the end of those there are."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join()

    def _pump(self, source: socket.socket, sink: socket.socket, asks: bool) -> None:
        with suppress(OSError):
            while chunk := source.recv(65_536):
                if self._asked and not asks:
                    self.count += 1
                self._asked = asks
                sink.sendall(chunk)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        source.close()


@contextmanager
def counting(host: str, port: int) -> Iterator[Turns]:
    """Count the turns of whoever connects to the port that this listens on."""
    turns = Turns((host, port))
    thread = threading.Thread(target=turns.serve)
    thread.start()
    try:
        yield turns
    finally:
        turns.close()
        thread.join()
