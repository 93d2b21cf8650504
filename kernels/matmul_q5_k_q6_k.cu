// Products of few rows with Q5K and Q6K matrices in one launch: see few.cuh.
#include "few.cuh"

FEW_PAIR(Q5K, q5_k, Q6K, q6_k)
