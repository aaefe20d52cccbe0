"""Storage URLs: what is understood, what is refused and how, and that a password is never shown."""

import importlib.util
import traceback
from pathlib import Path

import pytest
from ledger_tools import info, proposals

from autodropout.search.errors import BadAddress, LedgerError, StorageLost
from autodropout.search.filesystems import file_system, network_file_system
from autodropout.search.ledger import Ledger
from autodropout.search.url import parse_url
from ledger_server import PASSWORD, Server

SECRET = "geheim"


def everything(error: BaseException | None) -> str:
    """All that a log could show of an error and of those behind it."""
    texts = ["".join(traceback.format_exception(error))] if error else []
    while error is not None:
        texts += [str(error), repr(error), repr(error.args), repr(vars(error))]
        error = error.__cause__ or error.__context__
    return "\n".join(texts)


@pytest.mark.parametrize(
    ("url", "path", "journal"),
    [
        ("sqlite:///study.db", "study.db", "wal"),
        ("sqlite:////data/a b%20é.db", "/data/a b%20é.db", "wal"),
        ("sqlite:///x/../study.db?journal=delete", "x/../study.db", "delete"),
        ("sqlite:///study.db?journal=wal", "study.db", "wal"),
    ],
)
def test_sqlite_urls(url: str, path: str, journal: str) -> None:
    address = parse_url(url)
    assert (address.path, address.journal, str(address)) == (Path(path), journal, url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("postgres://me:geheim@host:5433/db", "postgresql://me:***@host:5433/db"),
        ("postgresql+psycopg://me:geh%40eim@[::1]/db", "postgresql://me:***@[::1]/db"),
        ("postgresql:///db", "postgresql:///db"),
        ("postgresql://host/db?sslmode=require", "postgresql://host/db?sslmode=require"),
        ("postgresql://host/db?password=geheim&sslpassword=geheim2", "postgresql://host/db"),
        ("postgresql://host/db?Passwort=geheim&pwd=geheim2&sslmode=require", "postgresql://host/db?sslmode=require"),
    ],
)
def test_postgresql_urls(url: str, shown: str) -> None:
    address = parse_url(url)
    assert str(address) == shown
    assert SECRET not in repr(address)
    assert repr(Ledger(url)) == f"Ledger({shown!r})"
    assert address.url.drivername == "postgresql+psycopg"


def test_masking_knows_every_spelling() -> None:
    address = parse_url("postgresql://me:p%20w%27%2F%5Cx@host/db")
    assert (
        address.mask(r"p w'/\x, p%20w%27%2F%5Cx, p%20w%27/%5Cx, p+w%27%2F%5Cx, p w'/\\x") == "***, ***, ***, ***, ***"
    )


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "sqlite:///study.db or postgresql"),
        ("study.db", "needs sqlite:///"),
        (None, "a storage is a URL"),
        ("mysql://me:geheim@host/db", "'mysql' is not a storage"),
        ("sqlite://study.db", "three slashes"),
        ("sqlite:///", "must outlive its process"),
        ("sqlite:///:memory:", "must outlive its process"),
        ("sqlite:///study.db?journal=off", "one of wal, delete"),
        ("sqlite:///study.db?mode=ro", "the only option is"),
        ("postgresql+psycopg2://me:geheim@host/db", "psycopg 3"),
        ("postgresql://me:geheim@host", "names no database"),
        ("postgresql://me:geheim@host/", "names no database"),
        ("postgresql://me:geheim@host:port/db", "cannot be read"),
        ("postgresql://me:geheim@x@host/db", "%40"),
        ("postgresql://me:x/geheim@host/db", "%2F"),
        ("postgresql://me:x?geheim@host/db", "%3F"),
        ("postgresql://me:x#geheim@host/db", "%23"),
        ("postgresql://me:x:geheim/db", "cannot be read"),
    ],
)
def test_bad_urls_are_refused_without_repeating_a_password(url: str, words: str) -> None:
    with pytest.raises(BadAddress, match=words.replace("?", r"\?")) as error:
        Ledger(url)
    shown = [str(error.value), repr(error.value), *map(str, (error.value.__cause__,))]
    assert not any(SECRET in text for text in shown)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadAddress, match=r"pip install 'autodropout\[postgresql\]'"):
        Ledger("postgresql://me@host/db").studies()


def test_no_error_of_the_server_shows_the_password(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.create("masked")
    wrong = f"not-{PASSWORD}"
    trouble = {
        "authentication failed": server.url("masked", password=wrong),
        'database "missing" does not exist': server.url("missing"),
        "connection refused|Connection refused": server.url("masked", port=1),
        "host": server.url("masked").replace("127.0.0.1", "nowhere.invalid"),
        "sslmode": server.url("masked") + "?sslmode=nonsense",
    }
    for words, url in trouble.items():
        with Ledger(url) as ledger:
            for call in (ledger.studies, lambda ledger=ledger: ledger.drive(info())):
                with pytest.raises(StorageLost, match=words) as error:
                    call()
                assert SECRET not in everything(error.value)
                assert "autodropout:***@" in str(error.value)
            assert SECRET not in repr(ledger)
    assert SECRET not in caplog.text


def test_lines_of_the_server_are_told_apart() -> None:
    with pytest.raises(StorageLost, match=r"[Cc]onnection refused; Is the server running on that host"):
        Ledger("postgresql://me@127.0.0.1:1/db").studies()


def test_nothing_of_a_study_shows_the_password(server: Server) -> None:
    with Ledger(server.create("shown")) as ledger, ledger.drive(info()) as study:
        study.propose(proposals(2))
        reader = ledger.read("mine")
        with pytest.raises(LedgerError) as owned:
            ledger.drive(info())
        with pytest.raises(LedgerError) as missing:
            ledger.read("other")
        server.execute("DROP TABLE autodropout_trial", database="shown")
        with pytest.raises(LedgerError, match="does not exist") as broken:
            reader.trials()
        with pytest.raises(LedgerError, match="does not exist") as unwritten:
            study.propose(proposals(1))
        for error in (owned, missing, broken, unwritten):
            assert SECRET not in everything(error.value)
        shown = [study, reader, study._engine, study._writers, study._connection, study._address, study._lease]
        assert not any(SECRET in repr(thing) for thing in shown)


MOUNTS = r"""/dev/vda1 / ext4 rw 0 0
proc /proc proc rw 0 0
auto /home autofs rw 0 0
server:/home /home nfs4 rw,vers=4.2 0 0
/dev/vdb /home/local xfs rw 0 0
host:/share /mnt/my\040share fuse.sshfs rw 0 0
bad line
tmpfs /homes tmpfs rw 0 0
scratch /scratch lustre rw 0 0
/dev/vdc /scratch ext4 rw 0 0"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/study.db", "ext4"),
        ("/home/me/study.db", "nfs4"),
        ("/home/local/study.db", "xfs"),
        ("/homes/study.db", "tmpfs"),
        ("/mnt/my share/deep/study.db", "fuse.sshfs"),
        ("/scratch/study.db", "ext4"),
    ],
)
def test_which_file_system_holds_a_path(path: str, kind: str) -> None:
    assert file_system(Path(path), MOUNTS.splitlines()) == kind


def test_network_file_systems_are_told_from_local_ones(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    for kind, network in {"nfs4": 1, "fuse.sshfs": 1, "cifs": 1, "lustre": 1, "ext4": 0, "fuse.mergerfs": 0}.items():
        mounts.write_text(f"x / {kind} rw 0 0\n")
        assert network_file_system(tmp_path / "study.db", mounts) == (kind if network else None)
    assert network_file_system(tmp_path / "study.db", tmp_path / "none") is None  # not Linux
    (tmp_path / "link").symlink_to(tmp_path)
    mounts.write_text(f"x / ext4 rw 0 0\nx {tmp_path / 'link'} nfs rw 0 0\n")
    assert network_file_system(tmp_path / "link" / "study.db", mounts) is None  # where it really is
