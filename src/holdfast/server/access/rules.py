"""The decision over access rules, and the limits that a principal has. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.config.principals import AccessRule, PrincipalLimits


def is_allowed(rules: Sequence[AccessRule], principal: str, verb: str, channel: str) -> bool:
    """Without rules everything is; otherwise a rule must allow it and none deny it."""
    if not rules:
        return True
    says = [rule.allow for rule in rules if rule.decides(principal, verb, channel)]
    return bool(says) and all(says)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one principal may use; 0 is without limit."""

    connections: int = 0
    bytes_per_second: int = 0
    frames_per_second: int = 0
    channels: int = 0


def limits_of(limits: Sequence[PrincipalLimits], principal: str) -> Limits:
    """From widest to narrowest pattern, each replacing what it names; `limits` are in that order."""
    values: dict[str, int] = {}
    for item in limits:
        if item.principal.matches(principal):
            values.update(item.values)
    return Limits(**values)
