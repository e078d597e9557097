"""From the settings of a tier to its objects.

Credentials: `tier.credentials_file`, else the environment, else what the machine is given by its cloud. They are handed
to `obstore` and to nothing else.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from holdfast.clock import NS_PER_S
from holdfast.config.tier import TierConfig
from holdfast.disk.filesystem import Filesystem
from holdfast.errors import InvalidConfig
from holdfast.tier.folder import FolderObjects
from holdfast.tier.objects import Objects


def open_objects(config: TierConfig, filesystem: Filesystem) -> Objects:
    """The part of the bucket that is this store's."""
    parts = urlsplit(config.url)
    if parts.scheme == "file":
        return FolderObjects(filesystem, Path(parts.path) / config.prefix)
    try:
        from holdfast.tier.cloud import CloudObjects  # noqa: PLC0415  # obstore is an extra
    except ModuleNotFoundError as error:
        reason = f'{config.url} needs {error.name}; run: pip install "holdfast[tier]"'
        raise InvalidConfig(key="tier.url", reason=reason) from error
    return CloudObjects(
        config.location,
        timeout_s=config.request_timeout_ns / NS_PER_S,
        options=_options(config),
        conditional=config.fencing == "conditional",
    )


def _options(config: TierConfig) -> dict[str, str]:
    options = _credentials(Path(config.credentials_file)) if config.credentials_file else {}
    if config.endpoint:
        options["endpoint"] = config.endpoint
    if config.region:
        options["region"] = config.region
    return options


def _credentials(path: Path) -> dict[str, str]:
    """Lines `name=value`; names in small letters are what `obstore` knows. A wrong line is named, never shown."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(key="tier.credentials_file", reason=f"{path} cannot be read: {error}") from None
    options: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, separator, value = line.strip().partition("=")
        if not name or name.startswith("#"):
            continue
        if not separator:
            raise InvalidConfig(key="tier.credentials_file", reason=f"{path}:{number}: is not name=value")
        options[name.strip().lower()] = value.strip()
    return options
