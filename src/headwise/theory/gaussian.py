"""What random matrices predict of the condition number of independent Gaussian entries. No torch here.

marchenko_pastur(tokens=64, columns=1024)                # 1.67
"""

import math

from headwise.spec import SpecError


def marchenko_pastur(tokens: int, columns: int) -> float:
    """The condition number of a large tokens × columns matrix of independent Gaussian entries.

    (√D + √N) / |√D − √N|, the same for the transpose; it errs upwards near a square, where it has no finite value.
    """
    check_sizes(tokens=tokens, columns=columns)
    if tokens == columns:
        raise SpecError(
            f"the prediction has no finite value for a square ({tokens} × {columns}): take another number of columns"
        )
    return (math.sqrt(columns) + math.sqrt(tokens)) / abs(math.sqrt(columns) - math.sqrt(tokens))


def check_sizes(**sizes: int) -> None:
    """Refuse a matrix without rows or columns."""
    for name, size in sizes.items():
        if size < 1:
            raise SpecError(f"{name} is {size}, but must be 1 or more")
