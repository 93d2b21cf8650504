//! Matrix fragments of a warp. Source of the layouts: the PTX manual, "Matrix fragments for
//! mma.m16n8k16" and "ldmatrix".

/// A 32-bit register of all lanes.
pub(super) type Lanes = [u32; 32];

/// Builds a number per lane.
#[inline(always)]
pub(super) fn lanes<T: Copy + Default>(of: impl Fn(usize) -> T) -> [T; 32] {
    let mut all = [T::default(); 32];
    for (lane, to) in all.iter_mut().enumerate() {
        *to = of(lane);
    }
    all
}

/// Exact, and branch-free, so that it vectorises.
#[inline(always)]
pub(super) fn half_to_float(bits: u32) -> f32 {
    let magnitude = f32::from_bits((bits & 0x7FFF) << 13) * f32::from_bits(0x7780_0000); // 2^112
    let special = if bits & 0x7C00 == 0x7C00 { 0x7F80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | (bits & 0x8000) << 16)
}

/// `a b + c` for 16 rows, 8 columns and a depth of 8 or 16: halves in, floats out. Sums start at
/// the lowest depth, one fma each.
#[inline(always)]
pub(super) fn multiply(depth: usize, a: &[Lanes; 4], b: &[Lanes; 2], c: &[Lanes; 4]) -> [Lanes; 4] {
    let mut rows = [[0.0_f32; 16]; 16];
    let mut columns = [[0.0_f32; 8]; 16];
    let mut sums = [[0.0_f32; 8]; 16];
    for lane in 0..32 {
        let (group, pair) = (lane / 4, 2 * (lane % 4));
        for (i, register) in a.iter().enumerate().take(depth / 4) {
            let (row, k) = (group + 8 * (i % 2), pair + 8 * (i / 2));
            rows[row][k] = half_to_float(register[lane]);
            rows[row][k + 1] = half_to_float(register[lane] >> 16);
        }
        for (i, register) in b.iter().enumerate().take(depth / 8) {
            let k = pair + 8 * i;
            columns[k][group] = half_to_float(register[lane]);
            columns[k + 1][group] = half_to_float(register[lane] >> 16);
        }
        for (i, register) in c.iter().enumerate() {
            sums[group + 8 * (i / 2)][pair + i % 2] = f32::from_bits(register[lane]);
        }
    }
    for (row, sums) in rows.iter().zip(&mut sums) {
        for (of_row, of_column) in row.iter().zip(&columns).take(depth) {
            for (sum, number) in sums.iter_mut().zip(of_column) {
                *sum = of_row.mul_add(*number, *sum);
            }
        }
    }
    let mut out = [[0; 32]; 4];
    for lane in 0..32 {
        let (group, pair) = (lane / 4, 2 * (lane % 4));
        for (i, register) in out.iter_mut().enumerate() {
            register[lane] = sums[group + 8 * (i / 2)][pair + i % 2].to_bits();
        }
    }
    out
}

/// Fragment of an 8 x 8 matrix of halves given by rows: each lane has two neighbours of a row, or
/// of a column.
pub(super) fn spread(matrix: &[[u16; 8]; 8], is_transposed: bool) -> Lanes {
    lanes(|lane| {
        let (row, pair) = (lane / 4, 2 * (lane % 4));
        let (low, high) = if is_transposed {
            (matrix[pair][row], matrix[pair + 1][row])
        } else {
            (matrix[row][pair], matrix[row][pair + 1])
        };
        u32::from(low) | u32::from(high) << 16
    })
}

/// The matrix of a fragment, by rows.
pub(super) fn gather(lanes: &Lanes) -> [[u16; 8]; 8] {
    std::array::from_fn(|row| {
        std::array::from_fn(|column| (lanes[4 * row + column / 2] >> (16 * (column % 2))) as u16)
    })
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn f16_converts_to_f32() {
        for bits in 0..=u16::MAX {
            let (found, expected) = (half_to_float(bits.into()), f16::from_bits(bits).to_f32());
            assert!(found == expected || found.is_nan() && expected.is_nan(), "{bits:x}");
        }
    }

    #[test]
    fn a_product_is_the_sum_of_products() {
        let half = |x: usize| u32::from(f16::from_f32(x as f32).to_bits());
        let (row, column) =
            (|r: usize, k: usize| (r + 2 * k) % 7, |k: usize, n: usize| (3 * k + n) % 5);
        let lanes = |f: &dyn Fn(usize, usize) -> u32| -> Lanes {
            std::array::from_fn(|l| f(l / 4, 2 * (l % 4)))
        };
        let pair = |low: usize, high: usize| half(low) | half(high) << 16;
        let a = std::array::from_fn(|i| {
            lanes(&|g, p| {
                let (r, k) = (g + 8 * (i % 2), p + 8 * (i / 2));
                pair(row(r, k), row(r, k + 1))
            })
        });
        let b = std::array::from_fn(|i| {
            lanes(&|g, p| pair(column(p + 8 * i, g), column(p + 8 * i + 1, g)))
        });
        for depth in [8, 16] {
            let out = multiply(depth, &a, &b, &[[1.0_f32.to_bits(); 32]; 4]);
            for (lane, i) in (0..32).flat_map(|lane| (0..4).map(move |i| (lane, i))) {
                let (r, n) = (lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2);
                let expected: usize =
                    1 + (0..depth).map(|k| row(r, k) * column(k, n)).sum::<usize>();
                assert_eq!(f32::from_bits(out[i][lane]), expected as f32);
            }
        }
    }

    #[test]
    fn a_matrix_is_distributed_and_gathered() {
        let matrix: [[u16; 8]; 8] =
            std::array::from_fn(|r| std::array::from_fn(|c| (8 * r + c) as u16));
        assert_eq!(gather(&spread(&matrix, false)), matrix);
        let turned = gather(&spread(&matrix, true));
        assert_eq!(turned[2][5], matrix[5][2]);
    }
}
