"""Is a file on a network file system? There SQLite's shared memory does not work and its locks often do not."""

import re
from pathlib import Path

NETWORK = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "ncpfs", "afs", "coda", "9p", "davfs", "vboxsf"),
        *("lustre", "gpfs", "beegfs", "ceph", "glusterfs", "orangefs", "pvfs2", "panfs", "wekafs", "ocfs2", "gfs2"),
        *("acfs", "quobyte", "moosefs", "juicefs", "sshfs", "s3fs", "gcsfuse", "rclone", "goofys", "mountpoint-s3"),
        *("blobfuse", "blobfuse2", "davfs2", "curlftpfs", "vmhgfs-fuse", "mfs", "lizardfs", "cvmfs2"),
    }
)
"""Types as `/proc/mounts` names them; those of FUSE without their `fuse.`."""

MOUNTS = Path("/proc/self/mounts")


def network_file_system(path: Path, mounts: Path = MOUNTS) -> str | None:
    """The type of the network file system under `path`, or None: it is local, or this is not Linux."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    kind = file_system(path.resolve(), lines)
    return kind if kind is not None and kind.removeprefix("fuse.") in NETWORK else None


def file_system(path: Path, mounts: list[str]) -> str | None:
    """The type of the file system that holds an absolute path, by lines of `/proc/mounts`."""
    found, longest = None, -1
    for line in mounts:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[1]))
        if len(point.parts) >= longest and path.is_relative_to(point):  # a later mount on the same point covers it
            found, longest = fields[2], len(point.parts)
    return found
