pub(crate) mod image;
mod kv;

use std::sync::PoisonError;

use walla_device::{CacheCommand, CacheDesc, CacheLayer, DeltaShape, DeviceError};
use walla_types::MAX_PENALTY_WINDOW;

pub(crate) use self::kv::KvLayer;
use crate::memory::{Bytes, filled};
use crate::scalar;
use crate::sync::Mutex;
use crate::workspace::Rope;

const RECENT: usize = MAX_PENALTY_WINDOW as usize;

/// Convolution states of one layer: `[max_sequences, taps - 1, width]`, oldest first.
pub(crate) struct ConvLayer {
    pub width: usize,
    pub taps: usize,
    state: Bytes,
}

impl ConvLayer {
    fn new(width: usize, taps: usize, sequences: usize) -> Result<Self, DeviceError> {
        let numbers = (taps - 1).checked_mul(width).and_then(|n| n.checked_mul(sequences * 4));
        let state = Bytes::zeroed("convolution states", numbers.unwrap_or(usize::MAX / 2))?;
        Ok(Self { width, taps, state })
    }

    fn copy(&mut self, from: usize, to: usize) {
        let numbers = self.numbers();
        let state: &mut [f32] = self.state.as_mut_slice();
        state.copy_within(from * numbers..(from + 1) * numbers, to * numbers);
    }

    fn numbers(&self) -> usize {
        (self.taps - 1) * self.width
    }

    /// The state of one sequence: `[taps - 1, width]`.
    pub(crate) fn state(&self, sequence: usize) -> &[f32] {
        &self.state.as_slice()[sequence * self.numbers()..][..self.numbers()]
    }

    /// Mutable access to the state of one sequence.
    pub(crate) fn state_mut(&mut self, sequence: usize) -> &mut [f32] {
        let numbers = self.numbers();
        &mut self.state.as_mut_slice()[sequence * numbers..][..numbers]
    }
}

/// States of one DeltaNet layer.
///
/// Columns of a state matrix are independent. So the matrices are stored in strips of [`STRIP`]
/// columns, `[value_heads, head_dim / STRIP]` of them, each `[max_sequences, head_dim, STRIP]`: a
/// strip of one sequence fits into the L1 cache while a prompt passes. Threads work on different
/// strips; a lock is never contended.
pub(crate) struct DeltaLayer {
    pub shape: DeltaShape,
    pub conv: ConvLayer,
    pub strips: Vec<Mutex<Bytes>>,
}

/// Columns of a state matrix that are stored together.
pub(crate) const STRIP: usize = 16;

impl DeltaLayer {
    fn new(shape: DeltaShape, sequences: usize) -> Result<Self, DeviceError> {
        let conv = ConvLayer::new(shape.channels() as usize, shape.taps as usize, sequences)?;
        let numbers = Self::strip(shape).checked_mul(sequences).and_then(|n| n.checked_mul(4));
        let numbers = numbers.unwrap_or(usize::MAX / 2);
        let strips = (0..shape.values() as usize / STRIP)
            .map(|_| Bytes::zeroed("DeltaNet states", numbers).map(Mutex::new));
        Ok(Self { shape, conv, strips: strips.collect::<Result<_, _>>()? })
    }

    /// Numbers of one strip of one sequence.
    const fn strip(shape: DeltaShape) -> usize {
        shape.head_dim as usize * STRIP
    }

    /// Bytes of the states of all sequences; saturates.
    fn bytes_of(shape: DeltaShape, sequences: u64) -> u64 {
        let matrices = u64::from(shape.values()).saturating_mul(shape.head_dim.into());
        let taps = u64::from(shape.taps.saturating_sub(1));
        let inputs = u64::from(shape.channels()).saturating_mul(taps);
        matrices.saturating_add(inputs).saturating_mul(4).saturating_mul(sequences)
    }

    /// Runs `work` with the strips of all sequences, sequentially.
    fn each(&mut self, work: impl Fn(&mut [f32], usize)) {
        let numbers = Self::strip(self.shape);
        for strip in &mut self.strips {
            let strip = strip.get_mut().unwrap_or_else(PoisonError::into_inner);
            work(strip.as_mut_slice(), numbers);
        }
    }

    fn copy(&mut self, from: usize, to: usize) {
        self.conv.copy(from, to);
        self.each(|strip, n| strip.copy_within(from * n..(from + 1) * n, to * n));
    }

    fn clear(&mut self, sequence: usize) {
        self.conv.state_mut(sequence).fill(0.0);
        self.each(|strip, n| strip[sequence * n..][..n].fill(0.0));
    }
}

/// The cache of one layer.
pub(crate) enum Layer {
    Kv(KvLayer),
    Conv(ConvLayer),
    Delta(DeltaLayer),
}

/// All per-sequence state that is kept between steps.
pub(crate) struct Cache {
    pub desc: CacheDesc,
    pub layers: Vec<Layer>,
    /// Token sampled last, by sequence.
    pub last: Vec<u32>,
    /// `[max_sequences, MAX_PENALTY_WINDOW]`, by position modulo the latter.
    recent: Vec<u32>,
    /// Scratch for one head's key and value when cells move.
    cell: [Vec<f32>; 2],
}

impl Cache {
    /// Bytes that a cache of this description takes; `u64::MAX` on overflow.
    pub(crate) fn bytes_of(desc: &CacheDesc) -> u64 {
        let product =
            |sizes: &[u64]| sizes.iter().fold(1_u64, |all, size| all.saturating_mul(*size));
        let sequences = u64::from(desc.max_sequences);
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
            CacheLayer::DeltaNet(shape) => DeltaLayer::bytes_of(shape, sequences),
        });
        let tokens = product(&[sequences, RECENT as u64 + 1, 4]);
        layers.fold(tokens, u64::saturating_add)
    }

    /// Checks the description and allocates zeros.
    pub(crate) fn new(desc: &CacheDesc, ropes: &[Rope]) -> Result<Self, DeviceError> {
        if desc.pages == 0 || desc.page_tokens == 0 || desc.max_sequences == 0 {
            return Err(DeviceError::Invalid(
                "a cache needs pages, cells and sequences".to_owned(),
            ));
        }
        let sequences = desc.max_sequences as usize;
        let mut layers = Vec::new();
        let mut max_head_dim = 0;
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
                    max_head_dim = max_head_dim.max(head_dim as usize);
                    Layer::Kv(KvLayer::new(desc, kv_heads, head_dim, rope)?)
                }
                CacheLayer::ShortConv { width, taps } => {
                    if width == 0 || taps == 0 {
                        return Err(DeviceError::Invalid(
                            "a convolution without channels or taps".to_owned(),
                        ));
                    }
                    Layer::Conv(ConvLayer::new(width as usize, taps as usize, sequences)?)
                }
                CacheLayer::DeltaNet(shape) => {
                    check_delta(shape)?;
                    Layer::Delta(DeltaLayer::new(shape, sequences)?)
                }
            });
        }
        Ok(Self {
            desc: desc.clone(),
            layers,
            last: filled("last sampled tokens", sequences, 0)?,
            recent: filled("recent tokens", sequences * RECENT, 0)?,
            cell: [vec![0.0; max_head_dim], vec![0.0; max_head_dim]],
        })
    }

    /// Stores the token at a position in the penalty window.
    pub(crate) fn remember(&mut self, sequence: usize, position: u32, token: u32) {
        self.recent[sequence * RECENT + position as usize % RECENT] = token;
    }

    /// The recent tokens of a sequence, indexed by position modulo [`RECENT`].
    pub(crate) fn recent(&self, sequence: usize) -> &[u32] {
        &self.recent[sequence * RECENT..][..RECENT]
    }

    /// Runs one command that [fits](CacheCommand::fits).
    pub(crate) fn run_cache_ops(&mut self, command: &CacheCommand, ropes: &[Rope]) {
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
                    // Ascending, since the destination may be an earlier cell of the same page.
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
                    match layer {
                        Layer::Kv(_) => {}
                        Layer::Conv(conv) => conv.copy(from, to),
                        Layer::Delta(delta) => delta.copy(from, to),
                    }
                }
                self.last[to] = self.last[from];
                self.recent.copy_within(from * RECENT..(from + 1) * RECENT, to * RECENT);
            }
            CacheCommand::ClearSequence { sequence } => {
                let sequence = sequence as usize;
                for layer in &mut self.layers {
                    match layer {
                        Layer::Kv(_) => {}
                        Layer::Conv(conv) => conv.state_mut(sequence).fill(0.0),
                        Layer::Delta(delta) => delta.clear(sequence),
                    }
                }
                self.last[sequence] = 0;
                self.recent[sequence * RECENT..][..RECENT].fill(0);
            }
        }
    }

    /// Only the last [`RECENT`] positions are stored, so at most that number moves.
    fn shift_recent(&mut self, sequence: usize, from: u32, end: u32, turn: i32) {
        let recent = &mut self.recent[sequence * RECENT..][..RECENT];
        // A copy, because old and new places overlap in the ring.
        let mut old = [0; RECENT];
        old.copy_from_slice(recent);
        let first = from.max(end.saturating_sub(MAX_PENALTY_WINDOW));
        for position in first..end {
            let moved = position.wrapping_add_signed(turn);
            recent[moved as usize % RECENT] = old[position as usize % RECENT];
        }
    }
}

fn check_delta(shape: DeltaShape) -> Result<(), DeviceError> {
    let DeltaShape { key_heads, value_heads, head_dim, taps } = shape;
    let has_size = key_heads > 0 && head_dim > 0 && taps > 0 && shape.channels() < u32::MAX;
    if !has_size || value_heads == 0 || !value_heads.is_multiple_of(key_heads) {
        return Err(DeviceError::Invalid(format!("a DeltaNet layer of {shape:?}")));
    }
    if !(head_dim as usize).is_multiple_of(STRIP) {
        let what = format!("DeltaNet heads of {head_dim}, which is no multiple of {STRIP}");
        return Err(DeviceError::Unsupported { device: "cpu".to_owned(), what });
    }
    Ok(())
}

/// Rotates one key by `turn` positions. The key already includes the rope's magnitude.
fn turn_key(rope: &Rope, turn: i32, key: &mut [f32]) {
    let pairs = rope.frequencies.len();
    for (i, frequency) in rope.frequencies.iter().enumerate() {
        let (sin, cos) = libm::sincos(f64::from(turn as f32 * frequency));
        let turn = [[cos as f32, sin as f32]];
        match rope.pairs {
            walla_types::RopePairs::Interleaved => {
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
