//! Random weights of every type.

use walla_device::{philox4x32, unit_interval};
use walla_types::TensorType;

/// Deterministic random numbers.
pub struct Random {
    seed: u32,
    count: u32,
}

impl Random {
    pub fn new(seed: u32) -> Self {
        Self { seed, count: 0 }
    }

    pub fn word(&mut self) -> u32 {
        self.count += 1;
        philox4x32([self.count, 0, 0, 0], [self.seed, 99])[0]
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.word() as usize % bound
    }

    /// Between -1 and 1, with few enough bits for bf16.
    pub fn coarse(&mut self) -> f32 {
        ((unit_interval(self.word()) - 0.5) * 128.0).round() / 64.0
    }

    pub fn vector(&mut self, count: usize, scale: f32, offset: f32) -> Vec<f32> {
        (0..count).map(|_| self.coarse() * scale + offset).collect()
    }
}

/// Bytes of a matrix whose numbers have a magnitude of about `scale`.
pub fn matrix_bytes(random: &mut Random, ty: TensorType, count: usize, scale: f32) -> Vec<u8> {
    let half = |x: f32| half::f16::from_f32(x).to_le_bytes();
    let mut bytes = Vec::new();
    if !ty.is_quantized() {
        // A power of two keeps the numbers exact in 16 bits.
        let scale = scale.log2().round().exp2();
        for _ in 0..count {
            let x = random.coarse() * scale;
            match ty {
                TensorType::F32 => bytes.extend(x.to_le_bytes()),
                TensorType::F16 => bytes.extend(half(x)),
                _ => bytes.extend(&x.to_le_bytes()[2..]),
            }
        }
        return bytes;
    }
    for _ in 0..count / ty.block_elements() {
        let mut block: Vec<u8> = (0..ty.block_bytes()).map(|_| random.word() as u8).collect();
        let sign = if random.below(2) == 0 { 1.0 } else { -1.0 };
        let (d, m, d_at) = match ty {
            TensorType::Q8_0 => (scale / 64.0, None, 0),
            TensorType::Q4_0 => (scale / 4.0, None, 0),
            TensorType::Q4_1 => (scale / 8.0, Some(-scale), 0),
            TensorType::Q5_0 => (scale / 8.0, None, 0),
            TensorType::Q5_1 => (scale / 16.0, Some(-scale), 0),
            TensorType::Q4K => (scale / 256.0, Some(scale / 32.0), 0),
            TensorType::Q5K => (scale / 512.0, Some(scale / 32.0), 0),
            TensorType::Iq4Nl => (scale / 64.0, None, 0),
            TensorType::Iq4Xs => (scale / 1024.0, None, 0),
            TensorType::Q3K => (scale / 64.0, None, 108),
            TensorType::Q2K => {
                // The minimum is in the middle of the numbers: a multiple of the scale.
                block[..16].iter_mut().for_each(|both| *both = *both & 15 | *both << 4);
                (scale / 16.0, None, 80)
            }
            TensorType::Mxfp4 => {
                // The largest number is 12 times the half of the scale.
                block[0] = (127.0 + (scale / 6.0).log2().round()) as u8;
                let flip = 0x88 * (random.below(2) as u8);
                block[1..].iter_mut().for_each(|codes| *codes ^= flip);
                bytes.extend(block);
                continue;
            }
            _ => (scale / 1024.0, None, 208),
        };
        if ty == TensorType::Q2K {
            block[82..].copy_from_slice(&half(1.5 * d * sign));
        }
        block[d_at..d_at + 2].copy_from_slice(&half(d * sign));
        if let Some(m) = m {
            block[2..4].copy_from_slice(&half(m * sign));
        }
        bytes.extend(block);
    }
    bytes
}

/// Numbers of an unquantised matrix.
pub fn floats(ty: TensorType, bytes: &[u8]) -> Vec<f32> {
    match ty {
        TensorType::F32 => {
            bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
        }
        TensorType::F16 => bytes
            .chunks(2)
            .map(|b| half::f16::from_le_bytes(b.try_into().unwrap()).to_f32())
            .collect(),
        _ => bytes.chunks(2).map(|b| f32::from_le_bytes([0, 0, b[0], b[1]])).collect(),
    }
}
