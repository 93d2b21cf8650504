//! Unpacking of weights, and products, for registers of eight or sixteen weight rows. The enclosing
//! modules give the instructions their names here.

/// Generates `codes`, `factors` and `floats` for one register width. A panel has
/// `16 / $lanes` registers of rows; `lanes` selects one.
macro_rules! unpacking_kernels {
    (
        $features:literal, $lanes:literal, $integers:ident, $floats:ident, $load_bytes:ident,
        $load_halves:ident
    ) => {
        /// Bytes of one register.
        const REGISTER: usize = 4 * $lanes;

        /// Codes of four columns of each of the rows, plus 128 for signed types.
        #[inline]
        #[target_feature(enable = $features)]
        pub(super) fn codes<const TY: u32>(quants: &[u8], lanes: usize, step: usize) -> $integers {
            let ty = of_code(TY);
            let at = lanes * REGISTER;
            match ty {
                TensorType::Q8_0 => return load(quants, step * 64 + at),
                TensorType::Q2K | TensorType::Q3K => {
                    let pair = shift(load(quants, step / 4 * 64 + at), -2 * (step % 4) as i32);
                    let low = and(pair, set_bytes(3));
                    if matches!(ty, TensorType::Q2K) {
                        return low;
                    }
                    let bit = shift(load(quants, 128 + at), 2 - step as i32);
                    return or(low, and(bit, set_bytes(4)));
                }
                _ => {}
            }
            let both = load(quants, step % 4 * 64 + at);
            let shifted = if step < 4 { both } else { shift_right::<4>(both) };
            let low = and(shifted, set_bytes(15));
            match ty {
                TensorType::Q5_0 | TensorType::Q5_1 | TensorType::Q5K => {
                    let bit = shift(load(quants, 256 + at), 4 - step as i32);
                    or(low, and(bit, set_bytes(0x10)))
                }
                TensorType::Q6K => {
                    let pair = load(quants, 256 + step / 4 * 64 + at);
                    let pair = shift(pair, 4 - 2 * (step % 4) as i32);
                    or(low, and(pair, set_bytes(0x30)))
                }
                TensorType::Iq4Nl | TensorType::Iq4Xs | TensorType::Mxfp4 => {
                    let table = const { table::<128>(TY) };
                    let table = broadcast(load_16(&table, 0));
                    shuffle(table, low)
                }
                _ => low,
            }
        }

        /// Shifts the bits of each word left, or right if `left` is negative. Steps are unrolled,
        /// so the distance is a constant.
        #[inline]
        #[target_feature(enable = $features)]
        fn shift(words: $integers, left: i32) -> $integers {
            if left >= 0 {
                shift_words_left(words, distance(left))
            } else {
                shift_words_right(words, distance(-left))
            }
        }

        /// Scale and minimum (including the codes' offset) of a sub-block.
        #[inline]
        #[target_feature(enable = $features)]
        pub(super) fn factors<const TY: u32>(
            side: &[u8],
            lanes: usize,
            sub: usize,
        ) -> ($floats, $floats) {
            let ty = of_code(TY);
            if matches!(ty, TensorType::Mxfp4) {
                return (powers($load_bytes(side, $lanes * lanes)), zeros());
            }
            let d = halves(side, 2 * $lanes * lanes);
            match ty {
                TensorType::Q4_1 | TensorType::Q5_1 => (d, halves(side, 32 + 2 * $lanes * lanes)),
                TensorType::Q4K | TensorType::Q5K => {
                    let scale = $load_bytes(side, 64 + 16 * sub + $lanes * lanes);
                    let min = $load_bytes(side, 192 + 16 * sub + $lanes * lanes);
                    let scale = to_floats(from_bytes(scale));
                    let min = to_floats(from_bytes(min));
                    let min = multiply_each(halves(side, 32 + 2 * $lanes * lanes), min);
                    (multiply_each(d, scale), subtract(set_floats(-0.0), min))
                }
                TensorType::Q2K => {
                    let both = from_bytes($load_bytes(side, 64 + 16 * sub + $lanes * lanes));
                    let scale = to_floats(and(both, set_words(15)));
                    let min = to_floats(shift_right::<4>(both));
                    let min = multiply_each(halves(side, 32 + 2 * $lanes * lanes), min);
                    (multiply_each(d, scale), subtract(set_floats(-0.0), min))
                }
                TensorType::Q3K | TensorType::Q6K | TensorType::Iq4Xs => {
                    let scale = $load_bytes(side, 32 + 16 * sub + $lanes * lanes);
                    let scale = multiply_each(d, to_floats(from_signed_bytes(scale)));
                    let offset = -f32::from(walla_types::blocks::offset(ty));
                    (scale, multiply_each(scale, set_floats(offset)))
                }
                _ => {
                    let offset = -f32::from(walla_types::blocks::offset(ty));
                    (d, multiply_each(d, set_floats(offset)))
                }
            }
        }

        /// f32 products: even columns in one sum, odd columns in another.
        #[inline]
        #[target_feature(enable = $features)]
        fn floats<const TY: u32, const R: usize>(
            panel: &[u8],
            lanes: usize,
            cols: usize,
            x: &[f32],
            out: &mut [[f32; PANEL]],
        ) {
            let x: [&[f32]; R] = rows_of(x, cols, cols);
            let number = const { of_code(TY).block_bytes() };
            let at = lanes * $lanes * number;
            let mut even = [zeros(); R];
            let mut odd = [zeros(); R];
            let pairs = panel[..cols * PANEL * number].chunks_exact(2 * PANEL * number);
            let rest = pairs.remainder();
            for (i, pair) in pairs.enumerate() {
                if lanes == 0 {
                    prefetch(pair, 0, 2 * PANEL * number);
                }
                let (first, second) =
                    (weights::<TY>(pair, at), weights::<TY>(pair, PANEL * number + at));
                for r in 0..R {
                    let x = &x[r][2 * i..2 * i + 2];
                    even[r] = multiply_add(first, set_floats(x[0]), even[r]);
                    odd[r] = multiply_add(second, set_floats(x[1]), odd[r]);
                }
            }
            if !rest.is_empty() {
                let last = weights::<TY>(rest, at);
                for r in 0..R {
                    even[r] = multiply_add(last, set_floats(x[r][cols - 1]), even[r]);
                }
            }
            for r in 0..R {
                store(&mut out[r], lanes, add_each(even[r], odd[r]));
            }
        }

        /// One column of the rows.
        #[inline]
        #[target_feature(enable = $features)]
        fn weights<const TY: u32>(bytes: &[u8], at: usize) -> $floats {
            match of_code(TY) {
                TensorType::F16 => halves(bytes, at),
                TensorType::BF16 => {
                    let bits = from_halves($load_halves(bytes, at));
                    as_floats(shift_left::<16>(bits))
                }
                _ => as_floats(load(bytes, at)),
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn halves(bytes: &[u8], at: usize) -> $floats {
            halves_to_floats($load_halves(bytes, at))
        }

        #[inline]
        #[expect(unsafe_code, reason = "loads take pointers")]
        #[target_feature(enable = $features)]
        fn load(bytes: &[u8], at: usize) -> $integers {
            let part = &bytes[at..at + REGISTER];
            // SAFETY: `part` has the bytes of a register; the load needs no alignment.
            unsafe { load_integers(part.as_ptr().cast()) }
        }

        #[inline]
        #[expect(unsafe_code, reason = "stores take pointers")]
        #[target_feature(enable = $features)]
        pub(super) fn store(out: &mut [f32; PANEL], lanes: usize, value: $floats) {
            let part = &mut out[lanes * $lanes..(lanes + 1) * $lanes];
            // SAFETY: `part` has the numbers of a register; the store needs no alignment.
            unsafe { store_floats(part.as_mut_ptr(), value) }
        }
    };
}
pub(super) use unpacking_kernels;

/// Generates `multiply_floats` for registers of eight rows.
macro_rules! float_kernel {
    ($features:literal) => {
        /// Products of a panel of floats: four rows and 8 lanes at a time.
        #[target_feature(enable = $features)]
        pub(super) fn multiply_floats(
            ty: TensorType,
            panel: &[u8],
            input: Input<'_>,
            out: &mut Products,
        ) {
            let (cols, rows) = (input.cols, input.rows());
            for first in (0..rows).step_by(4) {
                let count = (rows - first).min(4);
                for lanes in 0..2 {
                    let x = &input.values[first * cols..];
                    by_type_and_rows!(
                        floats,
                        [F32, F16, BF16],
                        ty,
                        count,
                        4,
                        (panel, lanes, cols, x, &mut out[first..])
                    );
                }
            }
        }
    };
}
pub(super) use float_kernel;

/// Generates `multiply_quantized` for registers of eight rows. It calls the `dots` of the enclosing
/// module.
macro_rules! quantized_kernel {
    ($features:literal) => {
        /// Products of a quantised panel: blocks of rows, and 8 lanes at a time.
        #[inline]
        #[target_feature(enable = $features)]
        fn multiply_quantized(ty: TensorType, panel: &[u8], input: Input<'_>, out: &mut Products) {
            let (cols, rows) = (input.cols, input.rows());
            let mut first = 0;
            while first < rows {
                let count = block_of(rows - first);
                for lanes in 0..2 {
                    let x = Rows { groups: input.groups, all: rows, first };
                    by_type_and_rows!(
                        quantized,
                        [
                            Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4K, Q5K, Q6K, Q2K, Q3K, Iq4Nl, Iq4Xs,
                            Mxfp4
                        ],
                        ty,
                        count,
                        blocks,
                        (panel, lanes, cols, x, &mut out[first..])
                    );
                }
                first += count;
            }
        }

        /// Integer dot products group by group.
        #[inline]
        #[target_feature(enable = $features)]
        fn quantized<const TY: u32, const R: usize>(
            panel: &[u8],
            lanes: usize,
            cols: usize,
            x: Rows<'_>,
            out: &mut [[f32; PANEL]],
        ) {
            let format = const { Format::of(of_code(TY)) };
            let layout = Layout::new(of_code(TY), cols);
            let (side, quants) = panel.split_at(layout.quants_at);
            let share = const { Format::of(of_code(TY)).group_bytes() };
            let mut acc = [zeros(); R];
            for (group, quants) in quants.chunks_exact(format.quants).enumerate() {
                if lanes == 0 {
                    prefetch(panel, group * share, share);
                }
                let (block, g) = (group / format.groups, group % format.groups);
                let side = &side[block * format.side..(block + 1) * format.side];
                let Some(x) = x.groups[group * x.all + x.first..].first_chunk::<R>() else {
                    return;
                };
                if const { has_halves(TY) } {
                    for half in 0..2 {
                        let (scale, minimum) = factors::<TY>(side, lanes, 2 * g + half);
                        let dot = dots::<TY, R>(quants, lanes, x, 4 * half);
                        for r in 0..R {
                            let sum = set_floats(x[r].halves[half]);
                            let product = multiply_each(dot[r], set_floats(x[r].scale));
                            acc[r] = multiply_add(scale, product, acc[r]);
                            acc[r] = multiply_add(minimum, sum, acc[r]);
                        }
                    }
                } else {
                    let (scale, minimum) = factors::<TY>(side, lanes, g);
                    let dot = dots::<TY, R>(quants, lanes, x, 0);
                    for r in 0..R {
                        let product = multiply_each(dot[r], set_floats(x[r].scale));
                        acc[r] = multiply_add(scale, product, acc[r]);
                        if const { !is_signed(TY) } {
                            acc[r] = multiply_add(minimum, set_floats(x[r].sum), acc[r]);
                        }
                    }
                }
            }
            for r in 0..R {
                store(&mut out[r], lanes, acc[r]);
            }
        }
    };
}
pub(super) use quantized_kernel;
