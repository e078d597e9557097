"""S3, Google Cloud Storage and Azure as an object store, through `obstore`.

Promise: `create` is one conditional put (`If-None-Match: *`); what the service answers to a taken name is False, never
an overwrite, if the service does what it says (`journal.py` finds out). Nothing is tried again in here: the caller's
one policy decides that. Credentials come from the environment, or from where the machine has them, as the service's
own tools do; they are never in a text of ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import obstore
from obstore import exceptions
from obstore.store import from_url

from holdfast.disk.filesystem import Bytes
from holdfast.errors import DamagedObject, InvalidConfig, TierRefused, TierUnavailable

REFUSALS = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
CONNECT_TIMEOUT = "10s"
REASON_CHARS_MAX = 300
PART_BYTES = 4 << 20
_ROLES = ("169.254.169.254", "metadata.google.internal")
"""Where a machine in a cloud asks for the credentials of its role; asked when nothing else was given."""
_NO_CREDENTIALS = "no credentials are in tier.credentials_file or the environment, and this machine has no role"
_NOT_PARTIAL = "non-partial response"
_REFUSING_WORDS = ("nosuchbucket", "accessdenied", "invalidaccesskeyid", "signaturedoesnotmatch", "missing credentials")


class CloudObjects:
    """A bucket."""

    def __init__(
        self, url: str, *, timeout_s: float, options: Mapping[str, str] | None = None, conditional: bool = True
    ) -> None:
        """`options` are those of `obstore` for the service, like `endpoint`; `timeout_s` is for a whole request.

        Without `conditional`, `create` looks and then puts: for services that have no conditional put.
        """
        self._url = url.rstrip("/")
        self._conditional = conditional
        address, options = _address(self._url, options or {})
        settings: dict[str, Any] = {
            "config": options or None,
            "client_options": {
                "timeout": f"{timeout_s:.3f}s",
                "connect_timeout": CONNECT_TIMEOUT,
                "allow_http": options.get("endpoint", "").startswith("http://"),
            },
            "retry_config": {"max_retries": 0},
        }
        try:
            self._store = from_url(address, **settings)
        except (exceptions.BaseError, ValueError) as error:
            raise InvalidConfig(key="tier.url", reason=f"{self._url}: {_line(error)}") from error

    @property
    def url(self) -> str:
        """As in the settings."""
        return self._url

    @property
    def is_conditional(self) -> bool:
        """Whether `create` relies on the service to refuse a taken name."""
        return self._conditional

    def create(self, key: str, data: Bytes) -> bool:
        """A conditional put."""
        with self._translated("create", key):
            if not self._conditional and self._exists(key):
                return False
            mode: Literal["create", "overwrite"] = "create" if self._conditional else "overwrite"
            try:
                obstore.put(self._store, key, memoryview(data).cast("B"), mode=mode, use_multipart=False)
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                return False
        return True

    def _exists(self, key: str) -> bool:
        try:
            obstore.head(self._store, key)
        except (FileNotFoundError, exceptions.NotFoundError):
            return False
        return True

    def read(self, key: str) -> bytes:
        """A get."""
        with self._translated("read", key):
            return bytes(obstore.get(self._store, key).bytes())

    def parts(self, key: str) -> Iterator[bytes]:
        """A get that is taken as it comes."""
        with self._translated("read", key):
            for part in obstore.get(self._store, key).stream(min_chunk_size=PART_BYTES):
                yield bytes(part)

    def range(self, key: str, start: int, end: int) -> bytes:
        """A get of a range; of a service that answers with the whole all the same, what was asked for of that."""
        with self._translated("read", key):
            try:
                return bytes(obstore.get_range(self._store, key, start=start, end=end))
            except exceptions.GenericError as error:
                if _NOT_PARTIAL not in str(error):
                    raise
        return self._cut(key, start, end)

    def _cut(self, key: str, start: int, end: int) -> bytes:
        cut, position = bytearray(), 0
        for part in self.parts(key):
            cut += part[max(0, start - position) : max(0, end - position)]
            position += len(part)
            if position >= end:
                break
        return bytes(cut)

    def size_bytes(self, key: str) -> int:
        """A head."""
        with self._translated("look at", key):
            return obstore.head(self._store, key)["size"]

    def names(self, folder: str, *, after: str = "") -> Iterator[str]:
        """A list, page by page."""
        with self._translated("list", folder):
            pages = obstore.list(self._store, prefix=f"{folder}/", offset=after or None)
            found = [item["path"] for page in pages for item in page]
        yield from sorted(name for name in found if name > after)

    def remove(self, key: str) -> None:
        """A delete."""
        with self._translated("remove", key):
            try:
                obstore.delete(self._store, key)
            except (FileNotFoundError, exceptions.NotFoundError):
                return

    @contextmanager
    def _translated(self, action: str, key: str) -> Iterator[None]:
        try:
            yield
        except REFUSALS as error:
            raise TierRefused(url=self._url, reason=f"{action} {key}: {_line(error)}") from error
        except (FileNotFoundError, exceptions.NotFoundError, exceptions.BaseError, OSError) as error:
            text = _line(error)
            if any(address in text for address in _ROLES):
                text = f"{_NO_CREDENTIALS}: {text}"
            if any(word in str(error).lower() for word in _REFUSING_WORDS):
                raise TierRefused(url=self._url, reason=f"{action} {key}: {text}") from error
            if isinstance(error, FileNotFoundError | exceptions.NotFoundError):
                raise DamagedObject(url=self._url, key=key, reason="is not there") from error
            raise TierUnavailable(url=self._url, action=f"{action} {key}", reason=text) from error


def _address(url: str, options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """What `obstore` calls a place: in its names for Azure the account is an option."""
    if not url.startswith("az://"):
        return url, dict(options)
    account, _, rest = url.removeprefix("az://").partition("/")
    return f"az://{rest}", {**options, "account_name": account}


def _line(error: Exception) -> str:
    """The sentence of an error, without the dump behind it."""
    return " ".join(str(error).partition("\n\nDebug source")[0].split())[:REASON_CHARS_MAX]
