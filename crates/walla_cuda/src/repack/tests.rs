use super::*;

const COLS: usize = 512;
const ROW: usize = 11;

/// Row [`ROW`] of a tile, in which every byte differs from its neighbours, and the repacked tile.
fn repacked(ty: TensorType) -> (Vec<u8>, Layout, Vec<u8>) {
    let bytes = ty.row_bytes(COLS).unwrap();
    let row: Vec<u8> = (0..bytes).map(|i| (i * 37 + i / 7 + 11) as u8).collect();
    let layout = Layout::of(ty, COLS).unwrap();
    let mut bytes = vec![0; layout.tile_bytes()];
    Tile { ty, layout: &layout, scaling: SCALING, bytes: &mut bytes }.put_row(ROW, &row);
    (row, layout, bytes)
}

const SCALING: Scaling = Scaling { stored: 0.25, found: 4.0 / INTEGER_UNIT };

/// A scale, or a scale and a minimum, in the form that [`repacked`] stores.
fn stored(factors: &[u8]) -> Vec<u8> {
    let times = [0.25, 0.25 / 16.0];
    let store = |(from, times): (&[u8], f32)| {
        half::f16::from_f32(half::f16::from_le_bytes([from[0], from[1]]).to_f32() * times)
    };
    factors.chunks_exact(2).zip(times).flat_map(|factor| store(factor).to_le_bytes()).collect()
}

/// Segment, lane and index in the lane's 32 numbers, for number `i` of a row.
fn lane_of(i: usize) -> (usize, usize, usize) {
    let within = i % 128 / 32 * 8 + i % 32 / 16 * 4 + i % 4;
    (i / 128, lane(ROW, i % 16 / 4), within)
}

/// `count` bytes of a part, from byte `at` in the record of number `i`.
fn part(layout: &Layout, tile: &[u8], part: Part, i: usize, at: usize, count: usize) -> Vec<u8> {
    tile[layout.place(part, ROW, i / 128, at)..][..count].to_vec()
}

/// The integer of number `i`, decoded as in a kernel.
fn code(ty: TensorType, layout: &Layout, tile: &[u8], i: usize) -> u8 {
    let (_, lane, within) = lane_of(i);
    let nibble = NIBBLES.iter().position(|n| *n == within % 8).unwrap();
    let at = lane * 16 + within / 8 * 4 + nibble / 2;
    let low = part(layout, tile, Part::Quants, i, at, 1)[0] >> (nibble % 2 * 4) & 15;
    let bits = |bytes: usize| {
        let mut word = [0; 8];
        word[..bytes].copy_from_slice(&part(layout, tile, Part::High, i, lane * bytes, bytes));
        u64::from_le_bytes(word)
    };
    match stored_as(ty) {
        TensorType::Q5_0 | TensorType::Q5_1 => {
            let pair = within / 2;
            let place = pair / 8 * 8 + pair % 2 * 4 + pair % 8 / 2;
            low | ((bits(4) >> (place + 16 * (within % 2)) & 1) as u8) << 4
        }
        TensorType::Q6K => {
            let pair = within % 16 / 2;
            let place = pair / 4 * 8 + pair % 2 * 4 + pair % 4 / 2 * 2;
            let at = within / 16 * 32 + place + 16 * (within % 2);
            low | ((bits(8) >> at & 3) as u8) << 4
        }
        _ => low,
    }
}

/// The scales of the block of number `i`.
fn scales(layout: &Layout, tile: &[u8], i: usize, bytes: usize) -> Vec<u8> {
    let at = (ROW % RECORD_ROWS * 4 + i / 32 % 4) * bytes;
    part(layout, tile, Part::Scales, i, at, bytes)
}

#[test]
fn record_sizes_match_the_kernels() {
    let expected = [
        (TensorType::F32, 4096),
        (TensorType::F16, 2048),
        (TensorType::BF16, 2048),
        (TensorType::Q8_0, 1088),
        (TensorType::Q4_0, 576),
        (TensorType::Q4_1, 640),
        (TensorType::Q5_0, 704),
        (TensorType::Q5_1, 768),
        (TensorType::Q4K, 640),
        (TensorType::Q5K, 768),
        (TensorType::Q6K, 848),
        (TensorType::Q3K, 848),
        (TensorType::Q2K, 1088),
        (TensorType::Iq4Nl, 1088),
        (TensorType::Iq4Xs, 1088),
        (TensorType::Mxfp4, 704),
    ];
    for (ty, bytes) in expected {
        let layout = Layout::of(ty, COLS).unwrap();
        assert_eq!(layout.record_bytes(), bytes, "{ty}");
        // Bulk copies and whole 16-byte pieces.
        assert_eq!(bytes % 16, 0, "{ty}");
        assert_eq!(layout.tile_bytes(), 8 * bytes, "{ty}");
    }
    assert_eq!(Layout::of(TensorType::F16, 33).unwrap().segments, 1);
    assert_eq!(Layout::of(TensorType::Q4K, 128), None);
}

#[test]
fn every_element_of_a_row_has_a_unique_position() {
    let mut places: Vec<_> = (0..COLS).map(lane_of).collect();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), COLS);
    let mut numbers: Vec<_> = (0..4).flat_map(owned).collect();
    numbers.sort_unstable();
    assert!(numbers.iter().enumerate().all(|(i, number)| i == *number));
}

#[test]
fn unquantized_values_are_stored_in_pieces_of_16_bytes() {
    for (ty, size) in [(TensorType::F16, 2), (TensorType::F32, 4)] {
        let (row, layout, tile) = repacked(ty);
        for i in 0..COLS {
            let (_, lane, within) = lane_of(i);
            let at = (within * size / 16 * 32 + lane) * 16 + within * size % 16;
            let found = part(&layout, &tile, Part::Quants, i, at, size);
            assert_eq!(found, row[size * i..size * (i + 1)], "{ty}, {i}");
        }
    }
}

#[test]
fn bf16_converts_to_f16_without_loss() {
    let numbers: Vec<f32> = (0..COLS).map(|i| (i as f32 - 200.0) * 0.0625).collect();
    let rounded = numbers.iter().map(|n| half::bf16::from_f32(*n));
    let row: Vec<u8> = rounded.clone().flat_map(half::bf16::to_le_bytes).collect();
    let ty = TensorType::BF16;
    let scaling = Scaling::of(ty, largest(ty, &row));
    // The largest is 19.5, between 2^4 and 2^5; it is scaled to 2^14 and above.
    assert_eq!(scaling, Scaling { stored: 1024.0, found: 1.0 / 1024.0 });
    let layout = Layout::of(TensorType::BF16, COLS).unwrap();
    let mut tile = vec![0; layout.tile_bytes()];
    Tile { ty, layout: &layout, scaling, bytes: &mut tile }.put_row(ROW, &row);
    for (i, number) in rounded.enumerate() {
        let (_, lane, within) = lane_of(i);
        let at = (within / 8 * 32 + lane) * 16 + within % 8 * 2;
        let bytes = part(&layout, &tile, Part::Quants, i, at, 2);
        let found = half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32() * scaling.found;
        assert_eq!(found, number.to_f32(), "{i}");
    }
}

#[test]
fn bf16_scales_fit_the_f16_range() {
    let scale = |numbers: &[f32]| {
        let bytes = numbers.iter().flat_map(|n| half::bf16::from_f32(*n).to_le_bytes());
        let ty = TensorType::BF16;
        Scaling::of(ty, largest(ty, &bytes.collect::<Vec<_>>())).stored
    };
    assert_eq!(scale(&[0.0, -0.0]), 1.0);
    assert_eq!(scale(&[1.0, f32::INFINITY, f32::NAN]), 16_384.0);
    for number in [1e-38_f32, 3e-5, 0.02, 1.0, 65_504.0, 1e30, 3e38] {
        let largest = half::bf16::from_f32(number).to_f32() * scale(&[number, -number / 3.0]);
        assert!(largest < 65_504.0 && largest > 0.0, "{number} becomes {largest}");
    }
}

#[test]
fn scales_use_the_upper_end_of_the_f16_range() {
    let types = [
        (TensorType::Q8_0, 0, None, 1.0),
        (TensorType::Q4_0, 0, None, 1.0),
        (TensorType::Q4_1, 0, Some(2), 1.0),
        (TensorType::Q5_1, 0, Some(2), 1.0),
        (TensorType::Q4K, 0, Some(2), 63.0),
        (TensorType::Q5K, 0, Some(2), 63.0),
        (TensorType::Q6K, 208, None, 128.0),
        (TensorType::Q3K, 108, None, 32.0),
        (TensorType::Iq4Nl, 0, None, 1.0),
        (TensorType::Iq4Xs, 0, None, 32.0),
    ];
    for (ty, scale_at, minimum_at, times) in types {
        let rows = |scales: &[f32], minimum: f32| {
            let mut bytes = vec![0x5a; scales.len() * ty.block_bytes()];
            for (block, scale) in bytes.chunks_exact_mut(ty.block_bytes()).zip(scales) {
                block[scale_at..][..2].copy_from_slice(&half::f16::from_f32(*scale).to_le_bytes());
                if let Some(at) = minimum_at {
                    block[at..][..2].copy_from_slice(&half::f16::from_f32(minimum).to_le_bytes());
                }
            }
            bytes
        };
        // A non-finite number, which valid blocks do not contain, hides no other.
        for scale in [6e-8_f32, 1e-5, 0.01, 1.0, 1000.0] {
            let exact = half::f16::from_f32(scale).to_f32();
            let most = largest(ty, &rows(&[0.0, -scale, f32::INFINITY, scale / 2.0], scale));
            assert_eq!(most, times * exact, "{ty}");
            let Scaling { stored, found } = Scaling::of(ty, most);
            assert!((16_384.0..32_768.0).contains(&(most * stored)), "{ty}: {most} by {stored}");
            assert_eq!(found * stored * INTEGER_UNIT, 1.0, "{ty}");
        }
        // Minimums are scaled separately and count in that scale.
        if minimum_at.is_some() {
            assert_eq!(largest(ty, &rows(&[0.25], 64.0)), times * 4.0, "{ty}");
        }
        let zeros = Scaling::of(ty, largest(ty, &rows(&[0.0], 0.0)));
        assert_eq!(zeros, Scaling { stored: 1.0, found: 1.0 / INTEGER_UNIT });
    }
    let plain = Scaling::of(TensorType::F16, largest(TensorType::F16, &[0x5a; 64]));
    assert_eq!(plain, Scaling { stored: 1.0, found: 1.0 });
}

#[test]
fn bytes_are_stored_in_excess_128() {
    let (row, layout, tile) = repacked(TensorType::Q8_0);
    for i in 0..COLS {
        let (_, lane, within) = lane_of(i);
        let at = (within / 16 * 32 + lane) * 16 + within % 16;
        let block = &row[i / 32 * 34..][..34];
        let found = part(&layout, &tile, Part::Quants, i, at, 1)[0];
        assert_eq!(found, block[2 + i % 32] ^ 0x80);
        assert_eq!(scales(&layout, &tile, i, 2), stored(&block[..2]));
    }
}

#[test]
fn blocks_of_32_are_split_into_scales_and_values() {
    for ty in [TensorType::Q4_0, TensorType::Q4_1, TensorType::Q5_0, TensorType::Q5_1] {
        let (row, layout, tile) = repacked(ty);
        for i in 0..COLS {
            let block = &row[i / 32 * ty.block_bytes()..][..ty.block_bytes()];
            let (fifths, nibbles) = block[..].split_at(block.len() - 16);
            let within = i % 32;
            let mut expected = nibbles[within % 16] >> (within / 16 * 4) & 15;
            if matches!(ty, TensorType::Q5_0 | TensorType::Q5_1) {
                let fifths = &fifths[fifths.len() - 4..];
                expected |= (fifths[within / 8] >> (within % 8) & 1) << 4;
            }
            assert_eq!(code(ty, &layout, &tile, i), expected, "{ty}, number {i}");
            let factors = &block[..if ty.block_bytes() % 4 == 2 { 2 } else { 4 }];
            assert_eq!(scales(&layout, &tile, i, factors.len()), stored(factors), "{ty}, {i}");
        }
    }
}

#[test]
fn super_blocks_are_split_into_sub_blocks() {
    for ty in [TensorType::Q4K, TensorType::Q5K] {
        let (row, layout, tile) = repacked(ty);
        for i in 0..COLS {
            let block = &row[i / 256 * ty.block_bytes()..][..ty.block_bytes()];
            let (sub, within) = (i % 256 / 32, i % 32);
            // As scale and minimum of Q4_1, which adds the minimum where Q4_K subtracts it.
            let integers = scale_and_minimum(&block[4..16], sub).map(f32::from);
            let [scale, minimum] = [0, 2].map(|at| {
                half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32() * integers[at / 2]
            });
            let found: Vec<_> = scales(&layout, &tile, i, 4)
                .chunks_exact(2)
                .map(|b| half::f16::from_le_bytes([b[0], b[1]]))
                .collect();
            assert_eq!(found[0], half::f16::from_f32(scale * 0.25), "{ty}, {i}");
            let lost = scale * 0.25 - found[0].to_f32();
            let least = -minimum * 0.25 + lost.min(0.0) * 31.0;
            let most = -minimum * 0.25 + lost.max(0.0) * 31.0;
            let [least, most] = [least, most].map(|n| half::f16::from_f32(n / 16.0));
            assert!((least..=most).contains(&found[1]), "{ty}, {i}: {minimum} {found:?}");
            let nibbles = &block[block.len() - 128..];
            let mut expected = nibbles[sub / 2 * 32 + within] >> (sub % 2 * 4) & 15;
            if ty == TensorType::Q5K {
                expected |= (block[16 + within] >> sub & 1) << 4;
            }
            assert_eq!(code(ty, &layout, &tile, i), expected, "{ty}, number {i}");
        }
    }
}

#[test]
fn six_bit_super_blocks_are_split_too() {
    let (row, layout, tile) = repacked(TensorType::Q6K);
    for i in 0..COLS {
        let block = &row[i / 256 * 210..][..210];
        let (half, j, within) = (i % 256 / 128, i / 32 % 4, i % 32);
        let found = scales(&layout, &tile, i, 2);
        let codes: Vec<u8> =
            block[192 + i % 256 / 32 * 2..][..2].iter().map(|s| s ^ 0x80).collect();
        assert_eq!(found, codes);
        let at = ROW % RECORD_ROWS * 2;
        assert_eq!(part(&layout, &tile, Part::Supers, i, at, 2), stored(&block[208..]));
        let low = block[64 * half + 32 * (j % 2) + within] >> (j / 2 * 4) & 15;
        let expected = low | (block[128 + 32 * half + within] >> (2 * j) & 3) << 4;
        assert_eq!(code(TensorType::Q6K, &layout, &tile, i), expected, "number {i}");
    }
}

fn rounded(number: f64) -> f64 {
    half::f16::from_f64(number).to_f64()
}

/// Number `i` as `kernels/gemm/dequantize.cuh` decodes it from a record: integers as subnormal f16,
/// with every product and the one fma rounded to f16.
fn as_kernels_find_it(ty: TensorType, layout: &Layout, tile: &[u8], i: usize) -> f64 {
    let f16s = |bytes: &[u8]| -> Vec<f64> {
        let halves = bytes.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f64());
        halves.collect()
    };
    let ty = stored_as(ty);
    let (_, lane, within) = lane_of(i);
    let row = ROW % RECORD_ROWS;
    // The second pair of numbers of a nibble pair is four bits higher.
    let (code, up) = if ty == TensorType::Q8_0 {
        let at = (within / 16 * 32 + lane) * 16 + within % 16;
        (part(layout, tile, Part::Quants, i, at, 1)[0], false)
    } else {
        (code(ty, layout, tile, i), within % 4 >= 2)
    };
    let offset = match ty {
        TensorType::Q8_0 => 128.0,
        TensorType::Q4_0 => 8.0,
        TensorType::Q5_0 => 16.0,
        TensorType::Q6K => 32.0,
        _ => 0.0,
    };
    let (integer, minimum_unit) = (f64::from(INTEGER_UNIT), f64::from(INTEGER_UNIT) * 16.0);
    let (scale, minimum) = match ty {
        TensorType::Q4_1 | TensorType::Q5_1 => {
            let factors = f16s(&scales(layout, tile, i, 4));
            (factors[0], factors[1] * minimum_unit)
        }
        TensorType::Q6K => {
            let byte = scales(layout, tile, i, 2)[i % 32 / 16];
            let d = f16s(&part(layout, tile, Part::Supers, i, row * 2, 2))[0];
            let scale = rounded(d * (f64::from(byte) - 128.0));
            (scale, -scale * offset * integer)
        }
        _ => {
            let scale = f16s(&scales(layout, tile, i, 2))[0];
            (scale, -scale * offset * integer)
        }
    };
    let (unit, scale) = if up { (integer * 16.0, rounded(scale / 16.0)) } else { (integer, scale) };
    rounded(f64::from(code) * unit * scale + rounded(minimum))
}

/// Numbers of a quantised row: exact, and as kernels decode them.
fn exact_and_found(ty: TensorType, numbers: &[f32]) -> Vec<(f64, f64)> {
    let mut row = vec![0; ty.row_bytes(COLS).unwrap()];
    walla_doubles::quantize(ty, numbers, &mut row);
    exact_and_found_in(ty, &row)
}

/// Numbers of a row: exact, and as kernels decode them.
fn exact_and_found_in(ty: TensorType, row: &[u8]) -> Vec<(f64, f64)> {
    let mut exact = vec![0.0; COLS];
    walla_model::dequantize(ty, row, &mut exact);
    let scaling = Scaling::of(ty, largest(ty, row));
    let layout = Layout::of(ty, COLS).unwrap();
    let mut tile = vec![0; layout.tile_bytes()];
    Tile { ty, layout: &layout, scaling, bytes: &mut tile }.put_row(ROW, row);
    let found = |i| as_kernels_find_it(ty, &layout, &tile, i) * f64::from(scaling.found);
    exact.iter().enumerate().map(|(i, exact)| (f64::from(*exact), found(i))).collect()
}

#[test]
fn kernels_read_the_values_of_the_file() {
    let types = [
        TensorType::Q8_0,
        TensorType::Q4_0,
        TensorType::Q4_1,
        TensorType::Q5_0,
        TensorType::Q5_1,
        TensorType::Q4K,
        TensorType::Q5K,
        TensorType::Q6K,
        TensorType::Q2K,
        TensorType::Q3K,
        TensorType::Iq4Nl,
        TensorType::Iq4Xs,
        TensorType::Mxfp4,
    ];
    for (ty, size) in types.into_iter().flat_map(|ty| [(ty, 1e-4_f32), (ty, 0.03), (ty, 500.0)]) {
        // Blocks of 32 with very different magnitudes, and one of zeros.
        let number = |i: usize| {
            let wave = ((i * 7919 % 1009) as f32 / 504.5 - 1.0) * size;
            wave * [1.0, 0.1, 0.01, 0.0][i / 32 % 4]
        };
        let numbers: Vec<f32> = (0..COLS).map(number).collect();
        let quantized = exact_and_found(ty, &numbers);
        let most = quantized.iter().fold(0.0_f64, |most, (exact, _)| most.max(exact.abs()));
        for (i, (exact, found)) in quantized.into_iter().enumerate() {
            // Half of the last bit of f16. Scale and minimum of super-blocks are rounded too, and
            // may be as large as the largest number even if their sum is not.
            let size = match ty {
                TensorType::Q3K | TensorType::Q4K | TensorType::Q5K | TensorType::Q6K => 2.0 * most,
                // Scales of sub-blocks are rounded.
                TensorType::Iq4Xs => 2.0 * exact.abs(),
                // Rounded to 8 bits: half a step of 1/127 of the largest number.
                TensorType::Q2K => exact.abs() + 8.0 * most,
                _ => exact.abs(),
            };
            let bits = size * 2.0_f64.powi(-11);
            // Loss from subnormal f16, relative to the largest number.
            let bound = bits + 2.0_f64.powi(-17) * most;
            assert!((found - exact).abs() <= bound, "{ty}, {i}: {found} for {exact}");
        }
    }
}

/// The factors and integers of types that are stored in another type's layout, without the kernels'
/// rounding: `integer * scale` is the number of the file.
#[test]
fn converted_integers_and_scales_are_exact() {
    for ty in [TensorType::Q3K, TensorType::Iq4Nl, TensorType::Mxfp4] {
        // Every byte occurs in every place of a block.
        for seed in 0..256_usize {
            let mut row: Vec<u8> = (0..ty.row_bytes(COLS).unwrap())
                .map(|i| (i * 37 + i / 7 * 11 + seed * 101) as u8)
                .collect();
            for (b, block) in row.chunks_exact_mut(ty.block_bytes()).enumerate() {
                let scale = half::f16::from_f32(0.02 / (1 + b) as f32).to_le_bytes();
                match ty {
                    TensorType::Mxfp4 => block[0] = (100 + b + seed % 8) as u8,
                    TensorType::Q3K => block[108..].copy_from_slice(&scale),
                    _ => block[..2].copy_from_slice(&scale),
                }
            }
            let mut exact = vec![0.0; COLS];
            walla_model::dequantize(ty, &row, &mut exact);
            let scaling = Scaling::of(ty, largest(ty, &row));
            let layout = Layout::of(ty, COLS).unwrap();
            let mut tile = vec![0; layout.tile_bytes()];
            Tile { ty, layout: &layout, scaling, bytes: &mut tile }.put_row(ROW, &row);
            for (i, exact) in exact.into_iter().enumerate() {
                let found = plain_number(ty, &layout, &tile, i) * f64::from(scaling.found);
                // Q3_K: ggml rounds the product of both scales to f32.
                let rounding = if ty == TensorType::Q3K { exact.abs() * 1e-7 } else { 0.0 };
                let error = (found - f64::from(exact)).abs();
                assert!(error <= f64::from(rounding), "{ty} {seed} {i}: {found} for {exact}");
            }
        }
    }
}

/// Number `i` of a record of Q5_0, Q6_K or Q8_0, without rounding.
fn plain_number(ty: TensorType, layout: &Layout, tile: &[u8], i: usize) -> f64 {
    let f16 = |bytes: &[u8]| half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f64();
    let (_, lane, within) = lane_of(i);
    let unit = f64::from(INTEGER_UNIT);
    match stored_as(ty) {
        TensorType::Q5_0 => {
            let integer = f64::from(code(ty, layout, tile, i)) - 16.0;
            integer * unit * f16(&scales(layout, tile, i, 2))
        }
        TensorType::Q6K => {
            let integer = f64::from(code(ty, layout, tile, i)) - 32.0;
            let scale = f64::from(scales(layout, tile, i, 2)[i % 32 / 16]) - 128.0;
            let d = part(layout, tile, Part::Supers, i, ROW % RECORD_ROWS * 2, 2);
            integer * unit * scale * f16(&d)
        }
        _ => {
            let at = (within / 16 * 32 + lane) * 16 + within % 16;
            let integer = f64::from(part(layout, tile, Part::Quants, i, at, 1)[0]) - 128.0;
            integer * unit * f16(&scales(layout, tile, i, 2))
        }
    }
}

#[test]
fn mxfp4_scales_far_from_the_largest_are_zero_and_out_of_range_infinite() {
    let ty = TensorType::Mxfp4;
    let row = |exponents: [u8; 4]| -> Vec<u8> {
        let block = |b: usize| [&[exponents[b % 4]][..], &[0x77; 16]].concat();
        (0..COLS / 32).flat_map(block).collect()
    };
    let numbers = |exponents| exact_and_found_in(ty, &row(exponents));
    let [first, second, third, fourth] = [0, 32, 64, 96];
    let found = numbers([127, 104, 103, 80]);
    assert_eq!(found[first], (6.0, 6.0));
    // As for all types, kernels lose 2^-17 of the largest number.
    for i in [second, third] {
        assert!((found[i].1 - found[i].0).abs() < 6.0 * 2.0_f64.powi(-17));
    }
    assert_eq!(found[fourth].1, 0.0);
    // The largest scales that f32 factors represent, and scales beyond.
    let found = numbers([243, 243, 244, 255]);
    assert_eq!(found[first].0, found[first].1);
    assert!(found[third].1.is_infinite() || found[third].1.is_nan());
    assert!(found[fourth].1.is_infinite() || found[fourth].1.is_nan());
    // The smallest: 2^-126 is represented, subnormal scales are zeros.
    let found = numbers([2, 2, 2, 2]);
    assert_eq!(found[first].0, found[first].1);
    for (_, found) in numbers([1, 0, 1, 0]) {
        assert_eq!(found, 0.0);
    }
}

/// RMS error of decoded random numbers, relative to their RMS.
fn missed(ty: TensorType) -> f64 {
    let mut random = 1_u64;
    // Sums of uniform numbers are approximately normal.
    let mut number = || {
        (0..6).fold(-3.0_f32, |sum, _| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            sum + (random >> 40) as f32 / 16_777_216.0
        }) * 0.02
    };
    let (mut errors, mut all) = (0.0, 0.0);
    for _ in 0..40 {
        let numbers: Vec<f32> = (0..COLS).map(|_| number()).collect();
        for (exact, found) in exact_and_found(ty, &numbers) {
            errors += (found - exact).powi(2);
            all += exact.powi(2);
        }
    }
    (errors / all).sqrt()
}

#[test]
fn minimums_compensate_the_rounding_of_scales() {
    // If scale and minimum are rounded independently, the error is 6.8e-4.
    for ty in [TensorType::Q4K, TensorType::Q5K] {
        let missed = missed(ty);
        assert!(missed < 5.6e-4, "{ty}: {missed:.2e}");
    }
}

#[test]
fn rounding_q2_k_to_8_bits_is_a_fiftieth_of_its_error() {
    // Q2_K's own error of such numbers is 0.27.
    let missed = missed(TensorType::Q2K);
    assert!(missed < 5.2e-3, "{missed:.2e}");
    for (ty, bound) in [(TensorType::Iq4Xs, 5e-4), (TensorType::Mxfp4, 3e-4)] {
        let missed = self::missed(ty);
        assert!(missed < bound, "{ty}: {missed:.2e}");
    }
}
