// walla: targets sm_90a
// WGMMA GEMM for F16 matrices: see gemm_sm90.cuh.
#include "gemm/gemm_sm90.cuh"

GEMM_SM90(gemm_sm90_persistent_f16_16, F16, 16, Persistent, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_persistent_f16_32, F16, 32, Persistent, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_persistent_f16_64, F16, 64, Persistent, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_small_f16_16, F16, 16, Persistent, CTA_TILES_SMALL, 2)
GEMM_SM90(gemm_sm90_small_f16_32, F16, 32, Persistent, CTA_TILES_SMALL, 2)
GEMM_SM90(gemm_sm90_half_wave_f16_32, F16, 32, PersistentHalfWave, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_half_wave_f16_64, F16, 64, PersistentHalfWave, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_cluster_f16_16, F16, 16, ClusterSplitK, CTA_TILES, 2)
GEMM_SM90(gemm_sm90_cluster_f16_32, F16, 32, ClusterSplitK, CTA_TILES, 2)
GEMM_SM90(gemm_sm90_cluster_f16_64, F16, 64, ClusterSplitK, CTA_TILES, 2)
GEMM_SM90(gemm_sm90_deferred_f16_16, F16, 16, DeferredSplitK, CTA_TILES, 2)
GEMM_SM90(gemm_sm90_deferred_f16_32, F16, 32, DeferredSplitK, CTA_TILES, 2)
GEMM_SM90(gemm_sm90_deferred_f16_64, F16, 64, DeferredSplitK, CTA_TILES, 2)
GEMM_SM90(gemm_sm90_workspace_f16_64, F16, 64, WorkspaceSplitK, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_wide_f16_64, F16, 64, Sequential, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_wide_f16_128, F16, 128, Sequential, CTA_TILES, 1)
