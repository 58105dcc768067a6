"""Kernels for a processor: C++ that is compiled for one size, and the Python that calls it."""
