"""Certificates of a test's own: an authority, a server's and a client's."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def certificates() -> Iterator[Path]:
    """Give a folder with ca.pem, server.pem and client.pem and their keys, for all to read."""
    folder = Path(tempfile.mkdtemp(prefix="postroom-tls-", dir="/tmp"))
    try:
        _openssl(folder, "req -x509 -keyout ca.key -out ca.pem -days 2 -subj /CN=tests")
        for name, alternative in (("server", "IP:127.0.0.1"), ("client", "DNS:client")):
            (folder / "ext").write_text(f"subjectAltName={alternative}\n")
            _openssl(folder, f"req -keyout {name}.key -out {name}.csr -subj /CN={name}")
            _openssl(
                folder,
                f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 "
                f"-extfile ext -out {name}.pem",
            )
        for path in (folder, *folder.iterdir()):
            path.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder)


def _openssl(folder: Path, command: str) -> None:
    new = ["-newkey", "rsa:2048", "-nodes"] if command.startswith("req") else []
    subprocess.run(["openssl", *command.split(), *new], cwd=folder, check=True, capture_output=True)  # noqa: S607
