"""A page of the docs, typed as it stands: its blocks, one after the other, in one folder.

| block | what is done with it |
|---|---|
| `sh` | each command in one shell, which keeps its variables; it ends with 0, or as a comment `exit code N` says |
| `sh title="terminal 2"` | in a terminal of its own: it goes on beside the next blocks, until that terminal gets another command, which is what Ctrl-C is for |
| `text` | what the block before it prints, or the terminal in its title: these lines, in this order; `…` is anything |
| `python` | run here; the blocks of a page share their names |
| any with `title="FILE"` | written to that file |
| behind `<!-- not run: REASON -->` | left out |

Promise: nothing uses a fixed port. The addresses of the pages become free ones, and a `holdfast` in front of the path
gives them to commands that would use the defaults.
"""  # noqa: E501

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.e2e.served import PATIENCE_S, free_port

RUN_LANGUAGES = {"sh", "python"}

_BLOCK = re.compile(
    r"(?:^ *<!-- not run: (?P<reason>.+?) -->\n+)?"
    r"^(?P<margin> *)```(?P<language>\w+)(?P<more>[^\n]*)\n(?P<body>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_TITLE = re.compile(r'title="([^"]+)"')
_EXIT_CODE = re.compile(r"# exit code (\d+)")
_ADDRESS = re.compile(r"(?:127\.0\.0\.1|0\.0\.0\.0|localhost):(9000|9001|4317|4318|9464)\b")
_WRAPPER = """\
#!/bin/sh
case " $* " in
  *" --help "*) ;;
  *" --data "*|*" --addr "*) case "$1" in
    serve) set -- "$@" --listen {data} --admin {admin} ;;
    esac ;;
  *) case "$1" in
    serve) set -- "$@" --listen {data} --admin {admin} ;;
    top|query) set -- "$@" --addr http://{admin} ;;
    esac ;;
esac
exec {holdfast} "$@"
"""


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page."""

    language: str
    title: str
    body: str
    reason: str
    """Why it is not run; empty if it is."""

    @property
    def is_terminal(self) -> bool:
        """Whether it is typed into a terminal of its own, or seen there."""
        return self.title.startswith("terminal")

    @property
    def is_file(self) -> bool:
        """Whether the block is the text of a file."""
        return bool(self.title) and not self.is_terminal

    def commands(self) -> list[str]:
        """The commands of a block of `sh`, each with its comment; a quote that is open goes on in the next line."""
        found, begun = [], ""
        for line in self.body.splitlines():
            begun += line + "\n"
            if not line.strip() or line.endswith("\\") or _is_open(begun):
                continue
            if shlex.split(begun, comments=True):
                found.append(begun.strip())
            begun = ""
        assert not begun.strip(), f"a command that does not end: {begun}"
        return found


def blocks_of(text: str) -> list[Block]:
    """All fenced blocks, also those inside of lists."""
    return [_block(match) for match in _BLOCK.finditer(text)]


def _block(match: re.Match[str]) -> Block:
    title = _TITLE.search(match["more"])
    margin = len(match["margin"])
    body = "".join(line[margin:] if line.strip() else line for line in match["body"].splitlines(keepends=True))
    return Block(match["language"], title[1] if title else "", body, match["reason"] or "")


def _is_open(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return True
    return False


def expected_code(command: str) -> int:
    """The exit code that the comment names."""
    named = _EXIT_CODE.search(command)
    return int(named[1]) if named else 0


class Terminal:
    """A command that goes on while others run."""

    def __init__(self, command: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._errors = folder / "terminal.stderr"
        with self._errors.open("ab") as errors:
            reached_by = ["env", "--default-signal=INT"]  # Ctrl-C, also where the tests were started in the background
            self._process = subprocess.Popen(
                [*reached_by, "bash", "-c", f"exec {command}"], cwd=folder, env=environment, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
            )  # fmt: skip
        self._printed = ""

    def wait_for(self, text: str) -> None:
        """Until these lines were printed."""
        assert self._process.stdout is not None
        while missing := missing_line(text, self._printed):
            line = self._process.stdout.readline()
            assert line, f"not printed: {missing}\nbut: {self._printed}\n{self._errors.read_text()}"
            self._printed += line

    def end(self) -> None:
        """Ctrl-C, if it still runs."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        _wait(self._process)


class Shell:
    """One bash that keeps its variables from command to command."""

    _MARK = "--- ended with"

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash"], cwd=folder, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def run(self, command: str) -> tuple[int, str]:
        """Exit code and what was printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{{ {command}\n}} < /dev/null\nprintf '\\n{self._MARK} %s\\n' $?\n")
        self._process.stdin.flush()
        printed = ""
        for line in self._process.stdout:
            if line.startswith(self._MARK):
                return int(line.split()[-1]), printed
            printed += line
        raise AssertionError(f"the shell ended: {command}\n{printed}")

    def end(self) -> None:
        """Close its input, and wait."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        _wait(self._process)


def _wait(process: subprocess.Popen[str]) -> None:
    """Until it has ended; whoever takes too long is killed, with all it started."""
    try:
        process.wait(PATIENCE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@dataclass
class PageRun:
    """Runs the blocks of a page in a folder."""

    folder: Path
    ports: dict[str, int] = field(default_factory=dict)
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "page"})

    def __post_init__(self) -> None:
        tools = self.folder / ".bin"
        tools.mkdir(parents=True)
        beside = Path(sys.executable).parent
        wrapper = _WRAPPER.format(
            data=self.moved("127.0.0.1:9000"), admin=self.moved("127.0.0.1:9001"), holdfast=beside / "holdfast"
        )
        (tools / "holdfast").write_text(wrapper, encoding="utf-8")
        (tools / "holdfast").chmod(0o755)
        self._environment = {
            **os.environ,
            "PATH": f"{tools}:{beside}:{os.environ['PATH']}",
            "HOLDFAST_CONF": f"ws::addr={self.moved('127.0.0.1:9000')};",
            "NO_COLOR": "1",
            "PYTHONUNBUFFERED": "1",
        }
        self._terminals: dict[str, Terminal] = {}
        self._shell: Shell | None = None
        self._printed = ""

    def moved(self, text: str) -> str:
        """The text with free ports instead of those of the pages."""

        def free(match: re.Match[str]) -> str:
            return f"127.0.0.1:{self.ports.setdefault(match[1], 0) or self._take(match[1])}"

        return _ADDRESS.sub(free, text)

    def _take(self, port: str) -> int:
        self.ports[port] = free_port()
        return self.ports[port]

    def run(self, text: str) -> None:
        """Every block that is to be run."""
        for block in blocks_of(text):
            if not block.reason:
                self.block(block)

    def block(self, block: Block) -> None:
        """One block."""
        if block.is_file:
            path = self.folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.moved(block.body), encoding="utf-8")
        elif block.language == "text":
            self._compare(block)
        elif block.is_terminal:
            self._open_terminal(block)
        elif block.language == "sh":
            self._printed = "".join(map(self._type, block.commands()))
        elif block.language == "python":
            with contextlib.chdir(self.folder), contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(self.moved(block.body), "a Python block of the page", "exec"), self.names)
            self._printed = out.getvalue()

    def _open_terminal(self, block: Block) -> None:
        (command,) = block.commands()
        self.end_terminal(block.title)
        self._terminals[block.title] = Terminal(self.moved(command), self.folder, self._environment)
        self._printed = block.title

    def end_terminal(self, title: str) -> None:
        """Ctrl-C in that terminal, if something runs there."""
        if title in self._terminals:
            self._terminals.pop(title).end()

    def _type(self, command: str) -> str:
        self._shell = self._shell or Shell(self.folder, self._environment)
        code, printed = self._shell.run(self.moved(command))
        assert code == expected_code(command), f"{command}\nended with {code}\n{printed}"
        return printed

    def _compare(self, block: Block) -> None:
        text, terminal = self.moved(block.body), self._terminals.get(block.title or self._printed)
        if terminal is not None:
            terminal.wait_for(text)
            return
        missing = missing_line(text, self._printed)
        assert missing is None, f"not printed: {missing}\nbut:\n{self._printed}"

    def __enter__(self) -> PageRun:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        with contextlib.ExitStack() as ends:
            if self._shell is not None:
                ends.callback(self._shell.end)
            for terminal in self._terminals.values():
                ends.callback(terminal.end)


def missing_line(wanted: str, printed: str) -> str | None:
    """The first line of `wanted` that is not in `printed`, behind the one before; None if all are."""
    lines = iter(" ".join(line.split()) for line in printed.splitlines())
    for line in wanted.splitlines():
        words = " ".join(line.split())
        pattern = re.compile(re.escape(words).replace("…", ".*"))
        if words and not any(pattern.fullmatch(found) for found in lines):
            return line
    return None
