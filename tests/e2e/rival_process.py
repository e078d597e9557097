"""One of several processes that want the same slot at the same moment.

Orders come through a named pipe, one word per line. At `race N` it tries to open the slot and says what came of it: the
process it found there, or that it won; then it has sent one event. At `end` the winner closes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast import Sender
from holdfast.errors import Locked


def main(orders: str, conf: str, channel: str) -> None:
    """Until the pipe ends."""
    sender: Sender | None = None
    with Path(orders).open(encoding="utf-8") as lines:
        for line in lines:
            order, _, number = line.strip().partition(" ")
            if order == "race":
                sender = _race(conf, channel, int(number))
            elif sender is not None:
                sender.close()
                sender = None
                _say("closed")
            else:
                _say("nothing to close")


def _race(conf: str, channel: str, number: int) -> Sender | None:
    try:
        sender = Sender.from_conf(conf)
    except Locked as error:
        _say(f"lost {error.holder_pid}")
        return None
    sender.send(channel, {"n": number})
    sender.flush()
    _say("won")
    return sender


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
