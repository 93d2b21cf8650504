// walla: targets sm_90a
// WGMMA GEMM in clusters, and with deferred split-K, for Q5_1 and Q6_K matrices, one type or both
// in one launch: see gemm_sm90.cuh.
#include "gemm/gemm_sm90.cuh"

GEMM_SM90_PAIR(gemm_sm90_cluster_q5_1_q6_k_16, Q5_1, Q6K, 16, ClusterSplitK)
GEMM_SM90_PAIR(gemm_sm90_cluster_q5_1_q6_k_32, Q5_1, Q6K, 32, ClusterSplitK)
GEMM_SM90_PAIR(gemm_sm90_cluster_q5_1_q6_k_64, Q5_1, Q6K, 64, ClusterSplitK)
GEMM_SM90_PAIR(gemm_sm90_deferred_q5_1_q6_k_16, Q5_1, Q6K, 16, DeferredSplitK)
GEMM_SM90_PAIR(gemm_sm90_deferred_q5_1_q6_k_32, Q5_1, Q6K, 32, DeferredSplitK)
GEMM_SM90_PAIR(gemm_sm90_deferred_q5_1_q6_k_64, Q5_1, Q6K, 64, DeferredSplitK)
