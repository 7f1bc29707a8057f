"""How large messages may be; larger ones are refused at the put, before anything is written."""

from collections.abc import Sequence
from dataclasses import dataclass

from postroom.errors import MessageTooLarge
from postroom.message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one put; set them no higher than what the broker takes."""

    max_payload_bytes: int = 1_048_576
    """Of one message's payload."""
    max_headers_bytes: int = 32_768
    """Of one message's header names and values together, in UTF-8."""
    max_batch_bytes: int = 16_777_216
    """Of all payloads of one call together."""
    max_batch: int = 10_000
    """Messages of one call."""

    def __post_init__(self) -> None:
        """Refuse limits that no message could keep."""
        smallest = min(
            self.max_payload_bytes, self.max_headers_bytes, self.max_batch_bytes, self.max_batch
        )
        if smallest < 1:
            raise ValueError("every limit must be at least 1")

    def check(self, messages: Sequence[Message]) -> None:
        """Raise `MessageTooLarge` for the first message, or for the call, that is over a limit."""
        if len(messages) > self.max_batch:
            raise MessageTooLarge(
                f"{len(messages)} messages in one call, {self.max_batch} allowed; put them in "
                "several calls of the same transaction, or raise Limits.max_batch"
            )
        total = 0
        for message in messages:
            total += len(message.payload)
            self._check_one(message)
        if total > self.max_batch_bytes:
            raise MessageTooLarge(
                f"the payloads of one call have {total} bytes, {self.max_batch_bytes} allowed; put "
                "them in several calls of the same transaction, or raise Limits.max_batch_bytes"
            )

    def _check_one(self, message: Message) -> None:
        if len(message.payload) > self.max_payload_bytes:
            raise MessageTooLarge(
                f"the payload of {message.type} has {len(message.payload)} bytes, "
                f"{self.max_payload_bytes} allowed; store large data elsewhere and send where it "
                "is, or raise Limits.max_payload_bytes if the broker takes more"
            )
        headers = message.headers
        if (
            headers
            and sum(len(name) + len(value.encode()) for name, value in headers.items())
            > self.max_headers_bytes
        ):
            raise MessageTooLarge(
                f"the headers of {message.type} have more than {self.max_headers_bytes} bytes; "
                "move data into the payload, or raise Limits.max_headers_bytes"
            )
