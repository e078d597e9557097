"""The admin HTTP of a supervisor: all its cores in one place.

    /metrics          those of every core, each sample with the label `core_id`; `holdfast_core_up`, `…_core_restarts`
    /healthz          200 while every core is up and well
    /api/v1/cores     where the admin HTTP of each core's store is, for Spark and for `holdfast … --addr`

A store's own pages are at its own address, which Spark takes as one of several servers. Only on a loopback address.
"""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from holdfast.config.server import ServerConfig
from holdfast.dataflow.cores import Supervisor
from holdfast.server.admin import serve_admin
from holdfast.server.admin.metrics import MEDIA_TYPE

ANSWER_S = 5.0
"""How long a core may take; one that hangs is shown as down."""
LABEL = "core_id"


class CoresAdmin:
    """One for a supervisor, on its event loop."""

    def __init__(self, address: str, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        routes = [
            Route("/metrics", self._metrics, methods=["GET"]),
            Route("/healthz", self._healthz, methods=["GET"]),
            Route("/api/v1/cores", self._cores, methods=["GET"]),
        ]
        self._server = serve_admin(Starlette(routes=routes), ServerConfig(admin=address))
        self.url = f"http://{address.rpartition(':')[0]}:{self._server.port}"

    async def serve(self) -> None:
        """Serve until `stop`."""
        await self._server.serve()

    def stop(self) -> None:
        """End when what is under way is answered."""
        self._server.stop()

    async def _metrics(self, _request: Request) -> Response:
        texts = await _ask(self._supervisor.admin_urls(), "/metrics")
        up = GaugeMetricFamily("holdfast_core_up", "Whether the core runs.", labels=[LABEL])
        restarts = CounterMetricFamily("holdfast_core_restarts", "Times that it was started again.", labels=[LABEL])
        for core in self._supervisor.cores:
            up.add_metric([str(core.place.core)], float(core.ready is not None))
            restarts.add_metric([str(core.place.core)], core.restarts)
        found = merged({core: text for core, (_, text) in texts.items()})
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Once([*found, up, restarts]))
        return Response(generate_latest(registry), media_type=MEDIA_TYPE)

    async def _healthz(self, _request: Request) -> Response:
        answers = await _ask(self._supervisor.admin_urls(), "/healthz")
        states = {str(core.place.core): "down" for core in self._supervisor.cores}
        states |= {str(core): "ok" if status == 200 else "failed" for core, (status, _) in answers.items()}
        is_well = set(states.values()) <= {"ok"}
        return JSONResponse({"status": "ok" if is_well else "failed", "cores": states}, 200 if is_well else 503)

    async def _cores(self, _request: Request) -> Response:
        return JSONResponse({"cores": {str(core): url for core, url in self._supervisor.admin_urls().items()}})


async def _ask(urls: Mapping[int, str], path: str) -> dict[int, tuple[int, str]]:
    """Status and text of each; those that do not answer are left out."""
    answers = await asyncio.gather(*(asyncio.to_thread(_get, f"{url}{path}") for url in urls.values()))
    return {core: answer for core, answer in zip(urls, answers, strict=True) if answer is not None}


def _get(url: str) -> tuple[int, str] | None:
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:  # noqa: S310  our own address
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(errors="replace")
    except OSError:
        return None


def merged(texts: Mapping[int, str]) -> list[Metric]:
    """The metrics of all cores, by name, with the core as a label."""
    families: dict[str, Metric] = {}
    for core, text in texts.items():
        for family in text_string_to_metric_families(text):
            kept = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                kept.samples.append(sample._replace(labels={**sample.labels, LABEL: str(core)}))
    return list(families.values())


class _Once(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics
