"""What can be wrong with the place of a ledger: each a clear message, and nothing that was written is lost."""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from ledger_tools import finish, info, proposals, replayed, update
from sqlalchemy import text
from test_ledger_kills import lines

from autodropout.search import database
from autodropout.search.errors import (
    BadAddress,
    LedgerError,
    NoSuchStudy,
    StorageBusy,
    StorageDamaged,
    StorageError,
    StorageFull,
)
from autodropout.search.ledger import Ledger
from autodropout.search.states import State
from ledger_server import Server
from small_disk import mounted
from zygote import Zygote


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "study.db"


def on(path: Path) -> Ledger:
    return Ledger(f"sqlite:///{path}")


def intact(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_sqlite_is_set_up_to_survive_a_power_cut(path: Path) -> None:
    with on(path) as ledger, ledger.drive(info()) as study:
        pragma = lambda name: study._connection.exec_driver_sql(f"PRAGMA {name}").scalar()  # noqa: E731
        assert [pragma("journal_mode"), pragma("synchronous"), pragma("foreign_keys")] == ["wal", 2, 1]
        study._connection.rollback()
    assert not path.with_name("study.db-wal").exists(), "the log is folded in when the last one closes"


def test_reading_what_is_not_there_creates_nothing(path: Path) -> None:
    with pytest.raises(NoSuchStudy, match="there is no file"):
        on(path).read("mine")
    assert not path.exists()
    path.touch()
    with pytest.raises(NoSuchStudy, match="no ledger here"):
        on(path).studies()


def test_places_that_cannot_hold_a_ledger(path: Path, tmp_path: Path) -> None:
    with pytest.raises(BadAddress, match=r"there is no folder .*/missing"):
        on(tmp_path / "missing" / "study.db").drive(info())
    with pytest.raises(BadAddress, match="is not a file"):
        on(tmp_path).drive(info())
    path.write_text("This is not a database, and must stay as it is. " * 100)
    content = path.read_bytes()
    for call in (lambda: on(path).drive(info()), lambda: on(path).read("mine")):
        with pytest.raises(BadAddress, match="file is not a database: the file is something else"):
            call()
    assert path.read_bytes() == content


def test_a_network_file_system_is_refused_unless_the_log_is_given_up(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "network_file_system", lambda path: "nfs4")
    with pytest.raises(BadAddress, match=r"network file system \(nfs4\).*PostgreSQL.*journal=delete"):
        on(path).drive(info())
    assert not path.exists()
    with Ledger(f"sqlite:///{path}?journal=delete") as ledger, ledger.drive(info()) as study:
        mode = study._connection.exec_driver_sql("PRAGMA journal_mode").scalar()
        study._connection.rollback()
        assert mode == "delete"
        state = update(study)
        assert ledger.read("mine").counts()[State.APPLIED] == 4
    with Ledger(f"sqlite:///{path}?journal=delete") as ledger:
        assert replayed(ledger.read("mine")) == state


def test_a_file_without_room_to_grow(path: Path) -> None:
    with on(path) as ledger, ledger.drive(info()) as study:
        state = update(study)
        seen = study.trials()
        pages = study._connection.exec_driver_sql("PRAGMA page_count").scalar()
        study._connection.exec_driver_sql(f"PRAGMA max_page_count={pages + 8}")
        study._connection.rollback()
        numbers = finish(study, 4)
        before = study.trials()
        for call in (
            lambda: study.apply(numbers, 2, {}, b"x" * 10**6),
            lambda: study.propose(proposals(5000)),
        ):
            with pytest.raises(StorageFull, match=r"full.*what was written before is intact"):
                call()
            assert study.trials() == before
        with suppress(StorageError), study.transaction():  # in the middle of a larger one
            study.start([study.propose(proposals(1))[0].number])
            with pytest.raises(StorageFull):
                study.apply(numbers, 2, {}, b"x" * 10**6)
        assert study.trials() == before
        assert before[:4] == seen
        assert (study.checkpoint().version, study.checkpoint().state) == (1, state)
        study._connection.exec_driver_sql("PRAGMA max_page_count=1000000")
        study._connection.rollback()
        study.apply(numbers, 2, {}, b"x" * 10**6)  # the same driver goes on once there is room
    assert intact(path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path, megabytes=2) as disk:
        yield disk


def fill(ballast: Path) -> None:
    """Take all the space that is left."""
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass


def test_a_full_disk(small_disk: Path) -> None:
    ballast, path = small_disk / "ballast", small_disk / "study.db"
    with on(path) as ledger, ledger.drive(info()) as study:
        state = update(study)
        numbers = finish(study, 4)
        fill(ballast)
        seen = study.trials()
        with pytest.raises(StorageFull, match="full"):
            study.apply(numbers, 2, {}, os.urandom(100_000))
        assert study.trials() == seen
        assert ledger.read("mine").checkpoint().state == state
        ballast.unlink()
        study.apply(numbers, 2, {}, os.urandom(100_000))
    assert intact(path)
    with on(path) as ledger:
        assert len(ledger.read("mine").updates()) == 2


def test_a_disk_that_is_full_from_the_start(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(b"x" * (2 * 2**20 - 8192))
    with pytest.raises(StorageError, match=r"disk|open"):
        on(small_disk / "study.db").drive(info())
    (small_disk / "ballast").unlink()
    with on(small_disk / "study.db") as ledger, ledger.drive(info()) as study:
        update(study)


def test_a_writer_that_never_ends_is_named_as_the_reason(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.2)
    with on(path) as ledger, ledger.drive(info()) as study:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StorageBusy, match="another process has been writing"):
                study.propose(proposals(1))
            assert study.trials() == []
        assert len(study.propose(proposals(1))) == 1


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_who_changes_the_journal_waits_for_those_that_have_the_file_open(path: Path, journal: str) -> None:
    """As two do that create a ledger at the same time."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute(f"PRAGMA journal_mode={'delete' if journal == 'wal' else 'wal'}")
        other.execute("CREATE TABLE theirs (number)")
        other.execute("BEGIN")
        other.execute("SELECT * FROM theirs").fetchall()
        closer = threading.Timer(0.5, other.close)
        closer.start()
        with Ledger(f"sqlite:///{path}?journal={journal}") as ledger, ledger.drive(info()) as study:
            assert study.trials() == []
        closer.join()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == (journal,)


def test_a_file_that_stays_open_elsewhere_is_the_reason_that_is_named(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.2)
    with on(path) as ledger, ledger.drive(info()):
        with (
            pytest.raises(StorageBusy, match="it is open elsewhere, so that its journal cannot become 'delete'"),
            Ledger(f"sqlite:///{path}?journal=delete") as other,
        ):
            other.drive(info("other"))
        with on(path) as other, other.drive(info("other")) as study:
            assert study.trials() == []


def test_a_damaged_file_is_reported_as_such(path: Path) -> None:
    with on(path) as ledger, ledger.drive(info()) as study:
        study.propose(proposals(2000))
    with path.open("r+b") as file:
        file.seek(4096 * 10)
        file.write(b"\xff" * 4096 * 20)
    with on(path) as ledger, pytest.raises(StorageDamaged, match=r"malformed.*recover"):
        ledger.read("mine").trials()


def test_a_checkpoint_with_a_flipped_bit_on_disk(path: Path) -> None:
    """Not through SQL: SQLite keeps no checksums, the ledger does."""
    with on(path) as ledger, ledger.drive(info()) as study:
        states = [update(study), b"\x5a" * 50_000]
        study.apply(finish(study, 4), 2, {}, states[1])
    content = bytearray(path.read_bytes())
    content[content.index(b"\x5a" * 4000) + 2000] ^= 1
    path.write_bytes(content)
    with on(path) as ledger:
        found = ledger.read("mine").checkpoint()
        assert (found.version, found.state, found.damaged) == (1, states[0], (2,))
        assert [u.version for u, _ in ledger.read("mine").batches(after=found.version)] == [2]


def test_a_study_on_read_only_ground_can_be_read(path: Path, tmp_path: Path, zygote: Zygote) -> None:
    with on(path) as ledger, ledger.drive(info()) as study:
        finish(study, 3)
    content = path.read_bytes()
    log = tmp_path / "log"
    log.touch()
    log.chmod(0o666)
    for mode in (0o555, 0o755):  # a folder, then a file, that this user may not write
        path.parent.chmod(mode)
        path.chmod(0o444)
        user = 65534 if os.geteuid() == 0 else os.geteuid()
        folders = [folder for folder in path.parents if not folder.stat().st_mode & 0o001]
        for folder in folders:
            folder.chmod(folder.stat().st_mode | 0o001)
        zygote.spawn("write_as", url=f"sqlite:///{path}", log=str(log), user=user)
        assert zygote.wait() == 0
    path.parent.chmod(0o755)
    for read, refused in zip(lines(log)[::2], lines(log)[1::2], strict=True):
        assert read == {"op": "read", "trials": 3}
        assert refused["kind"] == "StorageError"
        assert "may be written" in refused["message"]
    assert path.read_bytes() == content


def test_a_server_that_goes_read_only(server: Server) -> None:
    url = server.create("standby")
    with Ledger(url) as ledger:
        with ledger.drive(info()) as study:
            study.propose(proposals(1))
        server.execute("ALTER DATABASE standby SET default_transaction_read_only = on")
        with pytest.raises(LedgerError, match="read-only"):
            ledger.drive(info())
        assert len(ledger.read("mine").trials()) == 1


def test_a_user_without_rights(server: Server) -> None:
    url = server.create("rights")
    with Ledger(url) as ledger, ledger.drive(info()) as study:
        study.propose(proposals(1))
    server.execute("CREATE ROLE guest LOGIN PASSWORD 'guest'")
    guest = f"postgresql://guest:guest@127.0.0.1:{server.port}/rights"
    with Ledger(guest) as ledger:
        with pytest.raises(StorageError, match="permission denied"):
            ledger.drive(info())
        server.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO guest", database="rights")
        assert len(ledger.read("mine").trials()) == 1
        assert ledger.read("mine").owner() is None


def test_the_database_itself_refuses_what_no_driver_may_write(url: str) -> None:
    """A last line of defence, under our own code."""
    with Ledger(url) as ledger, ledger.drive(info()) as study:
        update(study)
        finish(study, 1)
        for statement in (
            "UPDATE autodropout_trial SET value = NULL WHERE number = 4",
            "UPDATE autodropout_trial SET state = 3 WHERE number = 4",
            'UPDATE autodropout_trial SET "update" = 0 WHERE number = 4',
            'UPDATE autodropout_trial SET state = 3, "update" = 1 WHERE number = 4',
            "UPDATE autodropout_trial SET state = 6 WHERE number = 4",
            "UPDATE autodropout_trial SET number = 0 WHERE number = 4",
            "DELETE FROM autodropout_study",
        ):
            with pytest.raises(StorageError), study.transaction():
                study._connection.execute(text(statement))
        assert study.counts()[State.FINISHED] == 1
