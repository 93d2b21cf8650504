// walla: targets sm_90a
// WGMMA GEMM for Q5_1 matrices: see gemm_sm90.cuh.
#include "gemm/gemm_sm90.cuh"

GEMM_SM90(gemm_sm90_persistent_q5_1_16, Q5_1, 16, Persistent, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_persistent_q5_1_32, Q5_1, 32, Persistent, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_persistent_q5_1_64, Q5_1, 64, Persistent, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_small_q5_1_16, Q5_1, 16, Persistent, CTA_TILES_SMALL, 2)
GEMM_SM90(gemm_sm90_small_q5_1_32, Q5_1, 32, Persistent, CTA_TILES_SMALL, 2)
GEMM_SM90(gemm_sm90_half_wave_q5_1_32, Q5_1, 32, PersistentHalfWave, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_half_wave_q5_1_64, Q5_1, 64, PersistentHalfWave, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_workspace_q5_1_32, Q5_1, 32, WorkspaceSplitK, CTA_TILES, 1)
GEMM_SM90(gemm_sm90_workspace_q5_1_64, Q5_1, 64, WorkspaceSplitK, CTA_TILES, 1)
