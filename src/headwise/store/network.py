"""Whether a store lies on a network file system, where SQLite must not share memory between machines."""

from pathlib import Path

# How the names of file systems begin that lack memory shared between machines; to be careful costs only speed.
NETWORKED = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "gluster", "afs", "9p", "virtiofs", "fuse.")
MOUNTS = Path("/proc/mounts")


def on_network(path: Path) -> bool:
    """Whether a path lies on a network file system, by Linux's list of mounts. Elsewhere one cannot tell: no."""
    mounts = MOUNTS.read_text(errors="replace").splitlines() if MOUNTS.exists() else []
    kinds = {Path(place.replace(r"\040", " ")): kind for _, place, kind, *_ in (line.split(" ") for line in mounts)}
    nearest = next((kinds[folder] for folder in path.resolve().parents if folder in kinds), "")
    return nearest.startswith(NETWORKED)
