// walla: targets sm_90a
// WGMMA GEMM for Q6_K matrices: see gemm_sm90.cuh.
#include "gemm/gemm_sm90.cuh"

GEMM_SM90(gemm_sm90_persistent_q6_k_16, Q6K, 16, Persistent, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_persistent_q6_k_32, Q6K, 32, Persistent, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_persistent_q6_k_64, Q6K, 64, Persistent, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_small_q6_k_16, Q6K, 16, Persistent, CTA_TILES_SMALL, 2)
GEMM_SM90(gemm_sm90_small_q6_k_32, Q6K, 32, Persistent, CTA_TILES_SMALL, 2)
GEMM_SM90(gemm_sm90_half_wave_q6_k_32, Q6K, 32, PersistentHalfWave, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_half_wave_q6_k_64, Q6K, 64, PersistentHalfWave, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_workspace_q6_k_32, Q6K, 32, WorkspaceSplitK, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_workspace_q6_k_64, Q6K, 64, WorkspaceSplitK, CTA_TILES, 1)
