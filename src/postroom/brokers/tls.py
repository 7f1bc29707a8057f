"""How the wire to a broker is protected, the same for every driver that speaks TLS itself."""

import ssl
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How the server is checked, and how we show who we are."""

    cacertfile: str | None = None
    """Certificates to trust instead of the system's."""
    certfile: str | None = None
    keyfile: str | None = None
    verify: bool = True
    """Whether the server's certificate must be valid for its name."""

    def check_files(self) -> None:
        """Raise ValueError for files that cannot be used."""
        for path in (self.cacertfile, self.certfile, self.keyfile):
            if path is not None and not Path(path).is_file():
                raise ValueError(f"{path}: no such file")
        if self.keyfile is not None and self.certfile is None:
            raise ValueError("keyfile needs a certfile")

    def context(self) -> ssl.SSLContext:
        """Return it as Python's `ssl` takes it; raises ValueError for files that cannot be used."""
        self.check_files()
        try:
            context = ssl.create_default_context(cafile=self.cacertfile)
            if self.certfile is not None:
                context.load_cert_chain(self.certfile, self.keyfile)
        except (ssl.SSLError, OSError) as error:
            raise ValueError(f"certificate or key cannot be used: {error}") from error
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context
