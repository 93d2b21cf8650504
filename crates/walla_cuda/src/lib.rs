//! The CUDA device: the driver API behind walla's device contract.
