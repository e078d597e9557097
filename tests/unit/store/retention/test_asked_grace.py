"""A subscriber may ask that what it confirmed stays for a while; a full store does not wait for that."""

from __future__ import annotations

import pytest

from holdfast.clock import NS_PER_S
from tests.unit.store.retention.test_size_cap import capped, fill
from tests.unit.store.subscribers.small_store import Bench, take

HOUR_NS = 3600 * NS_PER_S


@pytest.mark.guarantee("G6")
def test_what_a_subscriber_confirmed_stays_as_long_as_it_asked() -> None:
    bench = Bench()
    bench.publish(segments=2)
    reader = bench.store.subscriber("reader", ["trades"])
    reader.keep_confirmed(HOUR_NS)
    bench.store.subscriber("reader", ["trades", "quotes"]).close()  # changed since, and restarted
    bench.lose_power()
    take(bench.store.subscriber("reader", ["trades", "quotes"])).ack()
    bench.tick()
    bench.tick(3500)
    assert bench.segments() == [1, 11]
    bench.tick(100)
    assert bench.segments() == [11]


def test_other_channels_and_later_wishes_are_not_held_to_it() -> None:
    bench = Bench()
    bench.publish("trades")
    bench.publish("quotes")
    careful, other = bench.store.subscriber("careful", ["trades"]), bench.store.subscriber("other", ["quotes"])
    careful.keep_confirmed(HOUR_NS)
    for reader in (careful, other):
        take(reader).ack()
    bench.tick()
    assert (bench.segments("trades"), bench.segments("quotes")) == ([1], [])
    careful.keep_confirmed(0)
    bench.tick()
    assert bench.segments("trades") == []


@pytest.mark.guarantee("G11")
def test_a_full_store_takes_what_is_confirmed_whatever_was_asked() -> None:
    bench = capped()
    reader = bench.store.subscriber("reader", ["*"])
    reader.keep_confirmed(HOUR_NS)
    assert fill(bench) > 40
    bench.store.flush()
    for lease in reader.drain():
        lease.ack()
    assert fill(bench) > 40
    assert bench.store.losses() == []
