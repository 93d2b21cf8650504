//! Attention over f16 pages, several query heads at a time.
//!
//! Scores: lanes are cells, so a score is one chain of operations over the dimensions of the head.
//! Values: lanes are dimensions, so an output number is one chain over the cells. Neither chain
//! depends on the number of queries that are computed together.

/// Numbers of f16 in a cache line.
const LINE: usize = 32;

/// Generates `scores` and `values` for one register width.
///
/// A register holds `$lanes` numbers, and `$sums` registers can hold sums; `$halves` loads a
/// register of f16.
macro_rules! attention_kernels {
    (
        $features:literal, $lanes:literal, $sums:literal, $zero:ident, $set1:ident, $fmadd:ident,
        $halves:ident
    ) => {
        /// `out[q][c] = sum_d queries[q][d] * keys[d][c]` for `cells` cells (a multiple of 16) of a
        /// page. `keys` is `[dim, stride]`; the row stride of `out` is `width`.
        #[target_feature(enable = $features)]
        pub(crate) fn scores(page: &crate::operands::Scores<'_>, out: &mut [f32]) {
            let count = page.queries.len() / page.dim;
            for first in (0..count).step_by(4) {
                let queries = &page.queries[first * page.dim..];
                let out = &mut out[first * page.width..];
                match count - first {
                    1 => some_scores::<1>(page, queries, out),
                    2 => some_scores::<2>(page, queries, out),
                    3 => some_scores::<3>(page, queries, out),
                    _ => some_scores::<4>(page, queries, out),
                }
            }
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn some_scores<const Q: usize>(
            page: &crate::operands::Scores<'_>,
            queries: &[f32],
            out: &mut [f32],
        ) {
            const BLOCK: usize = 2 * $lanes;
            let queries: [&[f32]; Q] = crate::simd::rows_of(queries, page.dim, page.dim);
            let mut cell = 0;
            while cell < page.cells {
                // Two registers of cells, or one at the end: the chains are the same.
                let both = cell + BLOCK <= page.cells;
                let line = cell.is_multiple_of(LINE);
                let mut sums = [[$zero(); 2]; Q];
                for d in 0..page.dim {
                    let keys = &page.keys[d * page.stride + cell..];
                    let keys = &keys[..if both { BLOCK } else { $lanes }];
                    let first = $halves(keys, 0);
                    let second = if both { $halves(keys, $lanes) } else { first };
                    if line {
                        prefetch_number(page.next, d * page.stride + cell);
                    }
                    for q in 0..Q {
                        let query = $set1(queries[q][d]);
                        sums[q][0] = $fmadd(first, query, sums[q][0]);
                        sums[q][1] = $fmadd(second, query, sums[q][1]);
                    }
                }
                for q in 0..Q {
                    store(&mut out[q * page.width + cell..], sums[q][0]);
                    if both {
                        store(&mut out[q * page.width + cell + $lanes..], sums[q][1]);
                    }
                }
                cell += if both { BLOCK } else { $lanes };
            }
        }

        /// `out[q][d] += sum_c weights[q][c] * values[c][d]` for `cells` cells of a page. The row
        /// stride of `weights` is `width`; `dim` is a multiple of 16.
        #[target_feature(enable = $features)]
        pub(crate) fn values(page: &crate::operands::Values<'_>, out: &mut [f32]) {
            let count = out.len() / page.dim;
            for first in (0..count).step_by(4) {
                let weights = &page.weights[first * page.width..];
                let out = &mut out[first * page.dim..];
                match count - first {
                    1 => some_values::<1>(page, weights, out),
                    2 => some_values::<2>(page, weights, out),
                    3 => some_values::<3>(page, weights, out),
                    _ => some_values::<4>(page, weights, out),
                }
            }
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn some_values<const Q: usize>(
            page: &crate::operands::Values<'_>,
            weights: &[f32],
            out: &mut [f32],
        ) {
            let mut d = 0;
            while d < page.dim {
                // Up to four registers of numbers at once, if the sums fit into registers: each
                // number is a separate chain in all cases.
                let count = match (page.dim - d) / $lanes {
                    1 => 1,
                    2 | 3 => 2,
                    _ => const { if 4 * Q <= $sums { 4 } else { 2 } },
                };
                match count {
                    1 => block_of_values::<Q, 1>(page, weights, d, out),
                    2 => block_of_values::<Q, 2>(page, weights, d, out),
                    _ => block_of_values::<Q, 4>(page, weights, d, out),
                }
                d += count * $lanes;
            }
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn block_of_values<const Q: usize, const N: usize>(
            page: &crate::operands::Values<'_>,
            weights: &[f32],
            d: usize,
            out: &mut [f32],
        ) {
            let weights: [&[f32]; Q] = crate::simd::rows_of(weights, page.width, page.cells);
            let line = N * $lanes >= LINE || d.is_multiple_of(LINE);
            let mut sums = [[$zero(); N]; Q];
            for q in 0..Q {
                for n in 0..N {
                    sums[q][n] = load(&out[q * page.dim + d + n * $lanes..]);
                }
            }
            for c in 0..page.cells {
                let at = c * page.dim + d;
                let values = &page.values[at..][..N * $lanes];
                if line {
                    for first in (0..N * $lanes).step_by(LINE) {
                        prefetch_number(page.next, at + first);
                    }
                }
                for n in 0..N {
                    let numbers = $halves(values, n * $lanes);
                    for q in 0..Q {
                        sums[q][n] = $fmadd(numbers, $set1(weights[q][c]), sums[q][n]);
                    }
                }
            }
            for q in 0..Q {
                for n in 0..N {
                    store(&mut out[q * page.dim + d + n * $lanes..], sums[q][n]);
                }
            }
        }
    };
}

/// Prefetches the line of number `at` of the next page. Pages are not contiguous, so the hardware
/// prefetcher cannot predict it.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "sse"))]
fn prefetch_number(next: &[u16], at: usize) {
    super::prefetch_line(next.as_ptr().wrapping_add(at).cast());
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512 {
    use std::arch::x86_64::*;

    use super::{LINE, prefetch_number};

    attention_kernels!(
        "avx512f,avx512bw,avx512vl,avx2,fma,f16c",
        16,
        16,
        _mm512_setzero_ps,
        _mm512_set1_ps,
        _mm512_fmadd_ps,
        halves
    );

    #[target_feature(enable = "avx512f,avx2,f16c")]
    #[inline]
    #[expect(unsafe_code, reason = "loads take pointers")]
    fn halves(numbers: &[u16], at: usize) -> __m512 {
        let part = &numbers[at..at + 16];
        // SAFETY: `part` is 32 bytes; the load needs no alignment.
        let bits = unsafe { _mm256_loadu_si256(part.as_ptr().cast()) };
        _mm512_cvtph_ps(bits)
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    #[expect(unsafe_code, reason = "loads take pointers")]
    fn load(numbers: &[f32]) -> __m512 {
        let part = &numbers[..16];
        // SAFETY: `part` is 16 numbers; the load needs no alignment.
        unsafe { _mm512_loadu_ps(part.as_ptr()) }
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    #[expect(unsafe_code, reason = "stores take pointers")]
    fn store(numbers: &mut [f32], value: __m512) {
        let part = &mut numbers[..16];
        // SAFETY: `part` is 16 numbers; the store needs no alignment.
        unsafe { _mm512_storeu_ps(part.as_mut_ptr(), value) }
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2 {
    use std::arch::x86_64::*;

    use super::{LINE, prefetch_number};

    attention_kernels!(
        "avx2,fma,f16c",
        8,
        8,
        _mm256_setzero_ps,
        _mm256_set1_ps,
        _mm256_fmadd_ps,
        halves
    );

    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    #[expect(unsafe_code, reason = "loads take pointers")]
    fn halves(numbers: &[u16], at: usize) -> __m256 {
        let part = &numbers[at..at + 8];
        // SAFETY: `part` is 16 bytes; the load needs no alignment.
        let bits = unsafe { _mm_loadu_si128(part.as_ptr().cast()) };
        _mm256_cvtph_ps(bits)
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    #[expect(unsafe_code, reason = "loads take pointers")]
    fn load(numbers: &[f32]) -> __m256 {
        let part = &numbers[..8];
        // SAFETY: `part` is 8 numbers; the load needs no alignment.
        unsafe { _mm256_loadu_ps(part.as_ptr()) }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    #[expect(unsafe_code, reason = "stores take pointers")]
    fn store(numbers: &mut [f32], value: __m256) {
        let part = &mut numbers[..8];
        // SAFETY: `part` is 8 numbers; the store needs no alignment.
        unsafe { _mm256_storeu_ps(part.as_mut_ptr(), value) }
    }
}

#[cfg(target_arch = "aarch64")]
pub(crate) mod neon {
    use std::arch::aarch64::*;

    use super::{LINE, prefetch_number};
    use crate::simd::neon::{halves_to_floats, multiply_add, set_floats, zeros};

    attention_kernels!("neon", 8, 8, zeros, set_floats, multiply_add, halves);

    #[target_feature(enable = "neon")]
    #[inline]
    #[expect(unsafe_code, reason = "loads take pointers")]
    fn halves(numbers: &[u16], at: usize) -> float32x4x2_t {
        let part = &numbers[at..at + 8];
        // SAFETY: `part` is 8 numbers.
        let bits = unsafe { vld1q_u16(part.as_ptr()) };
        halves_to_floats(bits)
    }

    #[target_feature(enable = "neon")]
    #[inline]
    #[expect(unsafe_code, reason = "loads take pointers")]
    fn load(numbers: &[f32]) -> float32x4x2_t {
        let part = &numbers[..8];
        // SAFETY: `part` is 8 numbers.
        unsafe { vld1q_f32_x2(part.as_ptr()) }
    }

    #[target_feature(enable = "neon")]
    #[inline]
    #[expect(unsafe_code, reason = "stores take pointers")]
    fn store(numbers: &mut [f32], value: float32x4x2_t) {
        let part = &mut numbers[..8];
        // SAFETY: `part` is 8 numbers.
        unsafe { vst1q_f32_x2(part.as_mut_ptr(), value) }
    }
}
