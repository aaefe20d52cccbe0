"""Archives that try to leave their folder, to overwrite, to link or to grow: all refused, nothing written outside."""

import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from autodropout.data.fetch import unpack as module
from autodropout.data.fetch.unpack import UnsafeArchive, unpack


def tar(file: Path, *members: tuple[str, bytes] | tarfile.TarInfo, mode: str = "w:gz") -> Path:
    with tarfile.open(file, mode) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return file


def zipped(file: Path, *members: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def out(tmp_path: Path) -> Path:
    folder = tmp_path / "inner/out"
    folder.mkdir(parents=True)
    return folder


def everything(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_a_tar(tmp_path: Path, mode: str) -> None:
    archive = tar(tmp_path / "x.tar", special("d", tarfile.DIRTYPE), ("./d/a", b"1"), ("d/e/b", b"22"), mode=mode)
    folder = out(tmp_path)
    unpack(archive, folder)
    assert everything(folder) == {"d/a": b"1", "d/e/b": b"22"}


def test_a_zip_and_a_selection(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "x.zip", ("d/", b""), ("d/a", b"1"), ("d/b", b"22"))
    folder = out(tmp_path)
    unpack(archive, folder, only=("d/b",))
    assert everything(folder) == {"d/b": b"22"}


def test_modes_and_owners_are_not_taken_over(tmp_path: Path) -> None:
    info = tarfile.TarInfo("x")
    info.mode = 0o6777
    folder = out(tmp_path)
    unpack(tar(tmp_path / "x.tgz", info), folder)
    assert not (folder / "x").stat().st_mode & (stat.S_ISUID | stat.S_IXUSR | stat.S_IWOTH)


PATHS = ["../x", "a/../../x", "/x", "a/../x", "..\\x", "C:\\x", "c:x"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_paths_that_lead_out(tmp_path: Path, path: str, kind: str) -> None:
    make = tar if kind == "tar" else zipped
    archive, folder = make(tmp_path / f"x.{kind}", ("fine", b"1"), (path, b"2")), out(tmp_path)
    with pytest.raises(UnsafeArchive, match="leads out of its folder"):
        unpack(archive, folder)
    assert set(everything(tmp_path)) <= {f"x.{kind}", "inner/out/fine"}


@pytest.mark.parametrize(
    "member",
    [
        special("x", tarfile.SYMTYPE, "/etc"),
        special("x", tarfile.SYMTYPE, "fine"),
        special("x", tarfile.LNKTYPE, "fine"),
        special("x", tarfile.CHRTYPE),
        special("x", tarfile.BLKTYPE),
        special("x", tarfile.FIFOTYPE),
    ],
    ids=["symlink out", "symlink", "hard link", "character device", "block device", "fifo"],
)
def test_links_and_devices(tmp_path: Path, member: tarfile.TarInfo) -> None:
    archive, folder = tar(tmp_path / "x.tgz", ("fine", b"1"), member, ("x/passwd", b"2")), out(tmp_path)
    with pytest.raises(UnsafeArchive, match="'x' is a link or a device"):
        unpack(archive, folder)
    assert everything(folder) == {"fine": b"1"}


def test_a_link_in_a_zip(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("x")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    archive, folder = zipped(tmp_path / "x.zip", (link, b"/etc"), ("x/passwd", b"2")), out(tmp_path)
    with pytest.raises(UnsafeArchive, match="'x' is a link or a device"):
        unpack(archive, folder)
    assert not list(folder.iterdir())


def test_an_encrypted_zip(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "x.zip", ("x", b"1"))
    content = bytearray(archive.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # the flags in the central directory
    archive.write_bytes(content)
    with pytest.raises(UnsafeArchive, match="'x' is encrypted"):
        unpack(archive, out(tmp_path))


@pytest.mark.parametrize("names", [("x", "x"), ("x", "./x"), ("x", "X")])
def test_two_members_of_one_path(tmp_path: Path, names: tuple[str, str]) -> None:
    archive, folder = tar(tmp_path / "x.tgz", (names[0], b"1"), (names[1], b"2")), out(tmp_path)
    with pytest.raises(UnsafeArchive, match="twice"):
        unpack(archive, folder)
    assert (folder / "x").read_bytes() == b"1"


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_archives_that_grow_too_much(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of zeros packs to a thousandth."""
    monkeypatch.setattr(module, "SLACK", 100_000)
    make = tar if kind == "tar" else zipped
    archive, folder = make(tmp_path / f"x.{kind}", ("fine", b"1"), ("bomb", bytes(1_000_000))), out(tmp_path)
    with pytest.raises(UnsafeArchive, match="would grow to more than"):
        unpack(archive, folder)
    assert set(everything(folder)) == {"fine"}


def test_a_size_that_is_only_claimed(tmp_path: Path) -> None:
    """A petabyte in the header is refused at the header."""
    info = tarfile.TarInfo("x")
    info.size = 1 << 50
    (tmp_path / "x.tar").write_bytes(info.tobuf() + bytes(1024))
    with pytest.raises(UnsafeArchive, match="would grow to more than"):
        unpack(tmp_path / "x.tar", out(tmp_path))


def test_too_many_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEMBERS", 3)
    archive = zipped(tmp_path / "x.zip", *((str(number), b"") for number in range(4)))
    with pytest.raises(UnsafeArchive, match="more than 3 members"):
        unpack(archive, out(tmp_path))


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_damaged_archives(tmp_path: Path, kind: str) -> None:
    make = tar if kind == "tar" else zipped
    archive = make(tmp_path / f"x.{kind}", ("x", bytes(range(256)) * 1000))
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 0xFF
    for broken in (bytes(content), archive.read_bytes()[: len(content) // 2], b"", b"<html>moved</html>"):
        archive.write_bytes(broken)
        with pytest.raises(UnsafeArchive, match="damaged or no archive"):
            unpack(archive, tmp_path / f"out{len(broken)}{broken[:1]!r}")


def test_a_file_without_a_name(tmp_path: Path) -> None:
    with pytest.raises(UnsafeArchive, match="without a name"):
        unpack(tar(tmp_path / "x.tgz", (".", b"1")), out(tmp_path))
