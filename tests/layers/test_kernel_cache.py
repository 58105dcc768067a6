"""The cache of compiled kernels: nothing that is cut short, planted or left behind is ever loaded."""

import os
import shutil
import subprocess
import sys
import time

import pytest
import torch

from headwise.layers.attention import Attention
from headwise.layers.cpu import compiled, kernel_cache
from headwise.layers.cpu.norm import norm_size
from headwise.layers.cpu.tiled import works
from headwise.shape import AttentionShape

SIZE = norm_size("unit", 16)
WHY = r"belongs to another user|can be written to by others"
SAYS_WHERE = """
from headwise.layers.cpu.compiled import library
from headwise.layers.cpu.norm import norm_size
library(norm_size("unit", 16))
print("loaded")
"""
needs_compiler = pytest.mark.skipif(not works(), reason="no C++ compiler here")
as_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """An empty cache, and a process that has loaded nothing from another one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled.library.cache_clear()
    compiled.usable.cache_clear()
    yield tmp_path / "headwise" / "kernels"
    compiled.library.cache_clear()
    compiled.usable.cache_clear()


@needs_compiler
def test_a_damaged_library_is_compiled_again(kernels):
    """A crash, or a full disk, may leave none of it or some; it is loaded in a child, which a bad one may kill."""
    compiled.prepare([SIZE])
    (library,) = kernels.glob("*.so")
    whole = library.read_bytes()
    for damage in (b"", whole[: len(whole) // 2], whole[:-1] + b"?"):
        library.write_bytes(damage)
        assert compiled.uncompiled([SIZE]) == [SIZE]
        done = subprocess.run([sys.executable, "-c", SAYS_WHERE], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "loaded\n"), done.stderr
        assert library.stat().st_size == len(whole)
    assert compiled.uncompiled([SIZE]) == []


@needs_compiler
def test_a_library_for_another_system_is_compiled_again(kernels):
    """Its digest is right; the system refuses it."""
    compiled.prepare([SIZE])
    (library,) = kernels.glob("*.so")
    library.write_bytes(b"for another system")
    kernel_cache._digest_file(library).write_text(kernel_cache._digest(library))
    assert compiled.library.__wrapped__(SIZE).forward
    assert library.read_bytes() != b"for another system"


@needs_compiler
def test_the_folder_is_closed_to_others(kernels):
    compiled.prepare([SIZE])
    assert kernels.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o022 for file in kernels.iterdir()} == {0}


@needs_compiler
@as_root
@pytest.mark.parametrize("what", ["folder", "library", "digest"])
@pytest.mark.parametrize("how", ["owner", "mode"])
def test_what_others_may_have_written_is_never_loaded(kernels, what, how):
    compiled.prepare([SIZE])
    (library,) = kernels.glob("*.so")
    place = {"folder": kernels, "library": library, "digest": kernel_cache._digest_file(library)}[what]
    shutil.chown(place, 12345) if how == "owner" else place.chmod(0o777)
    assert compiled.uncompiled([SIZE]) == [SIZE]
    if what == "folder":
        with pytest.warns(UserWarning, match=WHY), pytest.raises(PermissionError, match=WHY):
            compiled._compiled(SIZE)
    else:
        assert compiled._compiled(SIZE).stat().st_uid == 0
        assert compiled.uncompiled([SIZE]) == []


def fake_compiler(folder, monkeypatch, script):
    file = folder / "hanging-compiler"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    monkeypatch.setattr(compiled, "COMPILERS", (str(file),))
    return file


@pytest.mark.skipif(os.name != "posix", reason="a shell script")
def test_a_compiler_that_hangs_is_ended_with_its_own_processes(kernels, tmp_path, monkeypatch):
    """A process of its own holds its output open, as cc1plus does."""
    started = tmp_path / "pid"
    fake_compiler(tmp_path, monkeypatch, f"sleep 1000 & echo $! > {started}; wait")
    monkeypatch.setattr(kernel_cache, "COMPILE_SECONDS", 0.5)
    with pytest.raises(OSError, match=r"gave no result in 0.5 seconds"):
        compiled._compiled(SIZE)
    with pytest.warns(UserWarning, match="torch's kernels serve"):
        assert not compiled.usable.__wrapped__(SIZE)
    assert not list(kernels.iterdir())


@needs_compiler
def test_a_kernel_that_cannot_be_had_is_done_without(kernels, tmp_path, monkeypatch):
    """The compiler worked, and then fails: training goes on with torch's kernels and says so."""
    layer = Attention(AttentionShape.parse("w16-h4-r3-v2"), path="generated")
    x = torch.randn(2, 7, 16)
    fake_compiler(tmp_path, monkeypatch, "echo out of memory >&2; exit 1")
    with pytest.warns(UserWarning, match=r"failed: out of memory\); torch's kernels serve"):
        output = layer(x)
    layer.path = "plain"
    torch.testing.assert_close(output, layer(x))
    compiled.prepare([SIZE])  # says nothing: the runs will


@needs_compiler
def test_what_dead_compiles_left_is_removed(kernels):
    compiled.prepare([SIZE])
    old, new = kernels / "compiling-old", kernels / "compiling-new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "half.so").touch()
    os.utime(old, (0, time.time() - 3 * kernel_cache.COMPILE_SECONDS))
    compiled.prepare([norm_size("unit", 32)])
    assert (old.exists(), new.exists()) == (False, True)
