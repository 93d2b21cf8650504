//! Random weights in their stored form, without conversion from `f32`: integers are random bytes,
//! and the scales are chosen to give the requested standard deviation.

use std::io::{self, Write};

use half::{bf16, f16};
use walla_types::{TensorType, e8m0_half};

use crate::quant::{pack, pack_q3};

/// Contents of a tensor.
pub(super) enum Fill {
    /// F32 only: the same number everywhere.
    All(f32),
    /// F32 only: the whole tensor.
    These(Vec<f32>),
    /// Mean 0.
    Random {
        /// Standard deviation.
        std: f32,
    },
}

/// Number of blocks generated at once.
const CHUNK_BLOCKS: usize = 4096;

/// Writes `elements` numbers of type `ty`.
pub(super) fn write(
    ty: TensorType,
    elements: u64,
    fill: &Fill,
    seed: u64,
    out: &mut impl Write,
) -> io::Result<()> {
    let std = match fill {
        Fill::All(number) => return write_all(out, elements, |_| *number),
        Fill::These(numbers) => {
            return write_all(out, elements, |i| numbers.get(i).copied().unwrap_or(1.0));
        }
        Fill::Random { std } => *std,
    };
    let blocks = elements / ty.block_elements() as u64;
    let mut random = Random(seed);
    let filler = filler(ty, std, &mut random);
    let mut chunk = vec![0; CHUNK_BLOCKS * ty.block_bytes()];
    let mut left = blocks;
    while left > 0 {
        let count = left.min(CHUNK_BLOCKS as u64);
        let chunk = chunk.get_mut(..count as usize * ty.block_bytes()).unwrap_or_default();
        random.fill(chunk);
        filler(chunk);
        out.write_all(chunk)?;
        left -= count;
    }
    Ok(())
}

fn write_all(out: &mut impl Write, elements: u64, number: impl Fn(usize) -> f32) -> io::Result<()> {
    let bytes: Vec<u8> = (0..elements as usize).flat_map(|i| number(i).to_le_bytes()).collect();
    out.write_all(&bytes)
}

type Filler = Box<dyn Fn(&mut [u8])>;

// Standard deviations of uniform integers: sqrt((n^2 - 1) / 12) for n consecutive values.
const STD_255: f32 = 73.61;
const STD_64: f32 = 18.47;
const STD_32: f32 = 9.233;
const STD_16: f32 = 4.610;
const STD_4: f32 = 1.118;
// Root mean squares of -4..=3 and of the tables.
const RMS_8: f32 = 2.345;
const RMS_IQ4: f32 = 67.44;
const RMS_MXFP4: f32 = 5.852;
/// Root mean square of 8..=15, the range of sub-block scales.
const RMS_SUB_SCALE: f32 = 11.73;

/// Converts random bytes to blocks.
fn filler(ty: TensorType, std: f32, random: &mut Random) -> Filler {
    match ty {
        TensorType::F32 => table(std, f32::to_le_bytes, random),
        TensorType::F16 => table(std, |x| f16::from_f32(x).to_le_bytes(), random),
        TensorType::BF16 => table(std, |x| bf16::from_f32(x).to_le_bytes(), random),
        TensorType::Q8_0 => scaled::<34>(std / STD_255, |raw| {
            // No quantiser produces -128.
            raw[2..].iter_mut().filter(|q| **q == 0x80).for_each(|q| *q = 0x81);
        }),
        TensorType::Q4_0 => scaled::<18>(std / STD_16, |_| {}),
        TensorType::Q5_0 => scaled::<22>(std / STD_32, |_| {}),
        TensorType::Q4K => q4_k(std),
        TensorType::Q6K => q6_k(std),
        TensorType::Q2K => q2_k(std),
        TensorType::Q3K => q3_k(std),
        TensorType::Iq4Nl => scaled::<18>(std / RMS_IQ4, |_| {}),
        TensorType::Iq4Xs => iq4_xs(std),
        TensorType::Mxfp4 => mxfp4(std),
        other => unreachable!("no mixture has {other}"),
    }
}

/// Selects from 2048 normal numbers and their negatives.
fn table<const B: usize>(std: f32, store: impl Fn(f32) -> [u8; B], random: &mut Random) -> Filler {
    let half: Vec<f32> = (0..2048).map(|_| std * random.normal()).collect();
    let both = half.iter().copied().chain(half.iter().map(|x| -x));
    let numbers: Vec<[u8; B]> = both.map(store).collect();
    Box::new(move |chunk| {
        for raw in chunk.as_chunks_mut::<B>().0 {
            let index = usize::from(u16::from_le_bytes([raw[0], raw[1]])) % 4096;
            *raw = numbers.get(index).copied().unwrap_or([0; B]);
        }
    })
}

/// Blocks of `B` bytes that start with one scale. Half of the scales are negative, so that
/// asymmetric integers (-8..=7) do not shift the mean.
fn scaled<const B: usize>(scale: f32, mend: impl Fn(&mut [u8; B]) + 'static) -> Filler {
    let signed = [scale, -scale].map(|scale| f16::from_f32(scale).to_le_bytes());
    Box::new(move |chunk| {
        for raw in chunk.as_chunks_mut::<B>().0 {
            let scale = signed[usize::from(raw[0] & 1)];
            raw[..2].copy_from_slice(&scale);
            mend(raw);
        }
    })
}

/// `scale * s * q - minimum * m` with `m = s` and `minimum = 7.5 scale`: symmetric around 0.
fn q4_k(std: f32) -> Filler {
    let scale = std / (STD_16 * RMS_SUB_SCALE);
    let head = [scale, 7.5 * scale].map(|x| f16::from_f32(x).to_le_bytes()).concat();
    Box::new(move |chunk| {
        for raw in chunk.as_chunks_mut::<144>().0 {
            let s: [u8; 8] = core::array::from_fn(|i| 8 | (raw[4 + i] & 7));
            let packed = pack(&s, &s);
            raw[..4].copy_from_slice(&head);
            raw[4..16].copy_from_slice(&packed);
        }
    })
}

/// Sub-block scales of both signs.
fn q6_k(std: f32) -> Filler {
    let scale = f16::from_f32(std / (STD_64 * RMS_SUB_SCALE)).to_le_bytes();
    Box::new(move |chunk| {
        for raw in chunk.as_chunks_mut::<210>().0 {
            raw[192..208].iter_mut().for_each(|s| *s = sub_scale(*s) as u8);
            raw[208..].copy_from_slice(&scale);
        }
    })
}

/// `scale * s * q - minimum * m` with `m = s` and `minimum = 1.5 scale`: symmetric around 0.
fn q2_k(std: f32) -> Filler {
    let scale = std / (STD_4 * RMS_SUB_SCALE);
    let factors = [scale, 1.5 * scale].map(|x| f16::from_f32(x).to_le_bytes()).concat();
    Box::new(move |chunk| {
        for raw in chunk.as_chunks_mut::<84>().0 {
            for both in &mut raw[..16] {
                let s = 8 | (*both & 7);
                *both = s | s << 4;
            }
            raw[80..].copy_from_slice(&factors);
        }
    })
}

/// A sub-block scale of 8 to 15, of either sign, from random bits.
const fn sub_scale(bits: u8) -> i8 {
    let magnitude = (8 | (bits & 7)) as i8;
    if bits & 8 == 0 { magnitude } else { -magnitude }
}

/// Sub-block scales of both signs.
fn q3_k(std: f32) -> Filler {
    let scale = f16::from_f32(std / (RMS_8 * RMS_SUB_SCALE)).to_le_bytes();
    Box::new(move |chunk| {
        for raw in chunk.as_chunks_mut::<110>().0 {
            let scales = core::array::from_fn(|i| sub_scale(raw[96 + i / 2] >> (i % 2 * 4)));
            raw[96..108].copy_from_slice(&pack_q3(&scales));
            raw[108..].copy_from_slice(&scale);
        }
    })
}

/// Sub-block scales of both signs.
fn iq4_xs(std: f32) -> Filler {
    let scale = f16::from_f32(std / (RMS_IQ4 * RMS_SUB_SCALE)).to_le_bytes();
    Box::new(move |chunk| {
        for raw in chunk.as_chunks_mut::<136>().0 {
            let stored: [u8; 8] =
                core::array::from_fn(|i| (sub_scale(raw[4 + i / 2] >> (i % 2 * 4)) + 32) as u8);
            let upper = (0..8).map(|i| u16::from(stored[i] >> 4) << (2 * i)).sum::<u16>();
            raw[..2].copy_from_slice(&scale);
            raw[2..4].copy_from_slice(&upper.to_le_bytes());
            for i in 0..4 {
                raw[4 + i] = stored[2 * i] & 15 | stored[2 * i + 1] << 4;
            }
        }
    })
}

/// Two powers of two, in the proportion that gives the mean square.
fn mxfp4(std: f32) -> Filler {
    let scale = std / RMS_MXFP4;
    let exponent = (libm::log2f(scale).floor() + 128.0).clamp(0.0, 254.0) as u8;
    let ratio = scale / e8m0_half(exponent);
    let larger = (ratio * ratio - 1.0) / 3.0;
    Box::new(move |chunk| {
        for raw in chunk.as_chunks_mut::<17>().0 {
            raw[0] = exponent + u8::from(f32::from(raw[0]) < larger * 256.0);
        }
    })
}

/// SplitMix64 (Steele, Lea and Flood, 2014): fast, seedable, good enough for weights.
pub(super) struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut::<8>();
        words.iter_mut().for_each(|word| *word = self.next().to_le_bytes());
        rest.iter_mut().zip(self.next().to_le_bytes()).for_each(|(to, from)| *to = from);
    }

    /// Approximately normal: twelve uniform numbers minus their mean.
    fn normal(&mut self) -> f32 {
        let mut uniform = || (self.next() >> 40) as f32 / (1_u32 << 24) as f32;
        (0..12).map(|_| uniform()).sum::<f32>() - 6.0
    }
}

#[cfg(test)]
mod tests {
    use walla_model::dequantize;

    use super::*;

    #[test]
    fn every_type_has_the_requested_deviation_and_zero_mean() {
        let types = [
            TensorType::F32,
            TensorType::F16,
            TensorType::BF16,
            TensorType::Q8_0,
            TensorType::Q4_0,
            TensorType::Q5_0,
            TensorType::Q4K,
            TensorType::Q6K,
            TensorType::Q2K,
            TensorType::Q3K,
            TensorType::Iq4Nl,
            TensorType::Iq4Xs,
            TensorType::Mxfp4,
        ];
        for ty in types {
            for std in [1.0, 0.02, 0.000_5] {
                let mut raw = Vec::new();
                write(ty, 1 << 18, &Fill::Random { std }, 5, &mut raw).unwrap();
                let mut numbers = vec![0.0; 1 << 18];
                dequantize(ty, &raw, &mut numbers);
                let mean = numbers.iter().sum::<f32>() / numbers.len() as f32;
                let square = numbers.iter().map(|x| x * x).sum::<f32>() / numbers.len() as f32;
                let found = square.sqrt() / std;
                assert!((found - 1.0).abs() < 0.06, "{ty}: deviation {found} of {std}");
                assert!((mean / std).abs() < 0.03, "{ty}: mean {mean}");
            }
        }
    }
}
