"""S3 behind a proxy in which every request fails once, as services and networks fail: 0 false durable acks."""

from __future__ import annotations

import pytest

from tests.conformance import s3servers
from tests.conformance.faultproxy import Way, fault_proxy
from tests.crash.test_tier_faults import AREA, FRAMES, Workload
from tests.faults import figures

pytest.importorskip("obstore")
from holdfast.tier.cloud import CloudObjects


@pytest.mark.guarantee("G5")
@pytest.mark.timeout(300)
def test_every_request_of_a_run_fails_once_and_nothing_false_is_told() -> None:
    if not s3servers.has_moto():
        pytest.skip('moto is not installed: pip install "moto[server]"')
    url = f"s3://{s3servers.BUCKET}/store"
    with s3servers.moto() as server, fault_proxy(server.endpoint) as proxy:
        straight = CloudObjects(url, timeout_s=30, options=server.options)
        faulty = CloudObjects(url, timeout_s=0.5, options={**server.options, "endpoint": proxy.endpoint})
        workload = Workload(straight, faulty)
        workload.run()
        assert workload.checks >= FRAMES
        assert set(proxy.failed.values()) == set(Way)
        assert len(proxy.failed) > 20
        figures.note(
            AREA,
            "a real S3 client whose every request fails once is told nothing false",
            failed_requests=len(proxy.failed),
            ways=len(Way),
            looks_into_the_bucket=workload.checks,
        )
