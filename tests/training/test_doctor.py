"""The doctor: it tries things in a child process and survives what it finds."""

import pytest

from headwise.shape import AttentionShape
from headwise.training import doctor


def test_a_precision_that_works():
    found = doctor.probe_precision("float64")
    assert found.safe
    assert found.speed > 0


def test_a_precision_that_is_an_error():
    found = doctor.probe_precision("float7")
    assert not found.safe
    assert "float7" in found.why


def test_a_precision_that_kills_the_process(monkeypatch):
    """What happens on processors whose advertised instructions are illegal: really killed, really survived."""
    monkeypatch.setattr(doctor, "_PROBE", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    found = doctor.probe_precision("bfloat16")
    assert not found.safe
    assert "signal 4" in found.why


def test_a_precision_that_hangs(monkeypatch):
    monkeypatch.setattr(doctor, "_PROBE", "import time; time.sleep(60)")
    monkeypatch.setattr(doctor, "PROBE_SECONDS", 0.5)
    assert "no answer" in doctor.probe_precision("bfloat16").why


@pytest.mark.parametrize(
    ("text", "dropout", "kernel", "why"),
    [
        ("w64-h4", 0.0, "flash", "fastest"),
        ("w64-h4-r16-v8", 0.0, "math", "same last dimension"),
        ("w64-h4", 0.1, "math", "dropout"),
    ],
)
def test_kernels_on_the_processor(text, dropout, kernel, why):
    found = doctor.kernel_for(AttentionShape.parse(text), "cpu", dropout)
    assert found.kernel == kernel
    assert why in found.why


def test_devices_name_the_processor():
    assert doctor.devices()[0].startswith("cpu")
