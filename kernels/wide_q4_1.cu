// walla: targets sm_90a
// matmul by warpgroups for Q4_1 matrices: see wide.cuh.
#include "wide.cuh"

WIDES_BUT_CLUSTERS(Q4_1, q4_1)
