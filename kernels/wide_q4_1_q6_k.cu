// walla: targets sm_90a
// Products by clusters of warpgroups with Q4_1 and Q6K matrices, of either or of both in one launch: see wide.cuh.
#include "wide.cuh"

WIDE_PAIRS(Q4_1, q4_1, Q6K, q6_k)
