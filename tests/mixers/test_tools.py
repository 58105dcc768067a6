"""What commands on checkpoints say of a model with another mixer."""

import json

import pytest
from safetensors.torch import save_file

import headwise as hw
from headwise.models import build
from headwise.options import preset
from headwise.spec import SpecError


@pytest.fixture
def saved(tmp_path):
    def save(mixer):
        options = preset("nanochat", vocab=32, context=8, mixer=mixer)
        model = build("w16-h4-L2", options)
        save_file(
            {f"model.{name}": tensor for name, tensor in model.state_dict().items()}, tmp_path / "model.safetensors"
        )
        config = {"model_type": "headwise", "shape": "w16-h4-L2", "options": options.model_dump()}
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path, model

    return save


@pytest.mark.parametrize("mixer", ["gated", "window-4", "sinks", "talking"])
def test_inspect_reads_heads_of_these(mixer, saved):
    folder, _ = saved(mixer)
    assert len(hw.inspect(folder).layers) == 2


def test_what_is_not_handled_is_said_with_what_is(saved):
    folder, model = saved("differential")
    with pytest.raises(
        SpecError, match="cannot inspect heads of the mixer 'differential'; it can inspect those of atten"
    ):
        hw.inspect(folder)
    with pytest.raises(SpecError, match="a swap does not know the attention in Decoder; it knows transformers' Llama"):
        hw.swap(model, "w16-h4-g2")
    folder, _ = saved("gated")
    with pytest.raises(
        SpecError, match="with the mixer 'gated': convert knows transformers' own models, and of mixers"
    ):
        hw.convert(folder, to="g2", out=folder / "out")
    with pytest.raises(
        SpecError, match="cannot truncate heads of the mixer 'gated'; it can truncate those of attention"
    ):
        hw.truncate(folder, keep=0.9, out=folder / "out")
