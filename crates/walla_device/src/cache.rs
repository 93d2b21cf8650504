use crate::device::RopeId;

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KvType {
    /// 4 bytes a number: exact, for oracles and tests.
    F32,
    /// 2 bytes a number.
    #[default]
    F16,
    /// 1 byte a number, and an f16 scale for each key and each value of a head: half of F16 but for
    /// the scale. A number is `scale * q` with `q` in -127..=127 and `scale` the largest magnitude
    /// over 127, so it is off by half a scale at most: some 0.4 % of the head's largest number.
    /// Turning a key to another position rounds it again.
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

    /// Bytes of the scale that the key or the value of one head has besides its numbers.
    #[must_use]
    pub const fn scale_bytes(self) -> usize {
        match self {
            Self::F32 | Self::F16 => 0,
            Self::Q8 => 2,
        }
    }
}

/// What one layer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheLayer {
    /// Keys and values of every token, in pages.
    Kv {
        /// Key and value heads.
        kv_heads: u32,
        /// Numbers in a head.
        head_dim: u32,
        /// The rotation that keys carry: needed to move cells to other positions.
        rope: Option<RopeId>,
    },
    /// The last `taps - 1` inputs of a short convolution, for every sequence, as f32.
    ShortConv {
        /// Channels.
        width: u32,
        /// Taps of the kernel.
        taps: u32,
    },
}

/// Everything that a device keeps of the sequences between steps.
///
/// Besides pages and convolution states that is, for each sequence, the token that was sampled last
/// (so that the next step can be launched before the host has read it) and the most recent
/// [`PENALTY_WINDOW_MAX`](walla_types::PENALTY_WINDOW_MAX) tokens, indexed by position modulo that
/// number (for penalties). All of it starts as zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheDesc {
    /// Layers, in the order in which ops refer to them.
    pub layers: Vec<CacheLayer>,
    /// Pages of every layer. Page 0 is reserved: padding rows write there.
    pub pages: u32,
    /// Tokens in a page.
    pub page_tokens: u32,
    /// Sequences: the bound of every [`SeqId`](walla_types::SeqId).
    pub sequences_max: u32,
    /// How keys and values are stored.
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
            CacheLayer::ShortConv { .. } => 0,
        });
        token.sum::<u64>() * u64::from(self.page_tokens)
    }
}

/// Upkeep of a cache between steps. Commands run in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheCommand {
    /// Copies a whole page in every layer (copy on write).
    CopyPage {
        /// Source page.
        from: u32,
        /// Destination page.
        to: u32,
    },
    /// Moves cells of one page to another place in every layer and turns their keys by `turn`
    /// positions. Source and destination may overlap only if they are the same page and the
    /// destination comes first.
    MoveCells {
        /// Source page.
        from_page: u32,
        /// First source cell in its page.
        from_cell: u32,
        /// Destination page.
        to_page: u32,
        /// First destination cell in its page.
        to_cell: u32,
        /// Cells moved.
        cells: u32,
        /// Positions that the tokens move by (negative: towards the start).
        turn: i32,
    },
    /// Re-indexes the recent tokens after cells moved: token at position `p >= from` is now at `p +
    /// turn`.
    ShiftRecent {
        /// The sequence.
        sequence: u32,
        /// First old position that moved.
        from: u32,
        /// Old end (one after the last position).
        end: u32,
        /// Positions moved by.
        turn: i32,
    },
    /// Copies convolution states, last sampled token and recent tokens.
    CopySequence {
        /// Source sequence.
        from: u32,
        /// Destination sequence.
        to: u32,
    },
    /// Zeroes convolution states, last sampled token and recent tokens.
    ClearSequence {
        /// The sequence.
        sequence: u32,
    },
}
