// walla: targets sm_90a
// WGMMA GEMM in clusters, and with splits left to the consumer, for Q4_1 and Q6_K matrices, one
// type or both in one launch: see gemm_sm90.cuh.
#include "gemm/gemm_sm90.cuh"

WIDE_PAIRS(Q4_1, q4_1, Q6K, q6_k)
