"""A small disk for a round, where this user may mount one: it fills up while drivers live."""

import shutil
import subprocess
import time
from contextlib import contextmanager, suppress

NAME = "full disk (a small tmpfs)"
BYTES, BLOCK = 8 * 2**20, 4096
LOOKS, LOOK_SECONDS = 200, 0.1  # for a driver to notice


@contextmanager
def small_disk(folder):
    """A folder on a file system of its own, and whether it has one; what it holds at the end stays there."""
    folder.mkdir(parents=True)
    own = _done("mount", "-t", "tmpfs", "-o", f"size={BYTES}", "soak", folder)
    try:
        yield own
    finally:
        if own:
            kept = folder.with_name(folder.name + " kept")
            shutil.copytree(folder, kept, dirs_exist_ok=True)
            _done("umount", "--lazy", folder)
            folder.rmdir()
            kept.rename(folder)


def remove(folder):
    """What earlier soaks left; one that was killed may have left a disk."""
    for one in folder.glob("*"):
        _done("umount", "--lazy", one)
    shutil.rmtree(folder, ignore_errors=True)


def fill(drivers, chance):
    """Not one byte is left, until a driver has ended or some seconds have gone; then there is room again."""
    if not drivers.folder.is_mount():
        return False
    ballast = drivers.folder / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(BLOCK)):
            pass
    for _ in range(LOOKS):
        if any(driver.poll() is not None for driver in drivers.running):
            break
        time.sleep(LOOK_SECONDS)
    time.sleep(chance.uniform(0.0, 1.0))
    ballast.unlink()
    return True


def _done(*words):
    with suppress(OSError):
        return subprocess.run([str(word) for word in words], capture_output=True).returncode == 0
    return False
