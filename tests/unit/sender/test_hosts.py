"""Which host is tried next."""

from __future__ import annotations

import pytest

from holdfast.sender.hosts import HostState, HostTable


def test_hosts_are_tried_in_list_order_at_first() -> None:
    table = HostTable(3)
    tried = []
    while (host := table.pick()) is not None:
        tried.append(host)
        table.failed(host)
    assert tried == [0, 1, 2]


def test_healthy_host_goes_before_an_unknown_one() -> None:
    table = HostTable(3)
    table.succeeded(2)
    table.begin_round(forget=False)
    assert table.pick() == 2


def test_host_that_broke_goes_behind_all_others() -> None:
    table = HostTable(3)
    table.succeeded(0)
    table.broke(0)
    table.begin_round(forget=False)
    order = []
    while (host := table.pick()) is not None:
        order.append(host)
        table.failed(host)
    assert order == [1, 2, 0]


def test_states_are_ranked_from_healthy_to_topology_reject() -> None:
    table = HostTable(5)
    table.rejected_role(0, transient=False)
    table.failed(1)
    table.rejected_role(2, transient=True)
    table.succeeded(4)
    table.begin_round(forget=False)
    order = []
    while (host := table.pick()) is not None:
        order.append(host)
        table.failed(host)
    assert order == [4, 3, 2, 1, 0]


def test_forgetting_round_keeps_only_what_is_healthy() -> None:
    table = HostTable(3)
    table.rejected_role(0, transient=False)
    table.succeeded(1)
    table.failed(2)
    table.begin_round(forget=True)
    assert [table.state(n) for n in range(3)] == [HostState.UNKNOWN, HostState.HEALTHY, HostState.UNKNOWN]


def test_round_of_role_rejects_alone_is_told_apart() -> None:
    table = HostTable(2)
    table.rejected_role(0, transient=True)
    assert not table.is_all_role_reject
    table.rejected_role(1, transient=False)
    assert table.is_all_role_reject
    table.begin_round(forget=True)
    table.rejected_role(0, transient=True)
    table.failed(1)
    assert not table.is_all_role_reject


def test_copy_knows_the_states_but_starts_its_own_round() -> None:
    table = HostTable(2)
    table.failed(0)
    other = table.copy()
    assert other.pick() == 1
    other.failed(1)
    assert other.pick() == 0
    assert table.pick() == 1


def test_list_without_hosts_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        HostTable(0)
