use walla_types::CacheCommand;

use crate::handles::RopeId;
use crate::op::DeltaShape;

/// Storage format of keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KvType {
    /// 4 bytes per number: exact, for oracles and tests.
    F32,
    /// 2 bytes per number.
    #[default]
    F16,
    /// 1 byte per number, and an f16 scale per head for each key and each value: half of F16 plus
    /// the scale. A number is `scale * q` with `q` in -127..=127 and `scale` the largest magnitude
    /// over 127. The error is at most half a scale: about 0.4 % of the head's largest number.
    /// Rotating a key to another position rounds it again.
    Q8,
}

impl KvType {
    /// Bytes of one number.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::Q8 => 1,
        }
    }

    /// Bytes of the scale of one head's key or value, in addition to its numbers.
    #[must_use]
    pub const fn scale_bytes(self) -> usize {
        match self {
            Self::F32 | Self::F16 => 0,
            Self::Q8 => 2,
        }
    }
}

/// Cached data of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheLayer {
    /// Keys and values of every token, in pages.
    Kv {
        /// Key and value heads.
        kv_heads: u32,
        /// Elements per head.
        head_dim: u32,
        /// The RoPE table of the keys: needed to move cells to other positions.
        rope: Option<RopeId>,
    },
    /// The last `taps - 1` inputs of a short convolution, for every sequence, as f32.
    ShortConv {
        /// Channels.
        width: u32,
        /// Taps of the kernel.
        taps: u32,
    },
    /// The state of [DeltaNet](crate::Op::DeltaNet), for every sequence, as f32.
    DeltaNet(DeltaShape),
}

/// All per-sequence data that a device stores between steps.
///
/// In addition to pages and the states of recurrent layers, each sequence has the last sampled
/// token (so that the next step can be launched before the host has read it) and the most recent
/// [`MAX_PENALTY_WINDOW`](walla_types::MAX_PENALTY_WINDOW) tokens, indexed by position modulo that
/// number (for penalties). All of it is initially zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheDesc {
    /// Layers, indexed by ops.
    pub layers: Vec<CacheLayer>,
    /// Pages per layer. Page 0 is reserved: padding rows write to it.
    pub pages: u32,
    /// Tokens per page.
    pub page_tokens: u32,
    /// Number of sequences: every [`SeqId`](walla_types::SeqId) is below it.
    pub max_sequences: u32,
    /// Storage format of keys and values.
    pub kv_type: KvType,
}

impl CacheDesc {
    /// Bytes of one page in all layers, keys and values.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        let (number, scale) = (self.kv_type.bytes() as u64, self.kv_type.scale_bytes() as u64);
        let token = self.layers.iter().map(|layer| match *layer {
            CacheLayer::Kv { kv_heads, head_dim, .. } => {
                2 * u64::from(kv_heads) * (u64::from(head_dim) * number + scale)
            }
            CacheLayer::ShortConv { .. } | CacheLayer::DeltaNet(_) => 0,
        });
        token.sum::<u64>() * u64::from(self.page_tokens)
    }

    /// Whether all pages, cells and sequences of a command exist, and moved cells do not overwrite
    /// cells that are still to be moved.
    #[must_use]
    pub fn allows(&self, command: &CacheCommand) -> bool {
        match *command {
            CacheCommand::CopyPage { from, to } => from.max(to) < self.pages,
            CacheCommand::MoveCells { from_page, from_cell, to_page, to_cell, cells, .. } => {
                let ends =
                    |cell: u32| cell.checked_add(cells).is_some_and(|end| end <= self.page_tokens);
                let ordered = from_page != to_page || to_cell <= from_cell;
                from_page.max(to_page) < self.pages && ends(from_cell) && ends(to_cell) && ordered
            }
            CacheCommand::ShiftRecent { sequence, from, end, turn } => {
                let starts = i64::from(from) + i64::from(turn) >= 0;
                sequence < self.max_sequences && from <= end && starts
            }
            CacheCommand::CopySequence { from, to } => from.max(to) < self.max_sequences,
            CacheCommand::ClearSequence { sequence } => sequence < self.max_sequences,
        }
    }
}
