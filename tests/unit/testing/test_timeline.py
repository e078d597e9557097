"""Virtual time of the simulation: what is wrong comes to light, wherever it came up."""

from __future__ import annotations

import pytest

from holdfast.clock import NS_PER_S
from holdfast.testing.simulation.scene import Machine, Scene
from holdfast.testing.simulation.world import World


class Waiting(Machine):
    """A machine that dies while it waits."""

    def start(self) -> None:
        self.later(0.0, self.wait)
        self.later(1.0, self.end_life)

    def wait(self) -> None:
        """Others go on meanwhile."""
        self.timeline.run(3 * NS_PER_S)


def fail() -> None:
    raise ValueError("a mistake")


def test_what_fails_while_a_dead_life_waits_ends_the_run() -> None:
    scene = Scene(1)
    waiting, other = Waiting("waiting", scene), Waiting("other", scene)
    waiting.start()
    other.later(2.0, fail)
    with pytest.raises(ValueError, match="a mistake"):
        scene.timeline.run(10 * NS_PER_S)


def test_peace_comes_at_its_moment_though_somebody_waits() -> None:
    world = World(1)
    trouble: list[bool] = []
    world.nemesis.later(0.0, world.timeline.run, 60 * NS_PER_S)  # as a server that waits for its object store
    world.nemesis.later(59.0, lambda: trouble.append(world.trouble))
    world.run()
    assert trouble == [False]
