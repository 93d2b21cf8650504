use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use walla_device::{CacheCommand, CacheDesc, CacheLayer, DeviceError, KvType};
use walla_types::PENALTY_WINDOW_MAX;

use crate::memory::{Bytes, filled};
use crate::scalar;
use crate::workspace::Rope;

const RECENT: usize = PENALTY_WINDOW_MAX as usize;

/// Keys and values of one attention layer.
///
/// Keys lie transposed, `[kv_heads, pages, head_dim, stride]`, so that one vector register holds the same number of 16
/// neighbouring cells and scores need no sum across lanes. Values lie as `[kv_heads, pages, page_tokens, head_dim]`. Scales of
/// 8-bit ones lie apart, `[kv_heads, pages, page_tokens]` each; there are none else.
pub(crate) struct KvLayer {
    pub kv_heads: usize,
    pub head_dim: usize,
    pub pages: usize,
    pub page_tokens: usize,
    /// Cells of a page's keys, rounded up to whole vector registers.
    pub stride: usize,
    pub kv_type: KvType,
    rope: Option<usize>,
    keys: Bytes,
    values: Bytes,
    /// Of keys and of values.
    scales: [Bytes; 2],
}

/// Numbers of a page's keys or values, for one head.
#[derive(Clone, Copy)]
pub(crate) enum Numbers<'a> {
    F32(&'a [f32]),
    F16(&'a [u16]),
    Q8 { numbers: &'a [i8], scales: &'a [u16], order: Order },
}

/// Which cell a number is of.
#[derive(Clone, Copy)]
pub(crate) enum Order {
    /// Rows of so many cells: keys.
    Rows(usize),
    /// Cells of so many numbers: values.
    Cells(usize),
}

/// The scale of a head's key or value as stored, and what its numbers are divided by. A lost row stays lost: its scale is none.
fn scale_of(numbers: &[f32]) -> (u16, f32) {
    let largest = numbers.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
    let scale = if numbers.iter().all(|number| number.is_finite()) {
        f16::from_f32((largest / 127.0).min(f16::MAX.to_f32()))
    } else {
        f16::NAN
    };
    (scale.to_bits(), scale.to_f32())
}

/// `number` in units of `scale`; 0 where that is none.
fn quantise(number: f32, scale: f32) -> i8 {
    let units = if scale > 0.0 { number / scale } else { 0.0 };
    units.round_ties_even().clamp(-127.0, 127.0) as i8
}

impl<'a> Numbers<'a> {
    /// The bits of f16 numbers; nothing for others.
    pub(crate) fn halves(self) -> &'a [u16] {
        match self {
            Self::F16(all) => all,
            Self::F32(_) | Self::Q8 { .. } => &[],
        }
    }

    /// Numbers `from..from + out.len()` as f32: of one row of keys, or of one value.
    pub(crate) fn read(self, from: usize, out: &mut [f32]) {
        match self {
            Self::F32(all) => out.copy_from_slice(&all[from..from + out.len()]),
            Self::F16(all) => {
                let bits: &[f16] = all[from..from + out.len()].reinterpret_cast();
                bits.convert_to_f32_slice(out);
            }
            Self::Q8 { numbers, scales, order } => {
                match order {
                    Order::Rows(stride) => {
                        let scales: &[f16] =
                            scales[from % stride..][..out.len()].reinterpret_cast();
                        scales.convert_to_f32_slice(out);
                    }
                    Order::Cells(head_dim) => {
                        out.fill(f16::from_bits(scales[from / head_dim]).to_f32());
                    }
                }
                for (out, number) in out.iter_mut().zip(&numbers[from..]) {
                    *out *= f32::from(*number);
                }
            }
        }
    }
}

impl KvLayer {
    fn new(
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

    /// Numbers of the keys (0) or values (1) of one head's page, which has `numbers` of them.
    fn part(&self, which: usize, page: usize, numbers: usize) -> Numbers<'_> {
        let (bytes, order) = match which {
            0 => (&self.keys, Order::Rows(self.stride)),
            _ => (&self.values, Order::Cells(self.head_dim)),
        };
        let from = page * numbers;
        match self.kv_type {
            KvType::Q8 => {
                let scales: &[u16] = self.scales[which].as_slice();
                let scales = &scales[page * self.page_tokens..][..self.page_tokens];
                Numbers::Q8 { numbers: &bytes.as_slice()[from..from + numbers], scales, order }
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
                    keys[key_at(d)] = quantise(*key, key_scale);
                }
                let values: &mut [i8] = self.values.as_mut_slice();
                for (to, value) in values[value_at..].iter_mut().zip(value) {
                    *to = quantise(*value, value_scale);
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

    fn read_cell(&self, head: usize, page: usize, cell: usize, key: &mut [f32], value: &mut [f32]) {
        let keys = self.keys(head, page);
        for (d, key) in key.iter_mut().enumerate() {
            keys.read(d * self.stride + cell, std::slice::from_mut(key));
        }
        self.values(head, page).read(cell * self.head_dim, value);
    }

    fn copy_page(&mut self, from: usize, to: usize) {
        let number = self.kv_type.bytes();
        for (bytes, cells) in [(&mut self.keys, self.stride), (&mut self.values, self.page_tokens)]
        {
            let page_bytes = self.head_dim * cells * number;
            for head in 0..self.kv_heads {
                let start = |page: usize| (head * self.pages + page) * page_bytes;
                bytes.bytes_mut().copy_within(start(from)..start(from) + page_bytes, start(to));
            }
        }
        let page_bytes = self.page_tokens * self.kv_type.scale_bytes();
        for bytes in &mut self.scales {
            for head in 0..self.kv_heads {
                let start = |page: usize| (head * self.pages + page) * page_bytes;
                bytes.bytes_mut().copy_within(start(from)..start(from) + page_bytes, start(to));
            }
        }
    }
}

/// The convolution states of one layer: `[sequences_max, taps - 1, width]`, oldest first.
pub(crate) struct ConvLayer {
    pub width: usize,
    pub taps: usize,
    state: Bytes,
}

impl ConvLayer {
    fn numbers(&self) -> usize {
        (self.taps - 1) * self.width
    }

    /// The state of one sequence: `[taps - 1, width]`.
    pub(crate) fn state(&self, sequence: usize) -> &[f32] {
        &self.state.as_slice()[sequence * self.numbers()..][..self.numbers()]
    }

    /// The state of one sequence, to change.
    pub(crate) fn state_mut(&mut self, sequence: usize) -> &mut [f32] {
        let numbers = self.numbers();
        &mut self.state.as_mut_slice()[sequence * numbers..][..numbers]
    }
}

/// What one layer keeps.
pub(crate) enum Layer {
    Kv(KvLayer),
    Conv(ConvLayer),
}

/// Everything kept of the sequences between steps.
pub(crate) struct Cache {
    pub desc: CacheDesc,
    pub layers: Vec<Layer>,
    /// Token sampled last, for each sequence.
    pub last: Vec<u32>,
    /// `[sequences_max, PENALTY_WINDOW_MAX]`, by position modulo the latter.
    recent: Vec<u32>,
    /// One head's key and value, for moving cells.
    cell: [Vec<f32>; 2],
}

impl Cache {
    /// Bytes that a cache of this description takes; the largest number if that overflows.
    pub(crate) fn bytes_of(desc: &CacheDesc) -> u64 {
        let product =
            |sizes: &[u64]| sizes.iter().fold(1_u64, |all, size| all.saturating_mul(*size));
        let sequences = u64::from(desc.sequences_max);
        let cells = u64::from(desc.page_tokens) + u64::from(desc.page_tokens).next_multiple_of(16);
        let layers = desc.layers.iter().map(|layer| match *layer {
            CacheLayer::Kv { kv_heads, head_dim, .. } => {
                let number = desc.kv_type.bytes() as u64;
                let scale = 2 * desc.kv_type.scale_bytes() as u64;
                let pages = [kv_heads.into(), desc.pages.into()];
                let numbers = product(&[product(&pages), head_dim.into(), cells, number]);
                numbers.saturating_add(product(&[product(&pages), desc.page_tokens.into(), scale]))
            }
            CacheLayer::ShortConv { width, taps } => {
                product(&[taps.saturating_sub(1).into(), width.into(), sequences, 4])
            }
        });
        let tokens = product(&[sequences, RECENT as u64 + 1, 4]);
        layers.fold(tokens, u64::saturating_add)
    }

    /// Checks the description and allocates zeros.
    pub(crate) fn new(desc: &CacheDesc, ropes: &[Rope]) -> Result<Self, DeviceError> {
        if desc.pages == 0 || desc.page_tokens == 0 || desc.sequences_max == 0 {
            return Err(DeviceError::Invalid(
                "a cache needs pages, cells and sequences".to_owned(),
            ));
        }
        let sequences = desc.sequences_max as usize;
        let mut layers = Vec::new();
        let mut head_dim_max = 0;
        for layer in &desc.layers {
            layers.push(match *layer {
                CacheLayer::Kv { kv_heads, head_dim, rope } => {
                    if kv_heads == 0 || head_dim == 0 {
                        return Err(DeviceError::Invalid("a cache layer without heads".to_owned()));
                    }
                    let rope = rope.map(|rope| rope.0 as usize);
                    if let Some(id) = rope {
                        let pairs = ropes.get(id).map(|rope| rope.frequencies.len());
                        if pairs.is_none_or(|pairs| 2 * pairs > head_dim as usize) {
                            return Err(DeviceError::Invalid(format!(
                                "rope {id} does not fit a cache layer"
                            )));
                        }
                    }
                    head_dim_max = head_dim_max.max(head_dim as usize);
                    Layer::Kv(KvLayer::new(desc, kv_heads, head_dim, rope)?)
                }
                CacheLayer::ShortConv { width, taps } => {
                    if width == 0 || taps == 0 {
                        return Err(DeviceError::Invalid(
                            "a convolution without channels or taps".to_owned(),
                        ));
                    }
                    let (width, taps) = (width as usize, taps as usize);
                    let numbers =
                        (taps - 1).checked_mul(width).and_then(|n| n.checked_mul(sequences * 4));
                    let state =
                        Bytes::zeroed("convolution states", numbers.unwrap_or(usize::MAX / 2))?;
                    Layer::Conv(ConvLayer { width, taps, state })
                }
            });
        }
        Ok(Self {
            desc: desc.clone(),
            layers,
            last: filled("last sampled tokens", sequences, 0)?,
            recent: filled("recent tokens", sequences * RECENT, 0)?,
            cell: [vec![0.0; head_dim_max], vec![0.0; head_dim_max]],
        })
    }

    /// Bytes that it holds.
    pub(crate) fn held_bytes(&self) -> usize {
        let layers = self.layers.iter().map(|layer| match layer {
            Layer::Kv(kv) => {
                let scales = kv.scales.iter().map(Bytes::len).sum::<usize>();
                kv.keys.len() + kv.values.len() + scales
            }
            Layer::Conv(conv) => conv.state.len(),
        });
        layers.sum::<usize>() + (self.last.len() + self.recent.len()) * size_of::<u32>()
    }

    /// Remembers the token at a position.
    pub(crate) fn remember(&mut self, sequence: usize, position: u32, token: u32) {
        self.recent[sequence * RECENT + position as usize % RECENT] = token;
    }

    /// The recent tokens of a sequence, by position modulo their number.
    pub(crate) fn recent(&self, sequence: usize) -> &[u32] {
        &self.recent[sequence * RECENT..][..RECENT]
    }

    /// Whether the command refers to pages, cells and sequences that exist.
    pub(crate) fn check(desc: &CacheDesc, command: &CacheCommand) -> Result<(), String> {
        let fits = match *command {
            CacheCommand::CopyPage { from, to } => from < desc.pages && to < desc.pages,
            CacheCommand::MoveCells { from_page, from_cell, to_page, to_cell, cells, .. } => {
                let ends =
                    |cell: u32| cell.checked_add(cells).is_some_and(|end| end <= desc.page_tokens);
                let ordered = from_page != to_page || to_cell <= from_cell;
                from_page < desc.pages
                    && to_page < desc.pages
                    && ends(from_cell)
                    && ends(to_cell)
                    && ordered
            }
            CacheCommand::ShiftRecent { sequence, from, end, turn } => {
                let starts = i64::from(from) + i64::from(turn) >= 0;
                sequence < desc.sequences_max && from <= end && starts
            }
            CacheCommand::CopySequence { from, to } => {
                from < desc.sequences_max && to < desc.sequences_max
            }
            CacheCommand::ClearSequence { sequence } => sequence < desc.sequences_max,
        };
        if fits { Ok(()) } else { Err(format!("{command:?} reaches outside the cache")) }
    }

    /// Runs one command that [`check`](Self::check) passed.
    pub(crate) fn maintain(&mut self, command: &CacheCommand, ropes: &[Rope]) {
        match *command {
            CacheCommand::CopyPage { from, to } => {
                for layer in &mut self.layers {
                    if let Layer::Kv(kv) = layer {
                        kv.copy_page(from as usize, to as usize);
                    }
                }
            }
            CacheCommand::MoveCells { from_page, from_cell, to_page, to_cell, cells, turn } => {
                for layer in &mut self.layers {
                    let Layer::Kv(kv) = layer else { continue };
                    let rope = kv.rope.map(|rope| &ropes[rope]);
                    let [key, value] = self.cell.each_mut().map(|all| &mut all[..kv.head_dim]);
                    for cell in 0..cells {
                        for head in 0..kv.kv_heads {
                            kv.read_cell(
                                head,
                                from_page as usize,
                                (from_cell + cell) as usize,
                                key,
                                value,
                            );
                            if let Some(rope) = rope {
                                turn_key(rope, turn, key);
                            }
                            kv.append(
                                head,
                                to_page as usize,
                                (to_cell + cell) as usize,
                                key,
                                value,
                            );
                        }
                    }
                }
            }
            CacheCommand::ShiftRecent { sequence, from, end, turn } => {
                self.shift_recent(sequence as usize, from, end, turn);
            }
            CacheCommand::CopySequence { from, to } => {
                let (from, to) = (from as usize, to as usize);
                for layer in &mut self.layers {
                    if let Layer::Conv(conv) = layer {
                        let numbers = conv.numbers();
                        let state: &mut [f32] = conv.state.as_mut_slice();
                        state.copy_within(from * numbers..(from + 1) * numbers, to * numbers);
                    }
                }
                self.last[to] = self.last[from];
                self.recent.copy_within(from * RECENT..(from + 1) * RECENT, to * RECENT);
            }
            CacheCommand::ClearSequence { sequence } => {
                let sequence = sequence as usize;
                for layer in &mut self.layers {
                    if let Layer::Conv(conv) = layer {
                        conv.state_mut(sequence).fill(0.0);
                    }
                }
                self.last[sequence] = 0;
                self.recent[sequence * RECENT..][..RECENT].fill(0);
            }
        }
    }

    /// Only the last [`RECENT`] positions are remembered, so no more than those move.
    fn shift_recent(&mut self, sequence: usize, from: u32, end: u32, turn: i32) {
        let recent = &mut self.recent[sequence * RECENT..][..RECENT];
        let mut old = [0; RECENT];
        old.copy_from_slice(recent);
        let first = from.max(end.saturating_sub(PENALTY_WINDOW_MAX));
        for position in first..end {
            let moved = position.wrapping_add_signed(turn);
            recent[moved as usize % RECENT] = old[position as usize % RECENT];
        }
    }
}

/// Turns one key by `turn` positions; the rope's magnitude is in it already.
fn turn_key(rope: &Rope, turn: i32, key: &mut [f32]) {
    let pairs = rope.frequencies.len();
    for (i, frequency) in rope.frequencies.iter().enumerate() {
        let (sin, cos) = f64::from(turn as f32 * frequency).sin_cos();
        let turn = [[cos as f32, sin as f32]];
        match rope.pairs {
            walla_types::RopePairs::Neighbours => {
                scalar::rotate(&mut key[2 * i..2 * i + 2], &turn, rope.pairs);
            }
            walla_types::RopePairs::Halves => {
                let mut pair = [key[i], key[i + pairs]];
                scalar::rotate(&mut pair, &turn, rope.pairs);
                [key[i], key[i + pairs]] = pair;
            }
        }
    }
}

#[cfg(test)]
mod tests;
