"""A claim judged as if its runs could tell: what its comparisons say in an invented world."""

from dataclasses import replace

from headwise.ledger.claims import Claim
from headwise.ledger.judge import Judgement, judge_claim
from headwise.store.rows import Row


def judge_testable(claim: Claim, preset: str, rows: list[Row]) -> Judgement:
    return judge_claim(replace(claim, untestable=""), preset, rows)
