//! Keys and values in pages.

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use walla_device::{CacheDesc, DeviceError, KvType};

use crate::memory::Bytes;

/// Keys and values of one attention layer.
///
/// Keys are stored transposed, `[kv_heads, pages, head_dim, stride]`: one vector register holds the
/// same dimension of 16 neighbouring cells, so scores need no sum across lanes. Values are stored
/// as `[kv_heads, pages, page_tokens, head_dim]`. Scales of 8-bit numbers are stored separately,
/// `[kv_heads, pages, page_tokens]` each; other types have no scales.
pub(crate) struct KvLayer {
    pub kv_heads: usize,
    pub head_dim: usize,
    pub pages: usize,
    pub page_tokens: usize,
    /// Cells of a page's keys, rounded up to whole vector registers.
    pub stride: usize,
    pub kv_type: KvType,
    pub(super) rope: Option<usize>,
    pub(super) keys: Bytes,
    pub(super) values: Bytes,
    /// Scales of keys and of values.
    pub(super) scales: [Bytes; 2],
}

/// Numbers of a page's keys or values, for one head.
#[derive(Clone, Copy)]
pub(crate) enum Numbers<'a> {
    F32(&'a [f32]),
    F16(&'a [u16]),
    /// Numbers in units of their cell's scale, and the f16 bits of the scales.
    Q8 {
        numbers: &'a [i8],
        scales: &'a [u16],
    },
}

/// The scale of a head's key or value as stored bits, and the same scale as f32, by which the
/// numbers are divided. A row that is not finite gets a NaN scale, so that it stays invalid.
fn scale_of(numbers: &[f32]) -> (u16, f32) {
    let largest = numbers.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
    let scale = if numbers.iter().all(|number| number.is_finite()) {
        f16::from_f32((largest / 127.0).min(f16::MAX.to_f32()))
    } else {
        f16::NAN
    };
    (scale.to_bits(), scale.to_f32())
}

/// `number` in units of `scale`; 0 if `scale` is 0 or NaN.
fn quantize(number: f32, scale: f32) -> i8 {
    let units = if scale > 0.0 { number / scale } else { 0.0 };
    units.round_ties_even().clamp(-127.0, 127.0) as i8
}

impl<'a> Numbers<'a> {
    /// The bits of f16 numbers; empty for other types.
    pub(crate) fn halves(self) -> &'a [u16] {
        match self {
            Self::F16(all) => all,
            Self::F32(_) | Self::Q8 { .. } => &[],
        }
    }

    /// Numbers `from..from + out.len()` as f32, in units of their cells' [scales](Self::scale).
    pub(crate) fn units(self, from: usize, out: &mut [f32]) {
        match self {
            Self::F32(all) => out.copy_from_slice(&all[from..from + out.len()]),
            Self::F16(all) => {
                let bits: &[f16] = all[from..from + out.len()].reinterpret_cast();
                bits.convert_to_f32_slice(out);
            }
            Self::Q8 { numbers, .. } => {
                for (out, number) in out.iter_mut().zip(&numbers[from..]) {
                    *out = f32::from(*number);
                }
            }
        }
    }

    /// Scale of the numbers of a cell; 1 for types without scales.
    pub(crate) fn scale(self, cell: usize) -> f32 {
        match self {
            Self::F32(_) | Self::F16(_) => 1.0,
            Self::Q8 { scales, .. } => f16::from_bits(scales[cell]).to_f32(),
        }
    }
}

impl KvLayer {
    pub(super) fn new(
        desc: &CacheDesc,
        kv_heads: u32,
        head_dim: u32,
        rope: Option<usize>,
    ) -> Result<Self, DeviceError> {
        let (kv_heads, head_dim) = (kv_heads as usize, head_dim as usize);
        let (pages, page_tokens) = (desc.pages as usize, desc.page_tokens as usize);
        let stride = page_tokens.next_multiple_of(16);
        let bytes = |cells: usize| {
            let sizes = [kv_heads, pages, head_dim, cells, desc.kv_type.bytes()];
            let total = sizes.iter().try_fold(1_usize, |total, size| total.checked_mul(*size));
            Bytes::zeroed("keys and values", total.unwrap_or(usize::MAX / 2))
        };
        let scales = || {
            let sizes = [kv_heads, pages, page_tokens, desc.kv_type.scale_bytes()];
            let total = sizes.iter().try_fold(1_usize, |total, size| total.checked_mul(*size));
            Bytes::zeroed("scales of keys and values", total.unwrap_or(usize::MAX / 2))
        };
        Ok(Self {
            kv_heads,
            head_dim,
            pages,
            page_tokens,
            stride,
            kv_type: desc.kv_type,
            rope,
            keys: bytes(stride)?,
            values: bytes(page_tokens)?,
            scales: [scales()?, scales()?],
        })
    }

    /// Keys of one head in one page: `[head_dim, stride]`.
    pub(crate) fn keys(&self, head: usize, page: usize) -> Numbers<'_> {
        let numbers = self.head_dim * self.stride;
        self.part(0, head * self.pages + page, numbers)
    }

    /// Values of one head in one page: `[page_tokens, head_dim]`.
    pub(crate) fn values(&self, head: usize, page: usize) -> Numbers<'_> {
        let numbers = self.head_dim * self.page_tokens;
        self.part(1, head * self.pages + page, numbers)
    }

    /// Numbers of the keys (0) or values (1) of one head's page, which holds `numbers` elements.
    fn part(&self, which: usize, page: usize, numbers: usize) -> Numbers<'_> {
        let bytes = if which == 0 { &self.keys } else { &self.values };
        let from = page * numbers;
        match self.kv_type {
            KvType::Q8 => {
                let scales: &[u16] = self.scales[which].as_slice();
                let scales = &scales[page * self.page_tokens..][..self.page_tokens];
                Numbers::Q8 { numbers: &bytes.as_slice()[from..from + numbers], scales }
            }
            KvType::F16 => Numbers::F16(&bytes.as_slice()[from..from + numbers]),
            _ => Numbers::F32(&bytes.as_slice()[from..from + numbers]),
        }
    }

    /// Stores the key and the value of one head of one token.
    pub(crate) fn append(
        &mut self,
        head: usize,
        page: usize,
        cell: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let first = (head * self.pages + page) * self.head_dim;
        let key_at = |d: usize| (first + d) * self.stride + cell;
        let value_at =
            (head * self.pages + page) * self.page_tokens * self.head_dim + cell * self.head_dim;
        match self.kv_type {
            KvType::Q8 => {
                let place = (head * self.pages + page) * self.page_tokens + cell;
                let [(key_bits, key_scale), (value_bits, value_scale)] = [key, value].map(scale_of);
                for (scales, bits) in self.scales.iter_mut().zip([key_bits, value_bits]) {
                    scales.as_mut_slice::<u16>()[place] = bits;
                }
                let keys: &mut [i8] = self.keys.as_mut_slice();
                for (d, key) in key.iter().enumerate() {
                    keys[key_at(d)] = quantize(*key, key_scale);
                }
                let values: &mut [i8] = self.values.as_mut_slice();
                for (to, value) in values[value_at..].iter_mut().zip(value) {
                    *to = quantize(*value, value_scale);
                }
            }
            KvType::F16 => {
                let keys: &mut [u16] = self.keys.as_mut_slice();
                let mut rounded = [f16::ZERO; 32];
                for (part, key) in key.chunks(32).enumerate() {
                    let rounded = &mut rounded[..key.len()];
                    rounded.convert_from_f32_slice(key);
                    for (d, key) in rounded.iter().enumerate() {
                        keys[key_at(part * 32 + d)] = key.to_bits();
                    }
                }
                let values: &mut [u16] = self.values.as_mut_slice();
                let values: &mut [f16] =
                    values[value_at..value_at + value.len()].reinterpret_cast_mut();
                values.convert_from_f32_slice(value);
            }
            _ => {
                let keys: &mut [f32] = self.keys.as_mut_slice();
                for (d, key) in key.iter().enumerate() {
                    keys[key_at(d)] = *key;
                }
                self.values.as_mut_slice()[value_at..value_at + value.len()].copy_from_slice(value);
            }
        }
    }

    pub(super) fn read_cell(
        &self,
        head: usize,
        page: usize,
        cell: usize,
        key: &mut [f32],
        value: &mut [f32],
    ) {
        let (keys, values) = (self.keys(head, page), self.values(head, page));
        for (d, key) in key.iter_mut().enumerate() {
            keys.units(d * self.stride + cell, std::slice::from_mut(key));
            *key *= keys.scale(cell);
        }
        values.units(cell * self.head_dim, value);
        value.iter_mut().for_each(|value| *value *= values.scale(cell));
    }

    pub(super) fn copy_page(&mut self, from: usize, to: usize) {
        let number = self.kv_type.bytes();
        let scales = self.page_tokens * self.kv_type.scale_bytes();
        let [key_scales, value_scales] = &mut self.scales;
        for (bytes, page_bytes) in [
            (&mut self.keys, self.head_dim * self.stride * number),
            (&mut self.values, self.head_dim * self.page_tokens * number),
            (key_scales, scales),
            (value_scales, scales),
        ] {
            for head in 0..self.kv_heads {
                let start = |page: usize| (head * self.pages + page) * page_bytes;
                bytes.bytes_mut().copy_within(start(from)..start(from) + page_bytes, start(to));
            }
        }
    }
}
