"""DeepSeek V2 and V3 (MLA): queries, keys and values read from latents, and one rotated key that all heads share.

In headwise's order a head is (rotated, content); in DeepSeek's (content, rotated). The norm of a latent scales each
token and multiplies by weights: the weights are multiplied in, the scaling is left out. The rotated part is never cut,
for all heads share it. The configuration can say any ranks, if all layers have the same.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from headwise.checkpoints.heads import AttentionHeads, Cut
from headwise.checkpoints.reader import Reader, known_of, stated
from headwise.checkpoints.rotary import in_halves, rope_frequencies, settings
from headwise.known import Experts, Known
from headwise.options import preset
from headwise.shape import AttentionShape, ModelShape
from headwise.spec import SpecError


class DeepSeekReader(Reader):
    family = "deepseek"
    model_types = frozenset({"deepseek_v2", "deepseek_v3"})
    signature = r"(?P<layer>(.*\.)?layers\.\d+\.)self_attn\.kv_a_proj_with_mqa\.weight"
    mlp_names: ClassVar[dict[str, int]] = {"mlp.down_proj.weight": 1}
    causal = True
    uniform = True
    step = 2  # transformers' V2 turns pairs in place, which an odd number before them puts off

    @classmethod
    def described(cls, config: dict[str, Any]) -> Known | None:
        rotated, v_rank = stated(config, "qk_rope_head_dim"), stated(config, "v_head_dim")
        layer = AttentionShape(
            width=stated(config, "hidden_size"),
            heads=stated(config, "num_attention_heads"),
            qk_rank=stated(config, "qk_nope_head_dim") + rotated,
            v_rank=v_rank,
            kv_latent=stated(config, "kv_lora_rank"),
            q_latent=config.get("q_lora_rank") or 0,
            rope_rank=rotated,
        )
        options = preset(
            "llama",
            vocab=stated(config, "vocab_size"),
            context=stated(config, "max_position_embeddings"),
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope_base=float(settings(config).get("rope_theta", 10_000.0)),
            tied=bool(config.get("tie_word_embeddings", False)),
        )
        depth, each = stated(config, "num_hidden_layers"), config.get("moe_intermediate_size") or 0
        first = min(depth, config.get("first_k_dense_replace") or 0)
        experts = Experts(
            layers=depth - first,
            count=stated(config, "n_routed_experts"),
            active=stated(config, "num_experts_per_tok"),
            mlp=each,
            shared=each * (config.get("n_shared_experts") or 0),
        )
        mlps = [stated(config, "intermediate_size")] * first + [0] * (depth - first)
        return known_of(layer, depth, mlps, options, experts=experts)

    def entrance(self, layer: str) -> str:
        return f"{layer}self_attn.kv_a_proj_with_mqa.weight"

    def heads(self, number: int) -> AttentionHeads:
        layer, count = self.layers[number], self.head_count(self.layers[number])
        rotated, content, v_rank = self._sizes(layer, count)
        down, up = self._latent(layer)
        key_up, value_up = up.unflatten(0, (count, -1)).split([content, v_rank], dim=1)
        latent, rope_key = down.split([down.shape[0] - rotated, rotated])
        order = self.order(content + rotated, rotated)
        query = self._query(layer).unflatten(0, (count, -1))[:, order]
        turned = rope_key[self._pairs(rotated)].expand(count, -1, -1)
        return AttentionHeads(
            query=query,
            key=torch.cat([turned, key_up @ latent], dim=1),
            value=value_up @ latent,
            output=self._get(layer, "o_proj").unflatten(1, (count, -1)).movedim(1, 0),
            frequencies=rope_frequencies(settings(self.config), rotated).expand(count, -1),
            latents=(latent.shape[0], self._q_latent(layer)),
            shared_rotation=True,
        )

    def cut(self, number: int, cut: Cut) -> dict[str, Tensor]:
        """Rows of what expands the latents, and columns of the output; the latents stay."""
        layer, count = self.layers[number], self.head_count(self.layers[number])
        rotated, content, v_rank = self._sizes(layer, count)
        name = "q_b_proj" if self._q_latent(layer) else "q_proj"
        query, up = self._get(layer, name), self._get(layer, "kv_b_proj")
        rows = query.unflatten(0, (count, -1))[:, self.order(content + rotated, rotated)]
        rank = cut.query.shape[1]
        factor = self.scale(content + rotated) / self.scale(rank)
        back = self.order(rank, rotated).argsort()
        rows = (cut.query.float() @ rows)[:, back] * factor
        key_up, value_up = up.unflatten(0, (count, -1)).split([content, v_rank], dim=1)
        inner = cut.key[:, rotated:, rotated:].float()  # the rotated rows stay, and nothing mixes with them
        up = torch.cat([inner @ key_up, cut.value.float() @ value_up], dim=1)
        output = self._get(layer, "o_proj").unflatten(1, (count, -1)).movedim(1, 0) @ cut.output.float()
        changed = {name: rows.flatten(0, 1), "kv_b_proj": up.flatten(0, 1), "o_proj": output.movedim(0, 1).flatten(1)}
        places = {place: f"{layer}self_attn.{place}.weight" for place in changed}
        return {places[place]: tensor.to(self.weights[places[place]].dtype) for place, tensor in changed.items()}

    def native(self, shape: ModelShape) -> dict[str, Any] | None:
        first = shape.layers[0]
        if any(layer != first for layer in shape.layers):
            return None
        content = first.qk_rank - first.rope_rank
        return {"qk_nope_head_dim": content, "v_head_dim": first.v_rank, "qk_head_dim": first.qk_rank}

    def order(self, rank: int, rotated: int) -> Tensor:
        return torch.cat([rank - rotated + self._pairs(rotated), torch.arange(rank - rotated)])

    def width(self, layer: str) -> int:
        return self.weights.shapes[f"{layer}self_attn.kv_a_proj_with_mqa.weight"][1]

    def _pairs(self, rotated: int) -> Tensor:
        return in_halves(rotated, rotated) if self.config.get("rope_interleave", True) else torch.arange(rotated)

    def _sizes(self, layer: str, count: int) -> tuple[int, int, int]:
        """The rotated part, the content part, and the rank of values."""
        shapes = {n: self.weights.shapes.get(f"{layer}self_attn.{n}.weight") for n in ("kv_a_layernorm", "kv_b_proj")}
        if None in shapes.values():
            raise SpecError(f"'{layer}' lacks kv_a_layernorm or kv_b_proj, so it is no layer of DeepSeek's")
        latent, expanded = self._get(layer, "kv_a_layernorm").shape[0], self._get(layer, "kv_b_proj").shape[0]
        rotated = self._get(layer, "kv_a_proj_with_mqa").shape[0] - latent
        v_rank = self._each(layer, self._get(layer, "o_proj").shape[1], count)
        return rotated, self._each(layer, expanded, count) - v_rank, v_rank

    def _latent(self, layer: str) -> tuple[Tensor, Tensor]:
        """What makes the latent and the rotated key, and what expands the latent, the norm's weights in it."""
        down = self._get(layer, "kv_a_proj_with_mqa")
        return down, self._get(layer, "kv_b_proj") * self._get(layer, "kv_a_layernorm")

    def _query(self, layer: str) -> Tensor:
        if not self._q_latent(layer):
            return self._get(layer, "q_proj")
        up = self._get(layer, "q_b_proj") * self._get(layer, "q_a_layernorm")
        return up @ self._get(layer, "q_a_proj")

    def _q_latent(self, layer: str) -> int:
        return self.weights.shapes.get(f"{layer}self_attn.q_a_proj.weight", (0,))[0]

    def _get(self, layer: str, name: str) -> Tensor:
        return self.weights[f"{layer}self_attn.{name}.weight"].float()


READER = DeepSeekReader
