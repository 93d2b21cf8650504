// walla: targets sm_90a
// matmul by warpgroups for Q5K matrices: see wide.cuh.
#include "wide.cuh"

WIDES(Q5K, q5_k)
