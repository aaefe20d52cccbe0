"""A PostgreSQL server of the tests' own: in a temporary folder, on loopback, never as root, gone afterwards."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg

USER = "autodropout"
PASSWORD = "Xq7:/@?#%-geheim"  # everything a URL could stumble over
MISSING = "no PostgreSQL server binaries (initdb, postgres) were found: install Debian's package `postgresql`"


@dataclass(frozen=True)
class Server:
    port: int

    def url(self, database: str, password: str = PASSWORD, port: int | None = None) -> str:
        return f"postgresql://{USER}:{quote(password, safe='')}@127.0.0.1:{port or self.port}/{database}"

    def execute(self, statement: str, database: str = "postgres") -> None:
        with psycopg.connect(
            host="127.0.0.1", port=self.port, user=USER, password=PASSWORD, dbname=database, autocommit=True
        ) as connection:
            connection.execute(statement)

    def schema(self) -> str:
        """The URL of an empty schema of its own: as good as a database, and made of far fewer files."""
        name = f"s{uuid.uuid4().hex}"
        self.execute(f"CREATE SCHEMA {name}")
        return f"{self.url('postgres')}?options=-csearch_path%3D{name}"

    def create(self, database: str) -> str:
        self.execute(f'CREATE DATABASE "{database}"')
        return self.url(database)


def binary(name: str) -> str | None:
    folders = [str(folder) for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *folders]))


@contextmanager
def running_server(fsync: bool = False) -> Iterator[Server | None]:
    """The server, or None where there is none to run. Tests kill its clients, not the machine: they need no `fsync`."""
    initdb, postgres = binary("initdb"), binary("postgres")
    if initdb is None or postgres is None:
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="autodropout-postgres-"))
    try:
        identity = _without_root(folder)
        (folder / "password").write_text(PASSWORD)
        options = ["-A", "scram-sha-256", "-U", USER, "--pwfile", str(folder / "password"), "-E", "UTF8"]
        subprocess.run(
            [initdb, "-D", str(folder / "data"), *options, "--no-locale", "--no-sync"],
            check=True, capture_output=True, cwd=folder, **identity,
        )  # fmt: skip
        settings = [
            "listen_addresses=127.0.0.1",
            f"fsync={'on' if fsync else 'off'}",
            "shared_buffers=32MB",
            "max_connections=40",
        ]
        command = [postgres, "-D", str(folder / "data"), "-k", str(folder)]
        command += [argument for setting in settings for argument in ("-c", setting)]
        answers = False
        while not answers:  # somebody else may have taken the port meanwhile
            server = Server(_free_port())
            with (folder / "log").open("wb") as log:
                process = subprocess.Popen(
                    [*command, "-p", str(server.port)], stdout=log, stderr=log, cwd=folder, **identity
                )
            try:
                answers = _answers(server, process, folder / "log")
                if answers:
                    yield server
            finally:
                process.send_signal(2)  # fast shutdown: do not wait for clients
                process.wait(120)
    finally:
        shutil.rmtree(folder)


def _without_root(folder: Path) -> dict[str, object]:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    user = next(pwd.getpwnam(name) for name in ("postgres", "nobody") if name in {u.pw_name for u in pwd.getpwall()})
    os.chown(folder, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _answers(server: Server, process: subprocess.Popen[bytes], log: Path) -> bool:
    """True once it does, False when it has not got its port."""
    deadline = time.monotonic() + 120
    while True:
        try:
            server.execute("SELECT 1")
            return True
        except psycopg.OperationalError:
            if process.poll() is not None and "Address already in use" in log.read_text():
                return False
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the PostgreSQL server does not answer:\n{log.read_text()}") from None
            time.sleep(0.05)
