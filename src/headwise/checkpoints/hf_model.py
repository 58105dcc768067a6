"""Models trained here as `transformers` sees them: what the code in an exported folder imports.

Loaded with `trust_remote_code=True`; see `export_hf`. Decoders generate with transformers' own caches.
"""

from typing import Any, cast

from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    SequenceClassifierOutput,
)

from headwise.checkpoints.swap.hugging_face import HostCache
from headwise.models import build
from headwise.options import ModelOptions
from headwise.shape import ModelShape
from headwise.spec import SpecError

OUTPUTS: dict[str, Any] = {"none": BaseModelOutput, "mlm": MaskedLMOutput, "classes": SequenceClassifierOutput}


class HeadwiseConfig(PreTrainedConfig):
    """A shape and the options that make it a model."""

    model_type = "headwise"

    def __init__(self, shape: str = "w32-h1", options: dict[str, Any] | None = None, **rest: Any) -> None:
        super().__init__(**rest)
        parsed = ModelShape.parse(shape)
        self.shape, self.options = shape, options or {}
        self.num_hidden_layers, self.hidden_size = parsed.depth, parsed.width
        self.vocab_size = self.options.get("vocab", 0)


class _Headwise(PreTrainedModel):
    config_class = HeadwiseConfig
    base_model_prefix = "model"

    def __init__(self, config: HeadwiseConfig) -> None:
        super().__init__(config)
        self.settings = ModelOptions(**config.options)
        self.model = build(config.shape, self.settings)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Models begin as headwise makes them."""


class HeadwiseForCausalLM(_Headwise, GenerationMixin):
    """A decoder."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        **_: Any,
    ) -> CausalLMOutputWithPast:
        whole = attention_mask is None or bool(attention_mask.all())
        padding = None if attention_mask is None or whole else attention_mask.bool()
        past = DynamicCache() if use_cache and past_key_values is None else past_key_values
        caches = None if past is None else [HostCache(past, i) for i in range(self.config.num_hidden_layers)]
        logits = self.model(input_ids, caches, padding)
        loss = None if labels is None else self.loss_function(logits, labels, vocab_size=self.config.vocab_size)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past)


class HeadwiseModel(_Headwise):
    """Everything else: vectors, images or tokens in; hidden states or logits out."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **_: Any,
    ) -> BaseModelOutput | MaskedLMOutput | SequenceClassifierOutput:
        padding = None if attention_mask is None else attention_mask.bool()
        given = {"bert": input_ids, "vit": pixel_values, "encoder": inputs_embeds}[self.settings.family]
        if given is None:
            raise SpecError("give a bert input_ids, a vit pixel_values and an encoder inputs_embeds")
        if self.settings.family == "bert":
            output = self.model(given, token_type_ids, padding)
        else:
            output = self.model(given) if self.settings.family == "vit" else self.model(given, padding=padding)
        name = "last_hidden_state" if self.settings.head == "none" else "logits"
        return cast(BaseModelOutput, OUTPUTS[self.settings.head](**{name: output}))
