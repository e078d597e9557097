"""The judge of names is judged: what leaves the data directory is seen, in every way to write it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.faults.confinement import Confines
from tests.faults.tracing import Opened, opened

DATA = "/srv/a-test/data"
CONFINES = Confines(Path(DATA), (Path("/srv/a-test/holdfast.yaml"),))


@pytest.mark.parametrize("writes", [True, False], ids=["written", "read"])
@pytest.mark.parametrize(
    "name",
    [
        f"{DATA}/channels/../escape",
        f"{DATA}/channels/a/../../b",
        f"{DATA}/../stolen",
        f"{DATA}/channels/..",
        f"{DATA}-of-another/file",
        f"//{DATA}/../stolen",
        "/srv/a-test/stolen",
        "/srv/a-test",
        "/srv/a-test/data/./../holdfast.yaml",
        "/usr/../etc/passwd",
        "/etc/passwd",
        "/",
        "wal/wal-0000000001.log",
        "../escape",
        "",
    ],
)
def test_name_outside_of_the_data_directory_is_seen(name: str, writes: bool) -> None:
    assert CONFINES.foreign([Opened(name, writes)]) == [name]


@pytest.mark.parametrize("name", ["/usr/lib/planted", "/proc/self/mem", "/srv/a-test/holdfast.yaml", os.devnull + "x"])
def test_what_may_be_read_may_not_be_written(name: str) -> None:
    assert CONFINES.foreign([Opened(name, writes=True)]) == [name]


@pytest.mark.parametrize("name", [DATA, f"{DATA}/wal/wal-0000000001.log", f"{DATA}/channels/..a/b..", os.devnull])
def test_data_directory_may_be_written(name: str) -> None:
    assert CONFINES.allow(Opened(name, writes=True))


@pytest.mark.parametrize(
    "name", ["/srv/a-test/holdfast.yaml", f"{sys.prefix}/lib/a/../b.so", "/usr/share/zoneinfo/UTC", "/etc/localtime"]
)
def test_libraries_of_the_system_may_be_read(name: str) -> None:
    assert CONFINES.allow(Opened(name, writes=False))


def test_recording_tells_every_name_its_folder_and_what_the_kernel_opened(tmp_path: Path) -> None:
    recording = tmp_path / "paths"
    recording.write_text(
        '1 openat(AT_FDCWD</srv>, "/a/b", O_RDONLY|O_CLOEXEC) = 22</c/d>\n'
        '1 openat(17</folder>, "../up", O_RDWR|O_CREAT|O_EXCL, 0600 <unfinished ...>\n'
        "2 +++ exited with 0 +++\n"
        "1 <... openat resumed>)             = 23</up>\n"
        '1 renameat2(4</x>, "a \\"b\\"", 5</y>, "/c", RENAME_NOREPLACE) = -1 ENOENT (No such file or directory)\n'
        '1 unlink("relative") = 0\n'
    )
    assert [(one.name, one.writes) for one in opened(recording)] == [
        ("/a/b", False),
        ("/c/d", False),
        ("/folder/../up", True),
        ("/up", False),
        ('/x/a \\"b\\"', True),
        ("/c", True),
        ("relative", True),
    ]
