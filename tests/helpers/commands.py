"""The real command: in this process, which saves the start of an interpreter, or in one of its own."""

import io
import json
import os
import subprocess
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

TERMINAL = {"COLUMNS": "80", "HOME": str(Path.home())}
TERMINAL |= {"HEADWISE_STORE": os.environ["HEADWISE_STORE"]} if "HEADWISE_STORE" in os.environ else {}


def headwise(*words, check=True, cwd=None, **environment):
    """Run a command in a terminal of 80 columns; what it printed and its exit code, as `subprocess.run` gives them."""
    from headwise.cli.app import main

    out, err, code = io.StringIO(), io.StringIO(), 0
    settings = {**TERMINAL, "PATH": os.environ["PATH"], **environment}  # compilers: this process may know them
    with (
        mock.patch.object(sys, "argv", ["headwise", *words]),
        mock.patch.dict(os.environ, settings, clear=True),
        redirect_stdout(out),
        redirect_stderr(err),
        _inside(cwd),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return _checked(subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue()), check)


def headwise_process(*words, check=True, cwd=None, **environment):
    """The same in a process of its own: for what only the start or the end of one shows."""
    command = [sys.executable, "-m", "headwise", *words]
    settings = {**TERMINAL, "PATH": "", **environment}
    return _checked(subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=settings), check)


def as_json(*words, **kwargs):
    return json.loads(headwise(*words, "--json", **kwargs).stdout)


def _checked(done, check):
    assert done.returncode == 1 or "Traceback" not in done.stderr
    assert not check or done.returncode == 0, done.stderr
    return done


@contextmanager
def _inside(folder):
    before = Path.cwd()
    os.chdir(folder or before)
    try:
        yield
    finally:
        os.chdir(before)
