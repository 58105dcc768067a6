"""Llama, Mistral, Qwen and Gemma: four linear layers, rotary, grouped keys; some normalise queries and keys."""

from typing import Any, ClassVar

from torch import Tensor

from headwise.checkpoints.files import Weights
from headwise.checkpoints.reader import SeparateReader
from headwise.checkpoints.rotary import rope_frequencies, settings

_GEMMA = ("gemma", "gemma2", "gemma3", "gemma3_text")


class LlamaReader(SeparateReader):
    family = "llama"
    model_types = frozenset({"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", *_GEMMA})
    signature = r"(?P<layer>(.*\.)?layers\.\d+\.)self_attn\.k_proj\.weight"
    names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    mlp_names: ClassVar[dict[str, int]] = {"mlp.down_proj.weight": 1}
    causal = True

    def __init__(self, weights: Weights, heads: int | None = None) -> None:
        super().__init__(weights, heads)
        self.config = self.config.get("text_config") or self.config
        towers = [layer for layer in self.layers if "vision" not in layer]  # Gemma 3 has eyes of other sizes
        self.layers = towers or self.layers

    def frequencies(self, number: int, rank: int) -> Tensor | None:
        return rope_frequencies(settings(self.config, self._kind(number)), rank)

    def norms(self, layer: str, rank: int) -> tuple[Tensor, Tensor] | None:
        names = [f"{layer}self_attn.{which}_norm.weight" for which in "qk"]
        if names[0] not in self.weights:
            return None
        query, key = (self.weights[name] for name in names)
        return (1 + query, 1 + key) if self.config.get("model_type") in _GEMMA else (query, key)

    def scale(self, rank: int) -> float:
        fixed = self.config.get("query_pre_attn_scalar")  # Gemma 2 and 3 state the scale apart from the rank
        return float(fixed or rank) ** -0.5

    def _kind(self, number: int) -> str:
        kinds: list[str] = self.config.get("layer_types") or []
        pattern: Any = self.config.get("sliding_window_pattern")  # how Gemma 3 said it before
        if not kinds and isinstance(pattern, int):
            return "full_attention" if (number + 1) % pattern == 0 else "sliding_attention"
        return kinds[number] if number < len(kinds) else ""


READER = LlamaReader
