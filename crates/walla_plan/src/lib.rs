//! Pure planning: batches, micro-batches, the output map, the KV ledger and the frame plan.
