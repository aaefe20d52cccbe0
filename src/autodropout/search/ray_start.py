"""Ray for the engine `ray`: a cluster that is joined, or Ray started for this machine alone.

- `ray.init` was called before: that cluster is used, and left alone.
- An address, or one in the variable RAY_ADDRESS: that cluster is joined. Start it with RAY_AUTH_MODE=token everywhere:
  without authentication whoever reaches its ports can run code on it, and we say so.
- Neither: Ray is started here, all its ports on loopback, with a token that is made for this process. It ends with us.

Some of what we ask of Ray has no public name; each place where we use a private one says so (`_changed`).
"""

import logging
import os
import secrets
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from ipaddress import ip_address
from types import ModuleType
from typing import Any

import ray
from ray._private import ray_constants, utils, worker
from ray._raylet import Config  # type: ignore[attr-defined]  # not in its stubs

NEWEST_TOO_OLD = (2, 53)  # 2.54 brought what we need of token authentication

OBJECT_STORE = 128 * 2**20
"""Bytes for children and answers on their way, where we start Ray; and room for the child itself."""

LOGS = "RAY_LOG_TO_DRIVER"
"""Ray's variable: set to 1, what children print, and what Ray says of them, comes to the driver's terminal. It stays in
Ray's own logs otherwise."""

log = logging.getLogger("autodropout")


class Connection:
    """This process and a Ray cluster."""

    def __init__(self, address: str | None, room: int) -> None:
        """Join the cluster at `address`; without one, start Ray with room for an object of so many bytes."""
        if tuple(map(int, ray.__version__.split(".")[:2])) <= NEWEST_TOO_OLD:
            raise ValueError(f"the engine 'ray' needs ray 2.54 or newer, this is {ray.__version__}")
        self._undo = ExitStack()
        self.started = False  # by us
        if ray.is_initialized():
            return
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        if "://" in address:
            raise ValueError(
                f"{address!r} is an address for Ray's client, whose children live on for half a minute when it dies: "
                "run the search on a machine of the cluster, with the address HOST:PORT or 'auto'"
            )
        with ExitStack() as undo:
            # Ray writes that a worker has died to stdout, whatever its options say.
            undo.enter_context(_changed(worker, "_worker_logs_enabled", os.environ.get(LOGS) == "1"))
            if address == "local":
                undo.enter_context(_alone())
            undo.callback(ray.shutdown)
            _init(address, OBJECT_STORE + 2 * room if address == "local" else None)
            self._undo = undo.pop_all()
        self.started = address == "local"
        if not self.started:
            _warn_of_open_cluster(ray.get_runtime_context().gcs_address)

    def places(self, cpus: float, gpus: float) -> int:
        """How many children fit into the nodes that are there now, were nobody else on them."""
        return sum(_places(resources, cpus, gpus) for resources in self._nodes())

    def has_gpus(self) -> bool:
        return any(resources.get("GPU", 0) for resources in self._nodes())

    def close(self) -> None:
        """Leave the cluster; end the one that we started. A cluster that was there before us is left alone."""
        self._undo.close()

    def _nodes(self) -> list[dict[str, float]]:
        """The resources of each."""
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        return [node["Resources"] for node in nodes if node["Alive"]]


def _places(resources: Mapping[str, float], cpus: float, gpus: float) -> int:
    places = int(resources.get("CPU", 0.0) / cpus + 1e-6)
    if not gpus:
        return places
    there = int(resources.get("GPU", 0.0))
    return min(places, there * int(1 / gpus + 1e-6) if gpus < 1 else int(there / gpus))  # a share is of one GPU


def _init(address: str, object_store: int | None) -> None:
    """`ray.init`, but SIGTERM stays with the driver, which has to give back its trials."""
    options: dict[str, Any] = {"configure_logging": False, "log_to_driver": os.environ.get(LOGS) == "1"}
    if object_store is not None:
        options |= {"include_dashboard": False, "object_store_memory": object_store}
    before = signal.getsignal(signal.SIGTERM)
    try:
        # Ray shows the driver's command line on its dashboard, and a ledger's password may be in it.
        with _changed(utils, "get_entrypoint_name", lambda: "autodropout"):
            ray.init(address=address, **options)
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _alone() -> Iterator[None]:
    """Ray's settings while it runs for this machine alone."""
    names = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": _token(),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # its name for: use loopback and nothing else, on any system
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # as newer versions do without being told; a host hides GPUs itself
    }
    before = {name: os.environ.get(name) for name in names}
    os.environ |= names
    try:
        # Ray reads them when it is imported, which may have happened before: so this module and this class again.
        with _changed(ray_constants, "ENABLE_RAY_CLUSTER", False):
            Config.initialize("")
            yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        Config.initialize("")


@contextmanager
def _changed(private: ModuleType, name: str, value: object) -> Iterator[None]:
    """One of Ray's private names, with another value for a while."""
    before = getattr(private, name)
    setattr(private, name, value)
    try:
        yield
    finally:
        setattr(private, name, before)


@cache
def _token() -> str:
    """One a process: Ray remembers the first it sees."""
    return secrets.token_hex(32)


def _warn_of_open_cluster(address: str) -> None:
    """A cluster with authentication would not have let us in without."""
    host = address.rpartition(":")[0].strip("[]")
    if os.environ.get("RAY_AUTH_MODE", "disabled").lower() == "disabled" and not _is_loopback(host):
        log.warning(
            "The Ray cluster at %s has no authentication: whoever reaches its ports can run code on it. "
            "Start it with RAY_AUTH_MODE=token on every node",
            address,
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
