"""The explorer in a real browser, where one is installed: its numbers are Python's, its controls do what they say."""

import json
import random

import pytest

from headwise import read_config, studies
from headwise.comparison.prediction import ladder_in_numbers, predict
from headwise.cost import DTYPE_BYTES, cost_of
from headwise.known import KNOWN, Known
from headwise.ledger.claims import Claim
from headwise.ledger.judge import Judgement
from headwise.report.explorer import evidence_rows, explore, page_data, render
from headwise.report.page import page_path
from headwise.report.sections import Section, StudyPart, sections_of
from headwise.search import equal_cost
from headwise.shape import ModelShape, ShapeError
from headwise.spec import SpecError
from headwise.store.opening import opened
from headwise.store.store import Store
from headwise.theory.bounds import scalar_bound
from helpers import browser
from helpers.ladder import climb
from helpers.pages import EVIL, fill
from helpers.random_models import models

PROGRAM = browser.find()
in_browser = pytest.mark.skipif(
    PROGRAM is None, reason="no Chromium is installed here; install it, or name one in HEADWISE_CHROMIUM"
)
MOST_BYTES = 2_000_000


def judged(name, verdict="open", text=""):
    claim = Claim(name, text or f"claim {name}", "a paper", "mine", lambda rows: [])
    return Judgement(claim, verdict, "laptop", missing="no runs yet")


@pytest.fixture(scope="module")
def section():
    judgements = [judged("Q1", "holds"), judged("Q12", "fails", "heads of half the rank"), judged("L3", text=EVIL)]
    return Section("mine", "A study.", judgements, [StudyPart("laptop", 1, [], [], None, "")])


@pytest.fixture(scope="module")
def inspection():
    rng = random.Random(0)
    head = {
        **{f"{pair}_{name}": 0.5 for pair in ("qk", "vo") for name in ("overlap", "energy_half", "condition")},
        "qk_spectrum": [4.0, 2.0, 1.0],
        "entropy": None,
    }
    layers = [
        {"qk_rank": 16, "v_rank": 16, "kv_bytes_per_token": 256, "heads": [
            head | {f"{pair}_effective_rank": rng.uniform(1, 16) for pair in ("qk", "vo")}
            | {f"{pair}_rank_99": rng.randint(1, 16) for pair in ("qk", "vo")} for _ in range(4)]}
        for _ in range(3)
    ]  # fmt: skip
    return {"shape": "w64-h4-L3", "family": "gpt2", "layers": layers, "summary": "QK uses half.\nVO too."}


@pytest.fixture(scope="module")
def page(tmp_path_factory, section):
    file = tmp_path_factory.mktemp("explorer") / "page.html"
    file.write_text(render(["gpt2", "w768-h6-L12"], [section], EVIL))
    return file


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    driven = browser.Browser(PROGRAM, tmp_path_factory.mktemp("profile"))
    yield driven
    driven.close()


@pytest.fixture
def tab(chromium, page):
    chromium.look(1280)
    chromium.open("about:blank")
    chromium.open(page.as_uri())
    return chromium


def run(tab, body, data):
    """What a function of the data gives, in the page."""
    return json.loads(
        tab.ask(f"JSON.stringify((({body}))({json.dumps(data)}), (_, v) => typeof v === 'bigint' ? `${{v}}` : v)")
    )


# ---- numbers -------------------------------------------------------------------------------------------------------


def priced_here():
    """The known models that the page offers."""
    return [KNOWN[one["name"]] for one in page_data()["known"]]


def expected(shape, options, context, batch, dtype):
    cost = cost_of(Known("", shape), options, context=context, batch=batch, dtype=dtype)
    numbers = {
        "context": cost.context,
        "parameters": cost.parameters,
        "flops": cost.flops,
        "kv_bytes_per_token": cost.kv_bytes_per_token,
        "kv_bytes": cost.kv_bytes,
        "weight_bytes": cost.weight_bytes,
        "training_state_bytes": cost.training_state_bytes,
        "activation_bytes": cost.activation_bytes,
        "decode_bytes": cost.decode_bytes,
    }
    return json.loads(json.dumps(numbers, default=str), parse_int=str)


@in_browser
def test_costs_are_equal_to_the_last_digit(tab):
    """Thousands of random models, some with costs far beyond 2**53, and every known one."""
    cases = [*models(4000, seed=25), *((known.shape, known.options, 0, 3) for known in priced_here())]
    dtypes = [list(DTYPE_BYTES)[place % len(DTYPE_BYTES)] for place in range(len(cases))]
    data = [
        [str(shape), options.model_dump(), {"context": context, "batch": batch, "dtype": dtype}]
        for (shape, options, context, batch), dtype in zip(cases, dtypes, strict=True)
    ]
    body = "(cases) => cases.map(([text, options, asked]) => priceOf(parseShape(text), options, asked))"
    found = run(tab, body, data)
    wanted = [expected(*case, dtype) for case, dtype in zip(cases, dtypes, strict=True)]
    for case, one, other in zip(data, found, wanted, strict=True):
        assert one == other, case
    assert sum(int(one["flops"]["train"]) > 2**53 for one in wanted) > 500


@in_browser
def test_shapes_are_read_written_and_refused_alike(tab):
    rng = random.Random(7)
    texts = [str(shape) for shape, *_ in models(1500, seed=8)]
    texts += [
        "",
        "w",
        "w64-z3",
        "w64-h8-h8",
        "h8",
        "w64",
        "w100-h3",
        "w64-r7",
        "w64-h8-g3",
        "w64-h8-c8-p9",
        "L3 h8 w512",
    ]
    texts += [
        "w64-h8-p99",
        "w64-h8-L0",
        "w99999999-h1",
        "w64-h0",
        "w64-h8x2,4-L9",
        "w8x2-h8",
        "W64_H8_l2",
        "w64-h8x0,4",
    ]
    texts += ["w64-h8-m0", "w96-h7x2,8", "w512-h8x4,4x8-r64x6,32x6-m0x2,64x10"]
    for _ in range(600):  # one letter, number or token made wrong
        token = "".join(rng.choice("whrvgcqpLm-x,0123456789 ") for _ in range(rng.randint(1, 4)))
        texts.append(rng.choice(texts[:1500]) + "-" + token)
    body = """(texts) => texts.map((text) => {
        try { return [writeShape(parseShape(text))]; }
        catch (error) { if (!(error instanceof ShapeError)) throw error; return [error.message, ...error.nearest]; }
    })"""
    for text, found in zip(texts, run(tab, body, texts), strict=True):
        try:
            wanted = [str(ModelShape.parse(text))]
        except ShapeError as error:
            wanted = [error.problem, *error.nearest]
        assert found == wanted, text


@in_browser
def test_the_certified_bound_is_pythons_or_a_little_below(tab):
    cells = [(d, r, h) for d in (2, 3, 16, 64, 65, 768) for r in (1, 2, 8, d // 2, d - 1, d) for h in (1, 4, 64, 10**6)]
    cells = [cell for cell in cells if 1 <= cell[1] <= cell[0]]
    for cell, found in zip(cells, run(tab, "(cells) => cells.map((cell) => scalarBound(...cell))", cells), strict=True):
        certified = scalar_bound(*cell)
        assert certified - 2e-3 <= found <= certified + 1e-12, cell


@in_browser
def test_equal_cost_shapes_lie_on_the_curve(tab):
    """`search` finds the same MLP for another rank as the curve does, to the rounding both do."""
    for hold in ("params", "flops"):
        base = ModelShape.parse("w512-h8-L6")
        rows = [row.shape for row in equal_cost(base, hold=hold, vary=["qk_rank"]) if row.shape.depth == 6]
        body = f"""(ranks) => {{
            const a = parseShape('w512-h8-L6'), model = {{ layer: a.layers[0], depth: 6 }}, options = DATA.defaults;
            const same = {{ ...model, layer: {{ ...model.layer, v_rank: 63 }} }};  // a value rank that stays
            same.layer.v_rank = 64; const budget = heldBy(model, '{hold}', options, 1024);
            return ranks.map((rank) => {{
                const layer = {{ ...model.layer, qk_rank: rank, rope_rank: rank }};
                return solve({{ layer, depth: 6 }}, 'depth', 'mlp', 6, budget, '{hold}', options, 1024);
            }});
        }}"""
        found = run(tab, body, [shape.qk_rank for shape in rows])
        assert len(rows) > 20
        for shape, mlp in zip(rows, found, strict=True):
            assert abs(mlp - shape.mlp) <= 8, shape


# ---- configurations ------------------------------------------------------------------------------------------------

CONFIGS = [
    {"model_type": "gpt2", "n_embd": 96, "n_head": 6, "n_layer": 3, "vocab_size": 500, "n_positions": 64},
    {"model_type": "gpt2", "n_embd": 96, "n_head": 6, "n_layer": 3, "vocab_size": 500, "n_positions": 64,
     "n_inner": 100},
    {"model_type": "nanochat", "n_embd": 96, "n_head": 6, "n_layer": 3, "n_kv_head": 2, "vocab_size": 9,
     "sequence_len": 8},
    {"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 96, "num_attention_heads": 6,
     "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 9, "max_position_embeddings": 64,
     "type_vocab_size": 2, "hidden_act": "gelu_new"},
    {"model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 96, "num_attention_heads": 6,
     "num_hidden_layers": 2, "intermediate_size": 128, "image_size": 32, "patch_size": 4, "num_channels": 3,
     "id2label": {"0": "a", "1": "b", "2": "c"}},
    *({"model_type": kind, "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 32,
       "num_hidden_layers": 4, "intermediate_size": 100, "vocab_size": 99, "max_position_embeddings": 77, **more}
      for kind, more in [("llama", {}), ("mistral", {"rope_theta": 5e5}), ("qwen2", {"tie_word_embeddings": True}),
                         ("qwen3", {}), ("gemma3_text", {"final_logit_softcapping": 30.0}),
                         ("llama", {"headwise": {"shape": "w96-h6-r8-L4-m100"}}),
                         ("llama", {"rope_parameters": {"rope_theta": 7.0}})]),
]  # fmt: skip
EXPERTS = [
    {"model_type": "mixtral", "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 32,
     "num_hidden_layers": 4, "intermediate_size": 100, "vocab_size": 99, "max_position_embeddings": 77},
    {"model_type": "deepseek_v3", "hidden_size": 96, "num_attention_heads": 6, "num_hidden_layers": 4,
     "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 24, "kv_lora_rank": 32, "q_lora_rank": None},
]  # fmt: skip


@in_browser
def test_of_a_mixture_of_experts_the_page_prices_attention_and_says_so(tab):
    for found in run(tab, "(configs) => configs.map(readConfig)", EXPERTS):
        assert "attention only" in found["note"]


@in_browser
def test_a_pasted_configuration_is_read_as_python_reads_it(tab, tmp_path):
    body = "(configs) => configs.map(readConfig).map((model) => ({ ...model, shape: writeShape(model.shape) }))"
    for config, found in zip(CONFIGS, run(tab, body, CONFIGS), strict=True):
        file = tmp_path / "config.json"
        file.write_text(json.dumps(config))
        known = read_config(file)
        assert found["shape"] == str(known.shape)
        assert found["options"] == json.loads(json.dumps(known.options.model_dump()))
        assert found["note"] == ""


@in_browser
def test_a_written_configuration_says_the_same_model(tab, tmp_path):
    """Written in the page, read back by Python's own reader: the same shape at the same price."""
    names = [one.name for one in priced_here() if not one.experts and "gemma" not in one.name]
    names = [name for name in names if "crammed" not in name]
    body = "(names) => names.map((name) => { const k = DATA.known.find((one) => one.name === name);"
    body += " return writeConfig(parseShape(k.shape), k.options) })"
    for name, found in zip(names, run(tab, body, names), strict=True):
        file = tmp_path / "config.json"
        file.write_text(json.dumps(found["config"]))
        read, known = read_config(file), KNOWN[name]
        assert str(read.shape) == str(known.shape), name
        assert cost_of(read).parameters == cost_of(known).parameters, name
    reasons = run(tab, "(t) => t.map((x) => writeConfig(parseShape(x), optionsOf({ like: 'family:llama' })))", [
        "w64-h4-v8-L2", "w64-h4x1,8x1", "w64-h4-L2-m0", "w64-h4-c16-L2"])  # fmt: skip
    assert [("why" in one) for one in reasons] == [True, True, True, False]
    assert reasons[3]["config"]["kv_lora_rank"] == 16


@in_browser
def test_nanochat_flags_give_the_width_its_script_computes(tab):
    texts = ["w1280-h10-L20", "w1792-h14-L28", "w768-h6-L12", "w64-h4-L30", "w512-h8-r128-L4", "w512-h8-g2-L4"]
    found = run(tab, "(texts) => texts.map((text) => nanochatFlags(parseShape(text)))", texts)
    for text, one in zip(texts, found, strict=True):
        if "why" in one:
            assert text in texts[4:]
            continue
        depth, aspect, dim = (int(flag.split("=")[1]) for flag in one["flags"].split()[-3:])
        width = -(-depth * aspect // dim) * dim  # as nanochat's base_train.py has it
        assert ModelShape.parse(f"w{width}-h{width // dim}-L{depth}") == ModelShape.parse(text)


# ---- the page ------------------------------------------------------------------------------------------------------


@in_browser
def test_it_loads_alone_and_without_complaint(tab, page):
    assert tab.requests == [page.as_uri()]
    assert tab.console == []
    assert tab.ask("window.hacked") is None
    assert tab.ask("document.querySelector('#costs tbody td').textContent") == "124 M124,439,808"


def type_in(tab, name, value, event="input"):
    tab.ask(
        f"(() => {{ const box = document.getElementById('{name}'); box.value = {json.dumps(value)};"
        f" box.dispatchEvent(new Event('{event}', {{ bubbles: true }})) }})()"
    )


@in_browser
def test_controls_change_the_shape_the_price_and_the_address(tab):
    type_in(tab, "a-heads-0", "6", "change")
    assert tab.ask("models.a.text") == "w768-h6-L12"
    type_in(tab, "a-kv_heads-0", "2", "change")
    assert tab.ask("models.a.text") == "w768-h6-g2-L12"
    type_in(tab, "a-width", "1536", "change")
    assert tab.ask("models.a.text") == "w1536-h6-g2-L12"  # what was usual stays usual
    type_in(tab, "context", "4096")
    assert "a=w1536-h6-g2-L12" in tab.ask("location.hash")
    assert "context=4096" in tab.ask("location.hash")
    price = cost_of(Known("", ModelShape.parse("w1536-h6-g2-L12")), KNOWN["gpt2"].options, context=4096)
    assert f"{price.kv_bytes:,}" in tab.ask("document.getElementById('costs').textContent")
    tab.ask("[...document.querySelectorAll('#model-a button')].find((b) => b.textContent.startsWith('Add')).click()")
    assert tab.ask("models.a.text") == "w1536-h6x12,3-g2x12,3"
    assert tab.console == []


@in_browser
def test_an_address_brings_everything_back(tab, page):
    address = f"{page.as_uri()}#a=w64-h4-g2-L2&a.like=family:llama&a.vocab=777&b=w64-h2-L2&hold=kv&batch=3&search=rank"
    tab.open("about:blank")
    tab.open(address)
    assert tab.ask("[models.a.options.vocab, models.b.text, settings.elements.hold.value]") == [777, "w64-h2-L2", "kv"]
    assert tab.ask("document.getElementById('claims-shown').value") == "1 of 3 claims"
    for part in ("a=w64-h4-g2-L2", "a.vocab=777", "b=w64-h2-L2", "hold=kv", "batch=3", "search=rank"):
        assert part in tab.ask("location.hash")


@in_browser
def test_a_wrong_shape_says_what_would_work(tab):
    type_in(tab, "a-shape", "w768-h7-L12")
    assert "7 heads do not divide width 768" in tab.ask("document.getElementById('a-problem').textContent")
    tab.ask("document.querySelector('#a-problem button').click()")
    assert tab.ask("models.a.text") == "w768-h8-L12"
    assert tab.ask("document.getElementById('a-problem').textContent") == ""


@in_browser
def test_the_handle_moves_along_the_curve_by_keyboard(tab):
    tab.ask("document.querySelector('.handle').focus()")
    before = tab.ask("models.b.shape.layers[0].heads")
    for _ in range(2):
        tab.ask("document.querySelector('.handle').dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowLeft' }))")
    assert tab.ask("models.b.shape.layers[0].heads") == before - 2
    assert tab.ask("document.activeElement.classList.contains('handle')")
    a, b = (cost_of(Known("", ModelShape.parse(tab.ask(f"models.{name}.text")))).parameters["body"] for name in "ab")
    assert abs(b / a - 1) < 0.02


@in_browser
def test_the_ledger_is_searched_filtered_sorted_and_linked(tab, page):
    shown = "[...document.querySelectorAll('.claim')].filter((one) => one.checkVisibility()).map((one) => one.id)"
    assert tab.ask(shown) == ["claim-Q1", "claim-Q12", "claim-L3"]
    type_in(tab, "search", "half rank")
    assert tab.ask(shown) == ["claim-Q12"]
    type_in(tab, "search", "")
    type_in(tab, "verdict", "open")
    assert tab.ask(shown) == ["claim-L3"]
    type_in(tab, "verdict", "")
    type_in(tab, "sort", "verdict")
    assert tab.ask(shown) == ["claim-Q1", "claim-Q12", "claim-L3"]
    tab.open("about:blank")
    tab.open(f"{page.as_uri()}#claim=Q12")
    assert tab.ask("document.getElementById('claim-Q12').open")
    assert tab.console == []
    assert tab.ask("window.hacked") is None


@in_browser
def test_a_claim_opens_its_chart_its_runs_and_its_registration(chromium, tmp_path):
    """A chart is drawn where its claim is opened, and lives: nothing is refused, nothing fetched."""
    with Store(":memory:") as store:
        fill(store)
        sections = list(sections_of([studies.load("rank-cliff"), studies.load("temperature")], store, pictures=False))
    page = tmp_path / "page.html"
    page.write_text(render(["gpt2"], sections))
    chromium.look(390)
    chromium.open(f"{page.as_uri()}#claim=Q7")
    drawn = "document.querySelector('#claim-Q7 .chart-help')"
    chromium.ask(f"(async () => {{ while (!{drawn}) await new Promise(requestAnimationFrame) }})()")
    words = chromium.ask("document.querySelector('#claim-Q7 svg').getAttribute('aria-label')")
    assert words.startswith("Q7, holds: One layer: full rank is necessary")
    assert chromium.ask("document.querySelector('#claim-Q7 .keys').textContent").split()
    assert chromium.ask("document.documentElement.scrollWidth") <= 390
    assert chromium.requests == [chromium.ask("location.href").partition("#")[0]]
    assert chromium.console == []


def test_a_claim_is_in_the_ledger_once():
    """Also one that two studies judge, of which the newer is registered."""
    sections = [Section(name, "", [judged("Q1")], [StudyPart("laptop", 1, [], [], None, "")]) for name in "ab"]
    assert [claim["id"] for claim in page_data(sections=sections)["claims"]] == ["Q1"]


@in_browser
def test_an_inspection_becomes_heat_maps_with_a_budget(tab, inspection):
    tab.ask(f"loadInspection({json.dumps(json.dumps(inspection))})")
    assert tab.ask("document.querySelectorAll('.maps figure').length") == 6
    assert tab.ask("document.querySelectorAll('.maps rect').length") == 6 * 12
    type_in(tab, "budget", "8")
    told = tab.ask("document.querySelector('.kept').textContent")
    heads = [head for layer in inspection["layers"] for head in layer["heads"]]
    fits = [sum(head[f"{pair}_rank_99"] <= 8 for head in heads) for pair in ("qk", "vo")]
    assert told == f"8: {fits[0]} of 12 heads keep 99 % of QK, {fits[1]} of VO; KV cache 50 %"
    tab.ask("document.querySelector('.maps rect').focus()")
    assert tab.ask("document.querySelector('.head-numbers b').textContent") == "Layer 0, head 0. "
    assert tab.ask("document.querySelectorAll('.spectra svg').length") == 1
    tab.ask("loadInspection('{}')")
    assert "headwise inspect --json" in tab.ask("document.getElementById('inspect-problem').textContent")


@in_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 820, 1440])
def test_it_can_be_read_and_used_on_any_screen(tab, width, scheme, inspection):
    tab.look(width, scheme=scheme)
    tab.ask(f"loadInspection({json.dumps(json.dumps(inspection))})")
    tab.ask("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    assert tab.ask("document.documentElement.scrollWidth") <= width
    assert tab.ask("document.querySelector('#curve-chart svg').clientWidth") <= width
    ground = luminance(tab.ask("getComputedStyle(document.body).backgroundColor"))
    assert (ground > 0.5) == (scheme == "light")
    for what in ("body", ".note", "small", "nav a", ".holds", ".fails", ".open", "label", "legend"):
        text = luminance(tab.ask(f"getComputedStyle(document.querySelector('{what}')).color"))
        assert (max(text, ground) + 0.05) / (min(text, ground) + 0.05) >= 4.5, what
    assert tab.console == []


def luminance(colour):
    """Relative luminance, as WCAG defines it."""
    parts = [int(part) / 255 for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@in_browser
def test_everything_has_a_name_for_those_who_do_not_see_it(tab):
    """Fields have labels, pictures and drawings have texts."""
    nameless = tab.ask(
        "[...document.querySelectorAll('input, select, textarea')].filter((one) => !one.labels?.length"
        " && !one.getAttribute('aria-label')).map((one) => one.outerHTML)"
    )
    assert nameless == []
    assert tab.ask("[...document.querySelectorAll('svg')].every((one) => one.getAttribute('role'))")
    assert tab.ask("new Set([...document.querySelectorAll('[id]')].map((one) => one.id)).size") == tab.ask(
        "document.querySelectorAll('[id]').length"
    )


@in_browser
def test_evidence_rows_are_those_about_the_move(chromium, tmp_path, monkeypatch):
    """A row as the table of evidence has it; only rows about what differs between A and B are shown."""
    row = {
        "axis": "kv_heads",
        "base_shape": "w64-h4",
        "arm_shape": "w64-h4-g1",
        "base": "",
        "task": "text",
        "metric": "loss",
    }
    row |= {"value_base": 2.0, "value_arm": 2.1, "effect": "worse", "params_base": 10**9, "held": "params", "note": ""}
    row |= {"source": EVIL, "url": "https://example.org/x", "own": False}
    rows = [row, row | {"axis": "depth_vs_width", "params_base": 10**10, "own": True}]
    monkeypatch.setattr("headwise.report.explorer.evidence_rows", lambda judgements: rows)
    page = tmp_path / "page.html"
    page.write_text(render(["w64-h4-L2", "w64-h4-g2-L2"]))
    chromium.look(1280)
    chromium.open(page.as_uri())
    shown = "[...document.querySelectorAll('#evidence-rows tr')].map((one) => one.cells[1].firstChild.textContent)"
    assert chromium.ask(shown) == ["w64-h4 → w64-h4-g1"]
    assert "1 published comparisons and 0 claims of our own about kv_heads" in chromium.ask(
        "document.getElementById('evidence-about').textContent"
    )
    type_in(chromium, "b-layers-0", "3", "change")
    assert len(chromium.ask(shown)) == 2
    assert chromium.console == []
    assert chromium.ask("window.hacked") is None


@in_browser
def test_the_first_dozen_of_evidence_is_shown_until_all_is_asked_for(tab):
    count = "document.querySelectorAll('#evidence-rows tr').length"
    tab.ask("document.getElementById('drop-b').click()")
    assert tab.ask(count) == 12
    tab.ask("document.getElementById('evidence-more').click()")
    assert tab.ask(count) == len(evidence_rows())


@pytest.fixture(scope="module")
def climbed(tmp_path_factory):
    return climb(tmp_path_factory.mktemp("ladder") / "made.db")


def page_of(store, folder, *shapes):
    """The page of some shapes with the ladder's laws that a store has."""
    page = folder / "page.html"
    with opened(store) as held:
        page.write_text(render(shapes, law=ladder_in_numbers(held)))
    return page


PREDICTED = [
    *(f"w{width}-{letters}" for width in (32, 80, 512) for letters in ("h4-p4-L6", "h8-p4-L6", "h8-L4", "h4-L4")),
    "w1024-h4-L6", "w8-h8-L6", "w8-h4-L6", "w16-h4-L6", "w80-h4-L6-m64", "w80-h4-g2-L6", "w80-h4-L5", "w320-h320-L1",
]  # fmt: skip
LOSS_OF = "(texts) => texts.map((text) => predictedLoss(parseShape(text), optionsOf({ like: '', changes: {} })))"


@in_browser
def test_predicted_losses_are_those_of_the_command(chromium, tmp_path, climbed):
    """Value, interval and what lies beyond the runs, or the reason why there is no number."""
    chromium.open(page_of(climbed, tmp_path, "w64-h4-L6").as_uri())
    reasons = set()
    for text, found in zip(PREDICTED, run(chromium, LOSS_OF, PREDICTED), strict=True):
        wanted = predict(text, store=climbed)
        if not wanted.prediction:
            assert found == {"none": wanted.why_not}
            reasons.add(wanted.why_not[:12])
            continue
        at = wanted.prediction
        assert [found[name] for name in ("value", "low", "high")] == pytest.approx(
            [at.value, at.low, at.high], rel=1e-9
        )
        assert (found["outside"], found["about"]) == ("; ".join(at.outside), wanted.law)
    assert len(reasons) == 2


@in_browser
def test_the_predicted_loss_is_said_of_both_models(chromium, tmp_path, climbed):
    page = page_of(climbed, tmp_path, "w64-h4-L6", "w64-h8-L4")
    chromium.look(1280)
    chromium.open(page.as_uri())
    told, greyed = "document.getElementById('predicted')", "document.querySelectorAll('#predicted .greyed').length"
    for part in (
        "of A: ",
        "of B: ",
        "'base', fitted to 5 sizes",
        "'thin'",
        "95 % of new runs",
        "10 bytes per parameter",
    ):
        assert part in chromium.ask(f"{told}.textContent")
    assert chromium.ask(greyed) == 0
    type_in(chromium, "b-width", "512", "change")
    assert "Carried on beyond the runs: parameters 1" in chromium.ask(f"{told}.textContent")
    assert chromium.ask(greyed) == 1
    type_in(chromium, "b-layers-0", "5", "change")
    assert "No predicted loss of B: the only laws are of the ladder's variants" in chromium.ask(f"{told}.textContent")
    chromium.open("about:blank")
    chromium.open(f"{page.as_uri()}#a=w64-h4-L6&a.like=family:gpt2")
    assert "choose the layers alone" in chromium.ask(f"{told}.textContent")
    assert chromium.console == []


@in_browser
def test_without_a_judged_ladder_the_page_says_so_and_shows_published_rows(chromium, tmp_path):
    wanted = predict("w64-h4-L6", store=tmp_path / "empty.db")
    chromium.open(page_of(tmp_path / "empty.db", tmp_path, "w64-h4-L6", "w64-h8-L6").as_uri())
    told = chromium.ask("document.getElementById('predicted').textContent")
    assert told == f"No predicted loss: {wanted.why_not}. What others published is below."
    assert chromium.ask("document.querySelectorAll('#evidence-rows tr').length") > 5
    chromium.open("about:blank")
    begun = climb(tmp_path / "begun.db", strata=("w32", "w48"))
    chromium.open(page_of(begun, tmp_path, "w64-h4-L6").as_uri())
    wanted = predict("w64-h4-L6", store=begun)
    assert f"of A: {wanted.why_not}." in chromium.ask("document.getElementById('predicted').textContent")


# ---- without a browser ---------------------------------------------------------------------------------------------


def test_the_page_is_small_and_holds_no_foreign_html(section):
    text = render(["gpt2"], [section], EVIL)
    assert len(text.encode()) < MOST_BYTES
    assert EVIL not in text
    assert text.count("<script") == 2
    assert page_data()["evidence"] == evidence_rows()


def test_out_is_a_file_or_a_folder(tmp_path):
    assert page_path("x.html").name == "x.html"
    assert page_path(tmp_path) == tmp_path / "index.html"


def test_wrong_input_is_a_sentence(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(SpecError, match="has no layers"):
        explore("gpt2", inspection=tmp_path / "x.json", results=tmp_path)
    with pytest.raises(SpecError, match="two shapes, not 3"):
        explore("gpt2", "gpt2", "gpt2")
    with pytest.raises(SpecError, match="7 heads do not divide"):
        explore("w64-h7")
