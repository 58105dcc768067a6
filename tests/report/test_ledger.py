"""The ledger in words: effects with intervals, what is required, and lines that fit a terminal."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from headwise.ledger.claims import BITS, KAPPA, PARAMETERS, Claim, against, exactly, proved
from headwise.ledger.judge import Remedy, Scale, judge_claim
from headwise.report.ledger import beside, details, hanging, ledger, line, wrapped
from headwise.store.rows import Row

ROWS = [Row({}, 0, {}, "k")]
CLOSE = (1.0, 1.01, 0.99, 1.0)


def told(comparison):
    claim = Claim("X1", "a sentence", "X", "a-study", lambda rows: [comparison])
    (one,) = judge_claim(claim, "laptop", ROWS).comparisons
    return tuple(word.replace("\u00a0", " ") for word in line(one.as_dict()))


@pytest.mark.parametrize(
    ("comparison", "effect", "required", "answer"),
    [
        (against(BITS, "", "", CLOSE, at_most=1.03), "0.0 % [−1.3 %, +1.3 %]", "at most 3 % worse", "yes"),
        (against(BITS, "", "", CLOSE, at_most=1.0), "0.0 % [−1.3 %, +1.3 %]", "better", "open"),
        (against(BITS, "", "", CLOSE, at_least=1.1), "0.0 % [−1.3 %, +1.3 %]", "at least 10 % worse", "no"),
        (against(KAPPA, "", "", CLOSE, at_least=0.9), "0.0 % [−1.3 %, +1.3 %]", "at most 10 % lower", "yes"),
        (exactly(PARAMETERS, "", "", 0.69, at_most=0.75), "−31 % exact", "at least 25 % fewer", "yes"),
        (against(BITS, "", "", (4.6, 4.7, 4.8), at_least=2.0), "4.7× [4.5×, 5.0×]", "at least 2×", "yes"),
        (against(KAPPA, "", "", (0.2, 0.21, 0.19), at_most=0.5), "0.20× [0.18×, 0.23×]", "at most 0.5×", "yes"),
        (against(BITS, "", "", (1.1,), at_least=1.0), "+10.0 % without an interval", "worse", "open"),
        (against(BITS, "", "", (), at_least=1.0), "not measured", "worse", "open"),
        (proved("a power", "", 3.004, at_least=2.0), "3.00 exact", "above 2", "yes"),
    ],
)
def test_effects_and_requirements(comparison, effect, required, answer):
    assert told(comparison)[1:] == (effect, required, answer)


def test_what_decides_nothing_stands_beside():
    one = against(BITS, "", "", CLOSE, at_most=1.0, published=1.25, beside=(("at first", 0.8),), note="a note")
    claim = Claim("X1", "a sentence", "X", "a-study", lambda rows: [one])
    (found,) = judge_claim(claim, "laptop", ROWS).comparisons
    assert beside(found.as_dict()).replace("\u00a0", " ") == "published −20.0 %; at first +25.0 %; a note"


def test_no_line_breaks_a_word_or_a_number():
    text = "accuracy with ≥ 25 % of w512-h8-r128-v64-L6-m1536 " * 3
    for parts in (hanging("L5  HOLDS  ", text), wrapped(text, 40)):
        assert " ".join(" ".join(parts).removeprefix("L5  HOLDS").split()) == text.strip()
        assert all(not part.strip().startswith(("%", "25")) for part in parts)


def block(identity="L5", **more):
    comparisons = [
        against("test error", "thin", "base", CLOSE, at_most=1.03, keys=("a", "b")),
        exactly(PARAMETERS, "thin", "base", 0.69, at_most=0.75),
        against("a metric with a name that is as long as a line can be", "thin", "base", CLOSE, at_least=2.0),
    ]
    claim = Claim(identity, "a claim [bold] " * 9, "X", "s", lambda rows: comparisons, caveat="of many words " * 9)
    return judge_claim(claim, "laptop", ROWS, Remedy("a-study", "paper", 3, 10**20), **more)


def test_a_claim_is_one_block_with_all_its_comparisons():
    lines = details(replace(block(), scale=Scale(("images",), (700, 700), (27_900, 40_600), ("cifar.zip",))))
    assert lines[:3] == [
        "    thin vs base",
        "    test error 0.0 % [−2.0 %, +2.0 %]; required: at most 3 % worse  yes",
        "    parameters −31 % exact; required: at least 25 % fewer  yes",
    ]
    assert lines[3:5] == [
        "    a metric with a name that is as long as a line can be 1.00× [0.98×, 1.0×]",
        "      required: at least 2×  no",
    ]
    assert "4 paired seeds, 2 runs (laptop); images (cifar.zip), 700 steps, 27.9k to 40.6k parameters" in " ".join(
        " ".join(lines).split()
    )
    assert "Caveat: of many words" in " ".join(lines)


@pytest.mark.parametrize("identity", ["L5", "X1", "AB12", "mine"])
def test_any_claim_fits_80_columns(identity):
    text = io.StringIO()
    for part in ledger([block(identity), block(identity, whole=False)]):
        Console(file=text, width=80, highlight=False).print(part)
    lines = text.getvalue().splitlines()
    assert all(len(told) <= 80 for told in lines)
    assert lines[0].startswith(f"{identity:<3} FAILS  a claim [bold] a claim")
    assert any("not all of its cells have runs" in told for told in lines)
