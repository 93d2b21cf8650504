// Products of F32 matrices: formula, shapes, grid, bound and oracle in linear.cuh.
#include "gemm/linear.cuh"

LINEAR(linear_f32_1, F32, 1)
LINEAR(linear_f32_2, F32, 2)
LINEAR(linear_f32_4, F32, 4)
LINEAR(linear_f32_8, F32, 8)
