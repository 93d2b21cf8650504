//! Runs one plan on one device: forward programs, the KV cache, the graph cache and the output ring.
