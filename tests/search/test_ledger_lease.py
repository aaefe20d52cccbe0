"""One driver per study: who is refused, who takes over, and who can no longer write."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from ledger_tools import info, proposals
from sqlalchemy import text
from test_ledger_kills import lines

from autodropout.search import lease
from autodropout.search.errors import LedgerError, LostLease, StorageLost, StudyOwned
from autodropout.search.ledger import Ledger
from autodropout.search.reading import Reader
from autodropout.search.writing import Writer
from ledger_server import Server
from zygote import Zygote


def wait_for(log: Path, op: str, count: int = 1) -> dict:
    """The line number `count` of this kind, once it is there."""
    wait_until(lambda: sum(line["op"] == op for line in lines(log)) >= count, f"no {op!r} in the log")
    return [line for line in lines(log) if line["op"] == op][count - 1]


def wait_until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + 120  # only a test that fails waits so long
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def test_a_second_driver_is_told_who_owns_the_study(ledger: Ledger, study: Writer) -> None:
    owner = ledger.read("mine").owner()
    assert owner is not None
    assert owner.pid == os.getpid()
    with pytest.raises(
        StudyOwned, match=rf"'mine' is being driven by process {os.getpid()} on .*, since {owner.since:%Y}"
    ):
        ledger.drive(info())
    study.propose(proposals(1))
    study.close()
    assert ledger.read("mine").owner() is None
    with ledger.drive(info()) as second:
        assert second.owner().token == owner.token + 1


def test_two_processes(url: str, tmp_path: Path, zygote: Zygote) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    pid = zygote.spawn("hold", url=url, log=str(first), lease_seconds=3600)
    wait_for(first, "wrote", 2)
    assert zygote.wait(zygote.spawn("hold", url=url, log=str(second), lease_seconds=30)) == 0
    (refused,) = lines(second)
    assert refused["kind"] == "StudyOwned"
    assert f"process {pid} on " in refused["message"]
    with Ledger(url) as ledger:
        assert ledger.read("mine").owner().pid == pid
        assert ledger.read("mine").trials()
    os.kill(pid, signal.SIGKILL)
    zygote.wait(pid)
    with Ledger(url) as ledger, ledger.drive(info()) as third:  # a lease of a dead process on this machine is none
        assert third.owner().pid == os.getpid()


def test_an_owner_that_nobody_has_reaped_is_dead(tmp_path: Path, zygote: Zygote) -> None:
    """What a killed child of a shell script looks like until the script waits for it."""
    process = subprocess.Popen([sys.executable, "-c", "print('up', flush=True); input()"], stdout=-1, stdin=-1)
    assert process.stdout is not None
    process.stdout.readline()
    birth = lease._birth(process.pid)
    assert birth is not None
    assert lease._birth(process.pid) == birth != lease._birth(os.getpid())
    process.kill()
    wait_until(lambda: lease._birth(process.pid) is None, "a dead process has a birth")
    process.communicate()
    assert lease._birth(process.pid) is None


def change(study: Writer, **values: object) -> None:
    with study.transaction():
        study._connection.execute(lease.schema.lease.update().values(**values))


def test_a_reused_pid_is_not_the_owner(tmp_path: Path) -> None:
    with Ledger(f"sqlite:///{tmp_path}/study.db") as ledger, ledger.drive(info()) as first:
        change(first, birth="1")  # as if another process had been started under this pid
        assert ledger.read("mine").owner() is None
        with ledger.drive(info()) as second:
            second.propose(proposals(1))
            with pytest.raises(LostLease, match=r"process .* has taken it over"):
                first.propose(proposals(1))


def test_an_owner_elsewhere_is_waited_for_until_its_lease_ends(tmp_path: Path) -> None:
    """Another machine, or a container with pids of its own: whether the process lives cannot be told from here."""
    with Ledger(f"sqlite:///{tmp_path}/study.db") as ledger, ledger.drive(info(), lease_seconds=3600) as first:
        change(first, scope="elsewhere", host="elsewhere", pid=2**22 + 1)
        with pytest.raises(StudyOwned, match=r"on elsewhere, since .* wait until"):
            ledger.drive(info())
        change(first, expires=time.time() - 0.01)
        with ledger.drive(info()):
            pass


def locked(path: Path) -> bool:
    """Whether somebody is inside a write transaction."""
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
    return False


def suspended(pid: int, reader: Reader, log: Path, path: Path) -> bool:
    """Suspend a driver, if it is caught outside a transaction, whose lock would stop everybody, and has said of all
    that it wrote."""
    os.kill(pid, signal.SIGSTOP)
    if not locked(path) and len(reader.trials()) == sum(line["op"] == "wrote" for line in lines(log)):
        return True
    os.kill(pid, signal.SIGCONT)
    return False


def test_a_suspended_driver_is_replaced_and_can_write_no_more(tmp_path: Path, zygote: Zygote) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    first, second = tmp_path / "first", tmp_path / "second"
    sleeper = zygote.spawn("hold", url=url, log=str(first), lease_seconds=1)
    wait_for(first, "wrote", 2)
    with Ledger(url) as ledger:
        reader = ledger.read("mine")
        begun = time.time()
        renewed = lambda: (owner := reader.owner()) is not None and owner.expires.timestamp() > begun + 1.5  # noqa: E731
        wait_until(renewed, "it has no heartbeat")
        wait_until(lambda: suspended(sleeper, reader, first, tmp_path / "study.db"), "always in a transaction")
        time.sleep(1.2)
        successor = zygote.spawn("hold", url=url, log=str(second), lease_seconds=30)
        wait_for(second, "wrote", 2)
        count = len(lines(first))
        os.kill(sleeper, signal.SIGCONT)
        assert zygote.wait(sleeper) == 0
        (last,) = lines(first)[count:]
        assert last["kind"] == "LostLease"
        assert f"process {successor} on " in last["message"]
        assert reader.owner().pid == successor
        os.kill(successor, signal.SIGKILL)
        zygote.wait(successor)


def test_drivers_that_start_at_once_on_an_empty_database(url: str) -> None:
    """They create the same tables; and of those that want the same study, one gets it."""
    results: dict[int, Writer | Exception] = {}
    ledgers = [Ledger(url) for _ in range(6)]
    together = threading.Barrier(len(ledgers))

    def drive(index: int) -> None:
        together.wait()
        try:
            results[index] = ledgers[index].drive(info(f"study {index // 2}"))
        except LedgerError as error:
            results[index] = error

    threads = [threading.Thread(target=drive, args=[index]) for index in range(len(ledgers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for pair in ((0, 1), (2, 3), (4, 5)):
        kinds = {type(results[index]) for index in pair}
        assert kinds == {Writer, StudyOwned}, [results[index] for index in pair]
    for index, ledger in enumerate(ledgers):
        if isinstance(study := results[index], Writer):
            study.close()
        ledger.close()


def test_a_closed_study_cannot_be_written(study: Writer) -> None:
    study.close()
    study.close()
    with pytest.raises(LostLease, match="'mine' was closed by its driver"):
        study.propose(proposals(1))
    assert study.trials() == []  # reading goes on


def test_every_write_is_fenced(ledger: Ledger, study: Writer) -> None:
    study.propose(proposals(8))
    study.start(range(6))
    for number in range(4):
        study.finish(number, 0.5)
    seen = study.trials()
    change(study, token=99)  # as if another driver had come and gone
    writes = [
        lambda: study.propose(proposals(1)),
        lambda: study.start([6]),
        lambda: study.finish(4, 0.5),
        lambda: study.requeue([4], limit=2),
        lambda: study.apply([0, 1, 2, 3], 1, {}, b""),
        study.heartbeat,
    ]
    for write in writes:
        study._lost = None  # forget, so that the database itself is asked each time
        with pytest.raises(LostLease, match="not driven by this process any more"):
            write()
    with pytest.raises(LostLease):
        study.propose(proposals(1))
    assert ledger.read("mine").trials() == seen
    assert ledger.read("mine").updates() == []


def test_a_broken_connection_ends_ownership(server: Server) -> None:
    """PostgreSQL: the lock lives as long as the connection, so a driver must not connect anew behind our back."""
    with Ledger(server.create("broken")) as ledger, ledger.drive(info()) as study:
        study.propose(proposals(1))
        (pid,) = study._connection.execute(text("SELECT pg_backend_pid()")).one()
        study._connection.rollback()
        server.execute(f"SELECT pg_terminate_backend({pid}, 100000)")
        with pytest.raises(StorageLost):
            study.propose(proposals(1))
        with pytest.raises(LostLease, match="connection that owned it broke"):
            study.propose(proposals(1))
        assert ledger.read("mine").owner() is None
        with ledger.drive(info()) as second:
            assert len(second.propose(proposals(1))) == 1
            with pytest.raises(LostLease):
                study.heartbeat()
        assert len(ledger.read("mine").trials()) == 2


def test_a_server_that_is_late_to_notice_a_death_is_waited_for(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL: the lock of a killed driver stays until its connection is found broken."""
    monkeypatch.setattr(lease, "GRACE_SECONDS", 0.0)  # for one that may be alive
    with Ledger(server.schema()) as ledger, ledger.drive(info()) as first:
        with pytest.raises(StudyOwned):
            ledger.drive(info())
        (pid,) = first._connection.execute(text("SELECT pg_backend_pid()")).one()
        first._connection.rollback()
        change(first, birth="1")  # as if its process had been killed
        assert ledger.read("mine").owner() is None
        notice = threading.Timer(1.0, server.execute, [f"SELECT pg_terminate_backend({pid})"])
        notice.start()
        with ledger.drive(info()) as second:
            assert second.owner().pid == os.getpid()
        notice.join()


def test_a_fork_of_the_driver_cannot_write(study: Writer) -> None:
    study._process += 1
    with pytest.raises(LostLease, match="fork"):
        study.propose(proposals(1))
    study.close()  # does nothing: the lease is the parent's
    study._process -= 1
    study.propose(proposals(1))


def test_the_heartbeat_runs_while_the_driver_is_busy(ledger: Ledger) -> None:
    with ledger.drive(info(), lease_seconds=0.6) as study:
        seen = set()

        def beaten() -> bool:
            seen.update(owner.expires for owner in [study.owner()] if owner is not None)  # no owner: it came late
            return len(seen) > 2

        wait_until(beaten, "it has no heartbeat")
    assert not [thread for thread in threading.enumerate() if thread.name == "lease of mine"]


def test_threads_of_a_driver_take_turns(study: Writer) -> None:
    """The heartbeat is one; a read of the driver must not slip into another thread's transaction."""
    seen: list[int] = []

    def propose() -> None:
        for _ in range(20):
            with study.transaction():
                study.propose(proposals(1))
                study.propose(proposals(1))

    def read() -> None:
        seen.extend(len(study.trials()) for _ in range(60))

    threads = [threading.Thread(target=target) for target in (propose, propose, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(study.trials()) == 80
    assert all(count % 2 == 0 for count in seen)
