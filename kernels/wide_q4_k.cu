// walla: targets sm_90a
// matmul by warpgroups for Q4K matrices: see wide.cuh.
#include "wide.cuh"

WIDES(Q4K, q4_k)
