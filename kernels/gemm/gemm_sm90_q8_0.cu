// walla: targets sm_90a
// WGMMA GEMM for Q8_0 matrices: see gemm_sm90.cuh.
#include "gemm/gemm_sm90.cuh"

GEMM_SM90(gemm_sm90_persistent_q8_0_16, Q8_0, 16, Persistent, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_persistent_q8_0_32, Q8_0, 32, Persistent, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_persistent_q8_0_64, Q8_0, 64, Persistent, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_small_q8_0_16, Q8_0, 16, Persistent, CTA_TILES_SMALL, 2)
GEMM_SM90(gemm_sm90_small_q8_0_32, Q8_0, 32, Persistent, CTA_TILES_SMALL, 2)
GEMM_SM90(gemm_sm90_half_wave_q8_0_32, Q8_0, 32, PersistentHalfWave, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_half_wave_q8_0_64, Q8_0, 64, PersistentHalfWave, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_cluster_q8_0_16, Q8_0, 16, ClusterSplitK, CTA_TILES, 2)
GEMM_SM90(gemm_sm90_cluster_q8_0_32, Q8_0, 32, ClusterSplitK, CTA_TILES, 2)
GEMM_SM90(gemm_sm90_cluster_q8_0_64, Q8_0, 64, ClusterSplitK, CTA_TILES, 2)
GEMM_SM90(gemm_sm90_deferred_q8_0_16, Q8_0, 16, DeferredSplitK, CTA_TILES, 2)
GEMM_SM90(gemm_sm90_deferred_q8_0_32, Q8_0, 32, DeferredSplitK, CTA_TILES, 2)
GEMM_SM90(gemm_sm90_deferred_q8_0_64, Q8_0, 64, DeferredSplitK, CTA_TILES, 2)
GEMM_SM90(gemm_sm90_workspace_q8_0_64, Q8_0, 64, WorkspaceSplitK, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_wide_q8_0_64, Q8_0, 64, Sequential, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_wide_q8_0_128, Q8_0, 128, Sequential, CTA_TILES, 1)
