// A config.json of transformers as a shape with options, and the other way round. The readers in checkpoints/ and the
// targets in checkpoints/export_targets.py say the same; tests hold both equal.
"use strict";
const EXPERTS = "attention only: its MLPs are mixtures of experts, which headwise does not price";
const GEMMA = ["gemma", "gemma2", "gemma3", "gemma3_text"];
const ACTIVATIONS = { gelu_new: "gelu-tanh", gelu_pytorch_tanh: "gelu-tanh" };

function presetOptions(name, changes = {}) {
  return { ...DATA.defaults, ...(name ? DATA.presets[name] : {}), ...changes };
}

function stated(config, ...names) {
  const name = names.find((one) => Number.isInteger(config[one]));
  if (name) return config[name];
  throw new Error(`the configuration does not say ${names.join(" or ")}, without which there is no shape`);
}

function activationOf(name) {
  const word = ACTIVATIONS[name] ?? name;
  if (!DATA.options.activation.choices.includes(word)) throw new Error(`no activation '${word}' is priced here`);
  return word;
}

function ropeBase(config) {
  const kinds = config.rope_parameters ?? {};
  if (Object.keys(kinds).length) return Number((kinds.full_attention ?? kinds).rope_theta ?? 10000);
  return Number(config.rope_theta || config.rotary_emb_base || 10000);
}

// { shape, options, note } of a configuration; an Error says what is missing.
function readConfig(config) {
  const kind = config.model_type;
  const cut = config.headwise?.shape;
  for (const [kinds, read] of CONFIG_READERS) {
    if (!kinds.includes(kind)) continue;
    const found = read(config.text_config ?? config, kind);
    if (found) return cut ? { ...found, shape: parseShape(cut) } : found;
  }
  throw new Error(kind ? `model_type '${kind}' is not one that headwise prices; write its shape instead`
    : "there is no model_type, so this is no config.json of transformers");
}

function described(sizes, depth, mlp, options, note = "") {
  return { shape: shapeOf({ ...sizes, depth, mlp }), options, note };
}

const CONFIG_READERS = [
  [["headwise"], (config) =>
    config.shape && { shape: parseShape(config.shape), options: presetOptions("", config.options), note: "" }],
  [["gpt2"], (config) => {
    const width = stated(config, "n_embd");
    const options = presetOptions("gpt2", {
      vocab: stated(config, "vocab_size"), context: stated(config, "n_positions"),
      norm_eps: Number(config.layer_norm_epsilon ?? 1e-5),
      activation: activationOf(config.activation_function ?? "gelu_new"), tied: config.tie_word_embeddings ?? true,
    });
    const sizes = { width, heads: stated(config, "n_head") };
    return described(sizes, stated(config, "n_layer"), config.n_inner || 4 * width, options);
  }],
  [["nanochat"], (config) => {
    const width = stated(config, "hidden_size", "n_embd"), heads = stated(config, "num_attention_heads", "n_head");
    const options = presetOptions("nanochat", {
      vocab: stated(config, "vocab_size"), context: stated(config, "max_position_embeddings", "sequence_len"),
      norm_eps: Number(config.rms_norm_eps ?? 1e-6), rope_base: ropeBase(config),
      softcap: Number(config.final_logit_softcapping || 0), tied: Boolean(config.tie_word_embeddings),
    });
    const sizes = { width, heads, kv_heads: config.num_key_value_heads || config.n_kv_head || heads };
    const depth = stated(config, "num_hidden_layers", "n_layer");
    return described(sizes, depth, config.intermediate_size || 4 * width, options);
  }],
  [["llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", ...GEMMA], (config) => {
    const kind = config.model_type;
    const heads = stated(config, "num_attention_heads");
    const sizes = { width: stated(config, "hidden_size"), heads, kv_heads: config.num_key_value_heads || heads };
    if (config.head_dim) sizes.qk_rank = config.head_dim;
    const depth = stated(config, "num_hidden_layers");
    const normed = ["qwen3", "qwen3_moe", "gemma3", "gemma3_text"].includes(kind) ? "rms" : "none";
    const rope_base = ropeBase(config);
    if (kind === "mixtral" || kind.endsWith("_moe")) {
      const options = presetOptions("", { norm: "rms", positions: "rotary", rope_base, qk_norm: normed });
      return described(sizes, depth, 0, options, EXPERTS);
    }
    if (Boolean(config.attention_bias) !== Boolean(config.mlp_bias)) return null;
    const gemma = GEMMA.includes(kind);
    const options = presetOptions("llama", {
      vocab: stated(config, "vocab_size"), context: stated(config, "max_position_embeddings"),
      norm_eps: Number(config.rms_norm_eps ?? 1e-6), norm_place: GEMMA.slice(1).includes(kind) ? "sandwich" : "pre",
      activation: gemma ? "gelu-tanh" : activationOf(config.hidden_activation || config.hidden_act || "silu"),
      bias: kind === "qwen2" ? "qkv" : config.attention_bias ? "all" : "none", qk_norm: normed, rope_base,
      tied: Boolean(config.tie_word_embeddings ?? gemma), ...(gemma ? { embedding_scale: config.hidden_size ** 0.5 } : {}), softcap: Number(config.final_logit_softcapping || 0),
    });
    return described(sizes, depth, stated(config, "intermediate_size"), options);
  }],
  [["bert", "roberta", "xlm-roberta", "camembert"], (config) => {
    const kind = (config.architectures ?? [""])[0];
    const head = kind.includes("MaskedLM") ? "mlm" : kind.includes("SequenceClassification") ? "classes" : "none";
    const options = presetOptions("bert", {
      vocab: stated(config, "vocab_size"), context: stated(config, "max_position_embeddings"),
      segments: stated(config, "type_vocab_size"), norm_eps: Number(config.layer_norm_eps ?? 1e-12),
      activation: activationOf(config.hidden_act ?? "gelu"), head, pooler: head !== "mlm",
      classes: head === "classes" ? labels(config) : 0,
    });
    const sizes = { width: stated(config, "hidden_size"), heads: stated(config, "num_attention_heads") };
    return described(sizes, stated(config, "num_hidden_layers"), stated(config, "intermediate_size"), options);
  }],
  [["vit"], (config) => {
    if (!(config.qkv_bias ?? true)) return null;
    const classifies = (config.architectures ?? [""])[0].includes("ForImageClassification");
    const options = presetOptions("vit", {
      image: stated(config, "image_size"), patch: stated(config, "patch_size"), channels: stated(config, "num_channels"),
      norm_eps: Number(config.layer_norm_eps ?? 1e-12), head: classifies ? "classes" : "none",
      classes: classifies ? labels(config) : 0,
    });
    const sizes = { width: stated(config, "hidden_size"), heads: stated(config, "num_attention_heads") };
    return described(sizes, stated(config, "num_hidden_layers"), stated(config, "intermediate_size"), options);
  }],
  [["deepseek_v2", "deepseek_v3"], (config) => {
    const rope = stated(config, "qk_rope_head_dim");
    const sizes = {
      width: stated(config, "hidden_size"), heads: stated(config, "num_attention_heads"),
      qk_rank: stated(config, "qk_nope_head_dim") + rope, v_rank: stated(config, "v_head_dim"),
      kv_latent: stated(config, "kv_lora_rank"), q_latent: config.q_lora_rank || 0, rope_rank: rope,
    };
    const options = presetOptions("", { norm: "rms", positions: "rotary" });
    return described(sizes, stated(config, "num_hidden_layers"), 0, options, EXPERTS);
  }],
];

function labels(config) {
  return Object.keys(config.id2label ?? { 0: "", 1: "" }).length || 2;
}

// ---- the other way round -----------------------------------------------------------------------------------------

// { config } that transformers loads, or { why } there is none.
function writeConfig(shape, options) {
  shape = completeShape(shape, options);
  const layer = shape.layers[0], o = options;
  if (!["decoder", "bert", "vit"].includes(o.family)) return { why: "layers alone have no configuration; choose a family" };
  if (!uniform(shape)) return { why: "no configuration of transformers says that layers differ" };
  if (!layer.mlp) return { why: "no configuration of transformers says that there is no MLP" };
  const split = layer.kv_latent || layer.q_latent ? "attention has a latent"
    : layer.v_rank !== layer.qk_rank ? "v_rank is not qk_rank" : "";
  const usual = split || (layer.heads * layer.qk_rank !== shape.width ? "heads × qk_rank is not the width"
    : layer.kv_heads !== layer.heads ? "key/value heads are shared" : "");
  const turns = split || (layer.rope_rank !== layer.qk_rank ? "not all of a head turns" : "");
  if (o.family === "vit") return usual ? { why: `ViT's configuration cannot say it: ${usual}` } : { config: vitConfig(shape, o) };
  if (o.family === "bert") return usual ? { why: `BERT's configuration cannot say it: ${usual}` } : { config: bertConfig(shape, o) };
  if (o.positions === "learned") return usual ? { why: `GPT-2's configuration cannot say it: ${usual}` } : { config: gpt2Config(shape, o) };
  const config = decoderConfig(shape, o);
  if (o.norm === "rms-plain" && o.qk_norm === "rms-plain" && o.softcap) {
    if (split || usual.startsWith("heads")) return { why: `nanochat's configuration cannot say it: ${split || usual}` };
    return { config: { ...config, model_type: "nanochat", head_dim: layer.qk_rank, hidden_act: "relu2",
      final_logit_softcapping: o.softcap } };
  }
  if (o.norm !== "rms" || o.mlp_kind !== "gated" || o.norm_place !== "pre" || o.activation !== "silu") {
    return { why: "no plain configuration of transformers has these norms and this MLP" };
  }
  if (layer.kv_latent) {
    if (layer.kv_heads !== layer.heads) return { why: "DeepSeek's configuration cannot say it: key/value heads are shared" };
    if (!layer.rope_rank || layer.rope_rank % 2) return { why: `DeepSeek's configuration cannot say it: rope_rank is ${layer.rope_rank}` };
    return { config: { ...config, model_type: "deepseek_v3", q_lora_rank: layer.q_latent || null, kv_lora_rank: layer.kv_latent,
      qk_nope_head_dim: layer.qk_rank - layer.rope_rank, qk_rope_head_dim: layer.rope_rank, v_head_dim: layer.v_rank,
      rope_interleave: false, first_k_dense_replace: shape.depth } };
  }
  if (turns) return { why: `Llama's configuration cannot say it: ${turns}` };
  const kind = o.qk_norm === "rms" ? { model_type: "qwen3" } : { model_type: "llama", mlp_bias: o.bias === "all" };
  return { config: { ...config, ...kind, head_dim: layer.qk_rank } };
}

function decoderConfig(shape, o) {
  const layer = shape.layers[0];
  return {
    vocab_size: o.vocab, hidden_size: shape.width, intermediate_size: layer.mlp, num_hidden_layers: shape.depth,
    num_attention_heads: layer.heads, num_key_value_heads: layer.kv_heads, hidden_act: "silu",
    max_position_embeddings: o.context || 2048, rms_norm_eps: o.norm_eps,
    rope_parameters: { rope_type: "default", rope_theta: o.rope_base }, attention_bias: o.bias === "all",
    attention_dropout: o.dropout, tie_word_embeddings: o.tied,
  };
}

function gpt2Config(shape, o) {
  const layer = shape.layers[0];
  return { model_type: "gpt2", vocab_size: o.vocab, n_positions: o.context, n_embd: shape.width, n_layer: shape.depth,
    n_head: layer.heads, n_inner: layer.mlp, layer_norm_epsilon: o.norm_eps, tie_word_embeddings: o.tied,
    activation_function: o.activation === "gelu-tanh" ? "gelu_new" : o.activation };
}

function bertConfig(shape, o) {
  const layer = shape.layers[0];
  const architecture = { none: "BertModel", mlm: "BertForMaskedLM", classes: "BertForSequenceClassification" }[o.head];
  return { model_type: "bert", architectures: [architecture], vocab_size: o.vocab, hidden_size: shape.width,
    intermediate_size: layer.mlp, num_hidden_layers: shape.depth, num_attention_heads: layer.heads,
    hidden_act: o.activation === "gelu-tanh" ? "gelu_pytorch_tanh" : o.activation, max_position_embeddings: o.context,
    type_vocab_size: o.segments, layer_norm_eps: o.norm_eps, ...idLabels(o) };
}

function vitConfig(shape, o) {
  const layer = shape.layers[0];
  return { model_type: "vit", architectures: [o.head === "classes" ? "ViTForImageClassification" : "ViTModel"],
    hidden_size: shape.width, intermediate_size: layer.mlp, num_hidden_layers: shape.depth,
    num_attention_heads: layer.heads, image_size: o.image, patch_size: o.patch, num_channels: o.channels,
    layer_norm_eps: o.norm_eps, qkv_bias: true, ...idLabels(o) };
}

function idLabels(o) {
  if (o.head !== "classes") return {};
  return { id2label: Object.fromEntries(Array.from({ length: o.classes }, (_, i) => [i, `LABEL_${i}`])) };
}

// The flags of nanochat's own training script: width = depth × aspect ratio, rounded up to a multiple of the head dim.
function nanochatFlags(shape) {
  const layer = shape.layers[0];
  const aspect = Math.floor(shape.width / shape.depth);
  const whole = Math.ceil((shape.depth * aspect) / layer.qk_rank) * layer.qk_rank === shape.width;
  const plain = uniform(shape) && writeShape(shape) === writeShape(shapeOf({ width: shape.width, heads: layer.heads, depth: shape.depth }));
  if (!plain || !whole || !aspect) return { why: "nanochat's flags set depth, width and head dim only; here something else differs" };
  return { flags: `python -m scripts.base_train --depth=${shape.depth} --aspect-ratio=${aspect} --head-dim=${layer.qk_rank}` };
}

function compareCommand(a, b, hold) {
  const variant = b && b !== a ? ` --arms ${b}` : "";
  return `headwise compare --task text:my.txt --base ${a}${variant} --hold ${hold} --budget 30m`;
}
