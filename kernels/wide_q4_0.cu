// walla: targets sm_90a
// matmul by warpgroups for Q4_0 matrices: see wide.cuh.
#include "wide.cuh"

WIDES(Q4_0, q4_0)
