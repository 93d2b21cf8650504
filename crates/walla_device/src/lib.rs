//! The device contract: op vocabulary, buffers, streams, events, graphs, and a registry of devices.
