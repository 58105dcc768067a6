"""The attention layer, its cache and its kernels."""
