import pytest
import torch

from headwise.spec import SpecError
from headwise.sweep.resolve import resolve
from headwise.training import doctor


def test_a_processor_computes_in_float32_unless_asked(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "worth_using", lambda name: True)
    assert resolve("auto", "auto").precision == "float32"
    assert resolve("auto", "bfloat16").precision == "bfloat16"
    monkeypatch.setattr(doctor, "worth_using", lambda name: False)
    with pytest.raises(SpecError, match="bfloat16 is not safe, or not faster"):
        resolve("cpu", "bfloat16")
