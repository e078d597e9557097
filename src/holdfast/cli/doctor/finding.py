"""What a check finds: a state, the facts, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["good", "note", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report."""

    check: str
    state: State
    found: str
    advice: str = ""
    """What to change; empty when nothing is to be changed."""
