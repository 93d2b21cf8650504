// walla: targets sm_90a
// WGMMA GEMM for Q5_0 matrices: see gemm_sm90.cuh.
#include "gemm/gemm_sm90.cuh"

GEMM_SM90(gemm_sm90_persistent_q5_0_16, Q5_0, 16, Persistent, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_persistent_q5_0_32, Q5_0, 32, Persistent, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_persistent_q5_0_64, Q5_0, 64, Persistent, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_small_q5_0_16, Q5_0, 16, Persistent, CTA_TILES_SMALL, 2)
GEMM_SM90(gemm_sm90_small_q5_0_32, Q5_0, 32, Persistent, CTA_TILES_SMALL, 2)
GEMM_SM90(gemm_sm90_half_wave_q5_0_32, Q5_0, 32, PersistentHalfWave, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_half_wave_q5_0_64, Q5_0, 64, PersistentHalfWave, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_cluster_q5_0_16, Q5_0, 16, ClusterSplitK, CTA_TILES, 2)
GEMM_SM90(gemm_sm90_cluster_q5_0_32, Q5_0, 32, ClusterSplitK, CTA_TILES, 2)
GEMM_SM90(gemm_sm90_cluster_q5_0_64, Q5_0, 64, ClusterSplitK, CTA_TILES, 2)
GEMM_SM90(gemm_sm90_deferred_q5_0_16, Q5_0, 16, DeferredSplitK, CTA_TILES, 2)
GEMM_SM90(gemm_sm90_deferred_q5_0_32, Q5_0, 32, DeferredSplitK, CTA_TILES, 2)
GEMM_SM90(gemm_sm90_deferred_q5_0_64, Q5_0, 64, DeferredSplitK, CTA_TILES, 2)
GEMM_SM90(gemm_sm90_workspace_q5_0_32, Q5_0, 32, WorkspaceSplitK, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_workspace_q5_0_64, Q5_0, 64, WorkspaceSplitK, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_wide_q5_0_64, Q5_0, 64, Sequential, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_wide_q5_0_128, Q5_0, 128, Sequential, CTA_TILES, 1)
