"""Where compiled kernels are kept: files that are whole, and that nobody but their user can have made.

A library is code: to load one that somebody else put there, or that a crash cut short, is worse than to have none. So
the folder and what is in it must belong to this user and be writable by nobody else; beside each library stands the
digest of its bytes; both are flushed to the disk before they get their names. What does not match is compiled again.
"""

import hashlib
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
import warnings
from contextlib import suppress
from pathlib import Path

from platformdirs import user_cache_dir

COMPILE_SECONDS = 300.0  # a compiler that takes longer hangs


def kernel_folder() -> Path:
    return Path(user_cache_dir("headwise")) / "kernels"


def is_sound(library: Path) -> bool:
    """Whether a library is there, this user's own, and as it was compiled."""
    try:
        files = library, _digest_file(library)
        own = all(stat.S_ISREG(file.lstat().st_mode) and not _trouble(file.lstat()) for file in files)
        return own and not _trouble(library.parent.stat()) and files[1].read_text() == _digest(library)
    except (OSError, ValueError):
        return False


def compile_into(library: Path, command: list[str]) -> None:
    """Under another name first: several processes may compile the same one at the same time."""
    _make_folder(library.parent)
    with tempfile.TemporaryDirectory(dir=library.parent, prefix="compiling-") as folder:
        made = Path(folder) / library.name
        _run([*command, "-o", str(made)], Path(folder) / "messages")
        made.chmod(0o700)
        _digest_file(made).write_text(_digest(made))
        for file in (made, _digest_file(made)):
            _flush(file)
        made.replace(library)
        _digest_file(made).replace(_digest_file(library))
    _flush(library.parent)


def discard(library: Path) -> None:
    """Delete a library that cannot be used."""
    for file in (library, _digest_file(library)):
        with suppress(OSError):
            file.unlink(missing_ok=True)


def notice(text: str) -> None:
    """For people: training goes on, but slower."""
    warnings.warn(f"{text}; torch's kernels serve", stacklevel=3)


def _make_folder(folder: Path) -> None:
    """This user's own, and closed to others; what compiles of the past have left half done is removed."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if trouble := _trouble(folder.stat()):
        notice(f"compiled kernels cannot be kept in {folder}: it {trouble}")
        raise PermissionError(f"{folder} {trouble}")
    for left in folder.glob("compiling-*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > 2 * COMPILE_SECONDS:
                shutil.rmtree(left)


def _trouble(info: os.stat_result) -> str:
    """Why others may have changed it; empty where they cannot have. Windows keeps a user's cache from others itself."""
    if hasattr(os, "geteuid") and info.st_uid != os.geteuid():
        return "belongs to another user"
    return "can be written to by others" if os.name == "posix" and info.st_mode & 0o022 else ""


def _run(command: list[str], messages: Path) -> None:
    """With all the processes that a compiler starts: one that hangs is ended with them."""
    with messages.open("wb") as told:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=told, stderr=told, start_new_session=os.name == "posix"
        )
        try:
            code = process.wait(timeout=COMPILE_SECONDS)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL) if os.name == "posix" else process.kill()
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise OSError(f"{command[0]} gave no result in {COMPILE_SECONDS:g} seconds") from None
            raise
    if code:
        lines = messages.read_text(errors="replace").strip().splitlines()
        raise OSError(f"{command[0]} failed: {lines[0] if lines else f'exit code {code}'}")


def _digest_file(library: Path) -> Path:
    return library.with_suffix(".sha256")


def _digest(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()


def _flush(path: Path) -> None:
    """Down to the disk; not every system lets a folder be flushed."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
