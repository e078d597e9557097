"""Running jobs at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable


def together(*jobs: Callable[[], object]) -> None:
    """Run all of them at the same time, and fail if one of them fails."""
    failures: list[BaseException] = []

    def run(job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
