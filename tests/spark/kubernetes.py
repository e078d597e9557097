"""A real Kubernetes API server with etcd on loopback, and a small kubelet whose containers are processes.

The two programs are no part of the repository: `HOW_TO_GET` builds them into `build/peers/kubernetes`. Spark speaks to
the API server as to any other, with a token that may do what the how-to says and no more. The kubelet stands in for
nodes: it runs pods as processes that work in folders below the given one. It knows what Spark asks of a pod, an
environment and one `emptyDir`, and mounts nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import ssl
import subprocess
import threading
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil

from tests.e2e.served import free_port
from tests.spark.cluster import ON_WORKER, SETTINGS, SPARK_HOME, executors_among, living_in, wait_until
from tests.spark.killed import shoot
from tests.tidy.tree import ROOT
from tests.unit.server.access.authority import Authority

PROGRAMS = ROOT / "build" / "peers" / "kubernetes"
HOW_TO_GET = (
    "mkdir -p build/peers/kubernetes && cd build/peers/kubernetes && cp ../../../tests/spark/kubernetes.mod go.mod && "
    "go build -mod=mod -o . k8s.io/kubernetes/cmd/kube-apiserver go.etcd.io/etcd/server/v3"
)
ETCD = "server"
"""What Go makes of the name of etcd's package."""
PATIENCE_S = 120.0
LOOK_EVERY_S = 0.1
POD_IP = "127.0.0.2"
NAMESPACE = "trades"
SPARK, NODES = "token-of-spark", "token-of-nodes"
MAY = {"pods": "*", "services": "*", "configmaps": "*", "persistentvolumeclaims": "*"}
"""What the how-to says that a driver's account needs; Spark deletes claims for volumes without looking for some."""
GROUPS = {SPARK: "drivers", NODES: "system:masters"}


def lacks() -> tuple[str, ...]:
    """What this machine lacks for it, and how to get it."""
    if not (PROGRAMS / "kube-apiserver").exists() or not (PROGRAMS / ETCD).exists():
        return "Kubernetes", HOW_TO_GET
    return () if shutil.which("java") else ("Java",)


class Api:
    """Calls of the API server."""

    def __init__(self, url: str, tls: ssl.SSLContext) -> None:
        self._url = url
        self._tls = tls

    def call(self, method: str, path: str, body: object = None, *, kind: str = "application/json") -> Any:
        """The answer, or None for what is not there any more."""
        headers = {"Authorization": f"Bearer {NODES}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._url + path, data=data, headers=headers, method=method)
        try:
            with urlopen(request, context=self._tls, timeout=PATIENCE_S) as answer:
                return json.load(answer)
        except HTTPError as error:
            if error.code == 404:
                return None
            raise AssertionError(f"{method} {path}: {error.read().decode()}") from error

    def is_ready(self) -> bool:
        """Whether it takes calls, its own tables of rights made."""
        try:
            with urlopen(f"{self._url}/readyz", context=self._tls, timeout=PATIENCE_S):
                return True
        except (OSError, HTTPException):
            return False


class Kubelet:
    """Runs what is to run, tells how it is, and ends what is to end."""

    def __init__(self, api: Api, folder: Path) -> None:
        self._api = api
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelet")

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Look no more. Containers stay."""
        self._end.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        while not self._end.wait(LOOK_EVERY_S):
            for pod in self._api.call("GET", pods)["items"]:
                self._look_after(pod, f"{pods}/{pod['metadata']['name']}")

    def _look_after(self, pod: Mapping[str, Any], path: str) -> None:
        name = pod["metadata"]["name"]
        process = self._processes.get(name)
        if "deletionTimestamp" in pod["metadata"]:
            if process is not None:
                process.kill()
                process.wait()
            self._api.call("DELETE", path, {"gracePeriodSeconds": 0})
        elif process is None:
            target = {"kind": "Node", "name": "node"}
            self._api.call("POST", f"{path}/binding", {"metadata": {"name": name}, "target": target})
            self._processes[name] = self._started(pod)
            self._tell(path, pod, "Running", {"running": {}})
        elif process.poll() is not None and pod["status"]["phase"] == "Running":
            phase = "Failed" if process.returncode else "Succeeded"
            code = process.returncode if process.returncode >= 0 else 128 - process.returncode
            self._tell(path, pod, phase, {"terminated": {"exitCode": code}})

    def _tell(self, path: str, pod: Mapping[str, Any], phase: str, state: Mapping[str, Any]) -> None:
        container = pod["spec"]["containers"][0]
        facts = {"name": container["name"], "image": container["image"], "imageID": "", "ready": phase == "Running"}
        status = {"phase": phase, "podIP": POD_IP, "podIPs": [{"ip": POD_IP}]}
        status["containerStatuses"] = [{**facts, "restartCount": 0, "state": state}]
        self._api.call("PATCH", f"{path}/status", {"status": status}, kind="application/merge-patch+json")

    def _started(self, pod: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        folder = self._folder / pod["metadata"]["name"]
        folder.mkdir(parents=True)
        environment = {**os.environ, **_environment(pod, folder)}
        with (folder / "log").open("wb") as log:
            return subprocess.Popen(_executor(environment), cwd=folder, env=environment, stdout=log, stderr=log)


def _environment(pod: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """What the pod's container finds in its environment; places where it mounts something are below the folder."""
    container = pod["spec"]["containers"][0]
    places = [mount["mountPath"] for mount in container.get("volumeMounts", ())]
    found = {}
    for variable in container["env"]:
        value = variable.get("value", "")
        if "valueFrom" in variable:
            value = {"status.podIP": POD_IP, "metadata.name": pod["metadata"]["name"]}[
                variable["valueFrom"]["fieldRef"]["fieldPath"]
            ]
        found[variable["name"]] = f"{folder}{value}" if value in places else value
    return found


def _executor(environment: Mapping[str, str]) -> list[str]:
    """The command line that the entry point of Spark's images makes of an environment."""
    java = shutil.which("java")
    assert java is not None
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    options = [value for name, value in environment.items() if name.startswith("SPARK_JAVA_OPT_")]
    arguments = {
        "driver-url": "SPARK_DRIVER_URL",
        "executor-id": "SPARK_EXECUTOR_ID",
        "cores": "SPARK_EXECUTOR_CORES",
        "app-id": "SPARK_APPLICATION_ID",
        "hostname": "SPARK_EXECUTOR_POD_IP",
        "resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
        "podName": "SPARK_EXECUTOR_POD_NAME",
    }
    return [
        *(java, *options, f"-Xms{memory}", f"-Xmx{memory}", "-cp", f"{SPARK_HOME}/jars/*"),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *(word for name, variable in arguments.items() for word in (f"--{name}", environment[variable])),
    ]


class Kubernetes:
    """Runs while the block does."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "kubernetes"
        self._address = f"https://localhost:{free_port()}"
        self.url = f"k8s://{self._address}"
        self._authority = Authority(self._folder)
        self._api = Api(self._address, self._authority.client())
        self._kubelet = Kubelet(self._api, self._folder / "pods")
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Kubernetes:
        try:
            etcd = f"http://127.0.0.1:{free_port()}"
            self._start(ETCD, **{"data-dir": "etcd", "listen-client-urls": etcd, "advertise-client-urls": etcd,
                                 "listen-peer-urls": f"http://127.0.0.1:{free_port()}"})  # fmt: skip
            self._start("kube-apiserver", **self._settings_of_api(etcd))
            wait_until(self._api.is_ready, "an API server that is ready")
            self._make_namespace()
            self._kubelet.start()
        except BaseException:
            self.close()
            raise
        return self

    def settings(self) -> dict[str, str]:
        """What a driver sets; executors, and the Python that plans on the driver, lack our package."""
        return SETTINGS | {
            "spark.executor.instances": "1",
            "spark.kubernetes.namespace": NAMESPACE,
            "spark.kubernetes.container.image": "none",
            "spark.kubernetes.authenticate.oauthToken": SPARK,
            "spark.kubernetes.authenticate.caCertFile": str(self._authority.pem),
            "spark.kubernetes.allocation.batch.delay": "200ms",
            "spark.kubernetes.executor.apiPollingInterval": "1s",
            f"spark.executorEnv.{ON_WORKER}": "yes",
        }

    def _settings_of_api(self, etcd: str) -> dict[str, str]:
        certificate, key = self._authority.issue("localhost")
        users = self._folder / "users.csv"
        users.write_text("".join(f'{token},{token},{token},"{group}"\n' for token, group in GROUPS.items()))
        return {
            "etcd-servers": etcd,
            "bind-address": "127.0.0.1",
            "advertise-address": "192.0.2.1",  # it asks for one that is not loopback, and tells it to nobody here
            "endpoint-reconciler-type": "none",
            "secure-port": self._address.rpartition(":")[2],
            "tls-cert-file": str(certificate),
            "tls-private-key-file": str(key),
            "token-auth-file": str(users),
            "authorization-mode": "RBAC",
            "disable-admission-plugins": "ServiceAccount",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": str(key),
            "service-account-signing-key-file": str(key),
        }

    def _start(self, program: str, **settings: str) -> None:
        options = [f"--{name}={value}" for name, value in settings.items()]
        with (self._folder / f"{program}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen([PROGRAMS / program, *options], stdout=log, stderr=log, cwd=self._folder)
            )

    def _make_namespace(self) -> None:
        self._api.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        rights = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
        rules = [{"apiGroups": [""], "resources": [what], "verbs": [verb]} for what, verb in MAY.items()]
        self._api.call("POST", f"{rights}/roles", {"metadata": {"name": "drivers"}, "rules": rules})
        group = "rbac.authorization.k8s.io"
        binding = {
            "metadata": {"name": "drivers"},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "drivers"},
            "subjects": [{"apiGroup": group, "kind": "Group", "name": "drivers"}],
        }
        self._api.call("POST", f"{rights}/rolebindings", binding)

    def executors(self) -> list[psutil.Process]:
        """The executor processes of now."""
        return executors_among(living_in(self._folder))

    def close(self) -> None:
        """End all that was started."""
        self._kubelet.close()
        shoot(living_in(self._folder))
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.wait(PATIENCE_S)

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()
