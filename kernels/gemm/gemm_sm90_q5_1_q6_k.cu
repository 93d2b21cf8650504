// walla: targets sm_90a
// WGMMA GEMM in clusters, and with deferred split-K, for Q5_1 and Q6_K matrices, one type or both
// in one launch: see gemm_sm90.cuh.
#include "gemm/gemm_sm90.cuh"

GEMM_SM90_PAIR(gemm_sm90_cluster_q5_1_q6_k_16, Q5_1, Q6K, 16, ClusterSplitK, 2)
GEMM_SM90_PAIR(gemm_sm90_cluster_q5_1_q6_k_32, Q5_1, Q6K, 32, ClusterSplitK, 2)
GEMM_SM90_PAIR(gemm_sm90_cluster_q5_1_q6_k_64, Q5_1, Q6K, 64, ClusterSplitK, 2)
GEMM_SM90_PAIR(gemm_sm90_deferred_q5_1_q6_k_16, Q5_1, Q6K, 16, DeferredSplitK, 2)
GEMM_SM90_PAIR(gemm_sm90_deferred_q5_1_q6_k_32, Q5_1, Q6K, 32, DeferredSplitK, 2)
GEMM_SM90_PAIR(gemm_sm90_deferred_q5_1_q6_k_64, Q5_1, Q6K, 64, DeferredSplitK, 2)
GEMM_SM90_PAIR(gemm_sm90_wide_q5_1_q6_k_64, Q5_1, Q6K, 64, Sequential, 1)
GEMM_SM90_PAIR(gemm_sm90_wide_q5_1_q6_k_128, Q5_1, Q6K, 128, Sequential, 1)
