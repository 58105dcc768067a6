"""The mixer that docs/guides/adding-a-mixer.md writes out works as it says."""

import re
from pathlib import Path

import pytest
import torch

from headwise.mixer import ATTENTION
from headwise.mixers import make_layer
from headwise.options import ModelOptions
from headwise.shape import AttentionShape
from headwise.spec import SpecError

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "adding-a-mixer.md"


def test_the_guides_mixer_is_attention_with_one_learned_number():
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "MIXER" in block)
    names = {"__name__": __name__}
    exec(code, names)  # the guide's own file
    mixer, shape = names["MIXER"](), AttentionShape.parse("w12-h3-g1")
    options = ModelOptions(family="decoder", vocab=9, bias="all")
    plain, ours = (make_layer(one, shape, options) for one in (ATTENTION, mixer))
    assert sum(p.numel() for p in ours.parameters()) == sum(mixer.parameters(shape, options).values())
    ours.load_state_dict(plain.state_dict(), strict=False)
    x = torch.randn(2, 7, 12)
    torch.testing.assert_close(ours(x), plain(x))
    with torch.no_grad():
        ours.temperature.fill_(2.0)
    assert not torch.allclose(ours(x), plain(x))
    with pytest.raises(SpecError, match="no hardmax"):
        mixer.check(shape, options.replace(hardmax=True))
