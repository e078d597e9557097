"""`holdfast token`: make, list and revoke the tokens with which programs authenticate.

Promise: a secret is printed once, to standard output, and is nowhere else: not in the file, not in a log, not in an
error. A server that runs need not be told; it watches the file.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import typer
from rich.markup import escape

from holdfast.cli.answer import ExitCode, answer_json
from holdfast.cli.channels import NOTHING, print_table
from holdfast.cli.display import make_console, make_table, moment, several
from holdfast.cli.extras import read_settings
from holdfast.clock import Clock, SystemClock
from holdfast.config import DAY, SECOND, ServerConfig, parse_time
from holdfast.config.passwords import hash_password
from holdfast.config.principals import SECRET_CHARS_MAX
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import BadRequest
from holdfast.server.access.tokens import Token, TokenFile

EXPIRES_MAX_NS = 100 * 365 * DAY


def _file(directory: Path | None, config: Path | None) -> TokenFile:
    """The token file of the server that runs with these: as for `serve`, a directory wins over the file's."""
    server = ServerConfig() if config is None else read_settings(config).server
    if directory is not None:
        server = replace(server, data=str(directory))
    return TokenFile(LocalFilesystem(), server.tokens_path.absolute())


def _facts(token: Token, now_ns: int) -> dict[str, object]:
    return {
        "id": token.id,
        "name": token.name,
        "state": token.state(now_ns),
        "created_at_ns": token.created_at_ns,
        "expires_at_ns": token.expires_at_ns or None,
        "revoked_at_ns": token.revoked_at_ns or None,
    }


def run_create(
    name: str, *, expires: str | None, directory: Path | None, config: Path | None, as_json: bool
) -> ExitCode:
    """A new token."""
    clock: Clock = SystemClock()
    file, now_ns = _file(directory, config), clock.wall_ns()
    expires_at_ns = now_ns + _lifetime_ns(expires) if expires is not None else 0
    token, secret = file.create(name, now_ns=now_ns, expires_at_ns=expires_at_ns)
    if as_json:
        answer_json("token create", {**_facts(token, now_ns), "token": secret, "file": str(file.path)})
        return ExitCode.DONE
    sys.stdout.write(secret + "\n")
    until = f"until {moment(expires_at_ns)}" if expires_at_ns else "until it is revoked"
    sys.stderr.write(f"token {token.id} of {token.name}, valid {until}. It is not shown again.\n")
    return ExitCode.DONE


def _lifetime_ns(text: str) -> int:
    try:
        lifetime_ns = parse_time(text)
    except ValueError as error:
        raise BadRequest(f"--expires: {error}") from None
    if not SECOND <= lifetime_ns <= EXPIRES_MAX_NS:
        raise BadRequest(f"--expires: {text} is outside 1s … 36500d")
    return lifetime_ns


def run_ls(directory: Path | None, *, config: Path | None, as_json: bool) -> ExitCode:
    """All tokens, oldest first."""
    clock: Clock = SystemClock()
    file, now_ns = _file(directory, config), clock.wall_ns()
    tokens = file.read() or ()
    if as_json:
        answer_json("token ls", {"file": str(file.path), "tokens": [_facts(token, now_ns) for token in tokens]})
        return ExitCode.DONE
    console = make_console()
    console.print(f"[bold]{escape(str(file.path))}: {several(len(tokens), 'token')}[/]", soft_wrap=True)
    if tokens:
        table = make_table("id", "name", "state", "created", "expires", "revoked")
        for token in tokens:
            times = (token.created_at_ns, token.expires_at_ns, token.revoked_at_ns)
            texts = [moment(time_ns)[:19] + "Z" if time_ns else NOTHING for time_ns in times]
            table.add_row(token.id, escape(token.name), token.state(now_ns), *texts)
        print_table(console, table)
    return ExitCode.DONE


def run_revoke(which: str, *, directory: Path | None, config: Path | None, as_json: bool) -> ExitCode:
    """One by its id, or all of a name."""
    clock: Clock = SystemClock()
    now_ns = clock.wall_ns()
    revoked = _file(directory, config).revoke(which, now_ns=now_ns)
    if as_json:
        answer_json("token revoke", {"revoked": [_facts(token, now_ns) for token in revoked]})
        return ExitCode.DONE
    console = make_console()
    for token in revoked:
        console.print(f"revoked token {token.id} of {escape(token.name)}", soft_wrap=True)
    return ExitCode.DONE


def run_hash_password(*, as_json: bool) -> ExitCode:
    """The hash of a password."""
    if sys.stdin.isatty():
        password: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not 0 < len(password) <= SECRET_CHARS_MAX:
        raise BadRequest(f"a password has 1 to {SECRET_CHARS_MAX} characters")
    text = hash_password(password).text
    if as_json:
        answer_json("token hash-password", {"password_hash": text})
    else:
        sys.stdout.write(text + "\n")
    return ExitCode.DONE
