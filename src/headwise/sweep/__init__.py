"""Many runs: planned first, then done in processes of this machine or on a Ray cluster, each of them once."""
