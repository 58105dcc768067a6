"""The two theories, executable: what a rank must cost, and how well many heads are conditioned.

`sphere` holds the harmonics, `bounds` what they certify. The proofs are in docs/reference/theory.md.
"""
