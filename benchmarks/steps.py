"""Training steps of whole models against nanoGPT, transformers and x-transformers, in one run.

    make bench
    python benchmarks/steps.py --quick

Every side trains the same shape on the same kind of batch, fp32, with torch's fused AdamW; ours goes through the
trainer's own step, on the path that a plan would choose here. A side is two processes of one thread at once, as a sweep
runs on two cores; sides take turns of half a second, and a step is the median over turns of 1 / (1/a + 1/b). FLOPs are
those of `headwise.cost` for our model, for all sides. `of peak` is against a large product on one thread, measured
between the turns of the same row. `memory` is what our process grew by in its steps, as part of what it grows by on the
plain path. nanoGPT's `model.py` is read from $HEADWISE_PEERS/nanoGPT; where that is not, its column is empty.
"""

import argparse
import importlib.util
import json
import multiprocessing
import os
import resource
import sys
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median
from time import perf_counter

VOCAB, TURN_SECONDS, REPEATS = 256, 0.5, 3
DECODERS = [  # shape, tokens, batch
    ("w32-h4-L4", 64, 32),
    ("w64-h4-L4", 64, 32),
    ("w128-h4-L4", 128, 16),
    ("w256-h8-L4", 256, 8),
    ("w512-h8-L6", 256, 4),
    ("w768-h12-L6", 256, 2),
]
FAMILIES = {"gpt2": ["nanogpt", "gpt2", "x-transformers"], "llama": ["llama"], "bert": ["bert"], "vit": ["vit"]}
IMAGE_SIDES = {64: 32, 128: 44, 256: 64}  # pixels: patches of 4 make about as many tokens
STORED = [  # what studies train: task, shape, batch
    ({"name": "text"}, "w32-h4-L3", 32),
    ({"name": "text"}, "w64-h4-L3", 32),
    ({"name": "images"}, "w32-h4-L3", 64),
    ({"name": "listops"}, "w32-h4-L3", 32),
]


# ---- ours ----------------------------------------------------------------------------------------------------------


def options_of(family, tokens):
    from headwise import preset

    if family == "vit":
        return preset("vit", image=IMAGE_SIDES[tokens], patch=4, classes=10)
    head = {"head": "mlm"} if family == "bert" else {}
    return preset(family, vocab=VOCAB, context=tokens, **head)


class GivenData:
    """As much of a task as a training step needs: one batch for ever."""

    def __init__(self, family, options, batch):
        import torch

        self.family, self.options = family, options
        self.batch = data(family, options, batch)
        self.cross_entropy = torch.nn.functional.cross_entropy

    def draw(self, *address, **more):
        return self.batch

    def build(self, shape, options):
        from headwise import build

        return build(shape, options)

    def training_loss(self, model, inputs, labels):
        """As tasks of tokens do it: in parts, where the model has a way."""
        import torch

        from headwise.tasks.sequences import in_parts

        whole = in_parts(model)
        if whole is None:
            return self.cross_entropy(model(inputs).flatten(0, -2), labels.flatten())
        return whole.token_loss(inputs, labels, torch.full(labels.shape, 1 / labels.numel()))


def data(family, options, batch):
    import torch

    torch.manual_seed(0)
    if family == "vit":
        return torch.randn(batch, 3, options.image, options.image), torch.randint(10, (batch,))
    return torch.randint(VOCAB, (batch, options.context)), torch.randint(VOCAB, (batch, options.context))


def our_run(family, shape, tokens, batch):
    """As a plan would have it here: many steps, so that kernels are worth compiling."""
    from headwise.sweep.resolve import fitted
    from headwise.training.run import Execution, Recipe, Run

    task = {"name": "text", "context": tokens}
    run = Run(task=task, shape=shape, options=options_of(family, tokens), recipe=Recipe(batch=batch), steps=100_000)
    execution = fitted([run], Execution())[0].execution
    return run.replace(execution=execution)


def our_steps(family, shape, tokens, batch, path=None):
    from headwise.training.machine import use_one_core

    use_one_core()
    run = our_run(family, shape, tokens, batch)
    if path:
        run = run.replace(execution=run.execution.replace(path=path))
    yield from trainer_steps(run, GivenData(family, run.options, batch))


def trainer_steps(run, task):
    """What `train` does for one step, again and again."""
    from headwise.training.distributed import Workers
    from headwise.training.loop import _step, build_model
    from headwise.training.optim import FlatOptimizer

    model = build_model(run, task)
    optimizer, workers, step = FlatOptimizer(model, run.recipe), Workers(run), 0
    while True:
        _step(run, task, model, optimizer, step, workers)
        step += 1
        yield


# ---- theirs --------------------------------------------------------------------------------------------------------


def nanogpt_file():
    file = Path(os.environ.get("HEADWISE_PEERS", "")) / "nanoGPT" / "model.py"
    return file if "HEADWISE_PEERS" in os.environ and file.exists() else None


def nanogpt(layer, options, depth):
    place = importlib.util.spec_from_file_location("nanogpt_model", nanogpt_file())
    module = importlib.util.module_from_spec(place)
    sys.modules["nanogpt_model"] = module
    place.loader.exec_module(module)
    sizes = {"n_layer": depth, "n_head": layer.heads, "n_embd": layer.width, "block_size": options.context}
    with redirect_stdout(None):  # it prints its size, and ours is for JSON
        model = module.GPT(module.GPTConfig(vocab_size=VOCAB, dropout=0.0, bias=True, **sizes))
    return lambda x, y: model(x, y)[1], model


def hugging_face(kind, layer, options, depth):
    import torch
    import transformers as hf

    width, heads, nowhere = layer.width, layer.heads, {"attn_implementation": "sdpa"}
    usual = {
        "hidden_size": width,
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
    }
    if kind == "gpt2":
        sizes = {"n_embd": width, "n_layer": depth, "n_head": heads, "n_positions": options.context}
        none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
        model = hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=VOCAB, **sizes, **none, **nowhere))
    elif kind == "llama":
        model = hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=VOCAB, **usual, use_cache=False, **nowhere))
    else:
        none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        if kind == "bert":
            sizes = {"vocab_size": VOCAB, "max_position_embeddings": options.context}
            model = hf.BertForMaskedLM(hf.BertConfig(**sizes, **usual, **none, **nowhere))
        else:
            sizes = {"image_size": options.image, "patch_size": options.patch, "num_labels": options.classes}
            model = hf.ViTForImageClassification(hf.ViTConfig(**sizes, **usual, **none, **nowhere))
    loss = torch.nn.functional.cross_entropy
    return lambda x, y: loss(model(x).logits.flatten(0, -2), y.flatten()), model


def x_transformers(layer, options, depth):
    import torch
    from x_transformers import Decoder, TransformerWrapper

    blocks = Decoder(dim=layer.width, depth=depth, heads=layer.heads, attn_dim_head=layer.qk_rank, attn_flash=True)
    model = TransformerWrapper(num_tokens=VOCAB, max_seq_len=options.context, attn_layers=blocks)
    loss = torch.nn.functional.cross_entropy
    return lambda x, y: loss(model(x).flatten(0, 1), y.flatten()), model


def their_steps(kind, family, shape, tokens, batch):
    import torch

    from headwise import ModelShape
    from headwise.training.machine import keep_memory

    torch.set_num_threads(1)
    keep_memory()
    torch.manual_seed(0)
    options, whole = options_of(family, tokens), ModelShape.parse(shape)
    makers = {"nanogpt": nanogpt, "x-transformers": x_transformers}
    made = makers[kind] if kind in makers else lambda *sizes: hugging_face(kind, *sizes)
    loss, model = made(whole.layers[0], options, whole.depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=True)
    batch = data(family, options, batch)
    while True:
        optimizer.zero_grad()
        loss(*batch).backward()
        optimizer.step()
        yield


# ---- measuring -----------------------------------------------------------------------------------------------------


class Side:
    """Two processes that train the same model at once."""

    def __init__(self, function, *what):
        context = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        for core in range(2):
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(there, core, function, what), daemon=True)
            process.start()
            self.pipes.append(here)
            self.processes.append(process)
        for pipe in self.pipes:
            pipe.recv()

    def step(self):
        """Seconds for one step of a sweep: the two processes share them."""
        for pipe in self.pipes:
            pipe.send("turn")
        return 1 / sum(1 / pipe.recv() for pipe in self.pipes)

    def close(self):
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.close()
            process.join()


def serve(pipe, core, function, what):
    """Warm up, then a turn and the time of a step whenever one is asked for."""
    os.sched_setaffinity(0, {core % os.cpu_count()})
    steps = function(*what)
    next(steps), next(steps)
    pipe.send("ready")
    while True:
        try:
            pipe.recv()
        except EOFError:
            return
        start, done = perf_counter(), 0
        while not done or perf_counter() - start < TURN_SECONDS:
            next(steps)
            done += 1
        pipe.send((perf_counter() - start) / done)


def grown(pipe, path, family, shape, tokens, batch):
    """Bytes that a process grows by, at most, in three steps."""
    our_run(family, shape, tokens, batch)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    steps = our_steps(family, shape, tokens, batch, path)
    for _ in range(3):
        next(steps)
    pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


def memory(*model):
    """What our path needs, as part of what the plain one does."""
    context, pipes = multiprocessing.get_context("spawn"), []
    for path in (None, "plain"):
        here, there = context.Pipe()
        context.Process(target=grown, args=(there, path, *model), daemon=True).start()
        pipes.append(here)
    ours, plain = (pipe.recv() for pipe in pipes)
    return ours / plain


def row(family, shape, tokens, batch, repeats):
    """One model: milliseconds of every side, ratios, and what part of the machine ours uses."""
    from cells import gemm_peak

    from headwise import ModelShape
    from headwise.cost import training_flops

    model, options = (family, shape, tokens, batch), options_of(family, tokens)
    kinds = [kind for kind in FAMILIES[family] if kind != "nanogpt" or nanogpt_file()]
    sides = {"headwise": Side(our_steps, *model)} | {kind: Side(their_steps, kind, *model) for kind in kinds}
    times, peaks = {kind: [] for kind in sides}, []
    for _ in range(repeats):
        for kind, side in sides.items():
            times[kind].append(side.step())
        peaks.append(gemm_peak())
    for side in sides.values():
        side.close()
    middle = {kind: median(values) for kind, values in times.items()}
    speed = batch * training_flops(ModelShape.parse(shape), options, options.tokens) / middle["headwise"] / 2
    result = {"family": family, "shape": shape, "tokens": options.tokens, "batch": batch}
    result |= {"ms": {kind: round(1000 * seconds, 1) for kind, seconds in middle.items()}}
    result |= {"faster_than": {kind: round(middle[kind] / middle["headwise"], 2) for kind in kinds}}
    result |= {"gflops": round(speed / 1e9, 1), "of_peak": round(speed / median(peaks), 2)}
    return result | {"memory": round(memory(*model), 2)}


def stored_steps(spec, shape, batch):
    """A task's own steps, with its data."""
    from headwise.tasks import load_task
    from headwise.training.machine import use_one_core

    use_one_core()
    run = stored_run(spec, shape, batch)
    yield from trainer_steps(run, load_task(run.task))


def stored_run(spec, shape, batch):
    from headwise.sweep.resolve import fitted
    from headwise.tasks import load_task
    from headwise.training.run import Execution, Recipe, Run

    task = load_task(spec).resolved()
    run = Run(task=task.spec(), shape=shape, options=task.default_options(), recipe=Recipe(batch=batch), steps=10_000)
    return fitted([run], Execution())[0]


def stored_row(spec, shape, batch, repeats):
    from cells import gemm_peak

    from headwise.sweep.plan import work

    run, side = stored_run(spec, shape, batch), Side(stored_steps, spec, shape, batch)
    seconds = median(side.step() for _ in range(repeats))
    side.close()
    speed = work(run) / run.steps / seconds / 2
    sizes = {"task": spec["name"], "shape": shape, "batch": batch, "path": run.execution.path}
    speeds = {"ms": round(1000 * seconds, 1), "gflops": round(speed / 1e9, 1), "of_peak": round(speed / gemm_peak(), 2)}
    return sizes | speeds


OTHERS = [(family, *model) for family in ("llama", "bert", "vit") for model in DECODERS[1:4]]
PARTS = {  # what is measured, and how
    "decoders": (row, [("gpt2", *model) for model in DECODERS]),
    "families": (row, OTHERS),
    "stored": (stored_row, STORED),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, default="decoders", help="decoders of six sizes, other families, ...")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="only the second, two turns")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    measure, cases = PARTS[options.part]
    cases, repeats, rows = (cases[1:2], 2, []) if options.quick else (cases, REPEATS, [])
    for case in cases:
        rows.append(measure(*case, repeats))
        print(json.dumps(rows[-1]), file=sys.stderr if options.json else sys.stdout, flush=True)
    return options.json and print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
