"""Golden values of the theory, and generated sizes."""

import json
from pathlib import Path

from hypothesis import strategies as st

from headwise.theory.bounds import free_bound, scalar_bound

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "theory.json").read_text())
BOUNDS = {"scalar": scalar_bound, "free": free_bound}


def golden(name):
    return [(*(json.loads(part) for part in key.split(",")), value) for key, value in GOLDEN[name].items()]


@st.composite
def cells(draw, most=24):
    dim = draw(st.integers(2, most))
    return dim, draw(st.integers(1, dim)), draw(st.integers(1, 6) | st.integers(1, 10**6))
