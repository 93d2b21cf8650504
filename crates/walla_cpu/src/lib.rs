//! The CPU device: streams, events and replayable programs over scored SIMD kernel variants.
