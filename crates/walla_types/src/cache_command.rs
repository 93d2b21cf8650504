/// An operation on the KV cache of a device, executed between steps, in list order.
///
/// Commands name physical pages. Later changes of page tables do not affect them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheCommand {
    /// Copies a whole page, keys and values of every layer (copy on write). The pages differ.
    CopyPage {
        /// Source; other sequences still own it.
        from: u32,
        /// Destination; exclusively owned.
        to: u32,
    },
    /// Moves cells from one page to one page in every layer, and rotates their keys by `turn`
    /// positions.
    ///
    /// Neither range crosses the end of its page. The ranges can overlap (then the destination is
    /// not after the source in the same page), so a device reads all cells before it writes the
    /// first. If they are the same, values stay and keys are rotated in place.
    MoveCells {
        /// Source page.
        from_page: u32,
        /// First source cell in its page.
        from_cell: u32,
        /// Destination page.
        to_page: u32,
        /// First destination cell in its page.
        to_cell: u32,
        /// Number of cells, at least 1.
        cells: u32,
        /// Change of the tokens' positions: negative, because tokens only move down.
        turn: i32,
    },
    /// Re-indexes the recent tokens (penalties) after cells were moved: the token at a position
    /// `p` in `from..end` is now at `p + turn`.
    ShiftRecent {
        /// The sequence.
        sequence: u32,
        /// First old position.
        from: u32,
        /// End of the old positions, exclusive.
        end: u32,
        /// Change of the positions.
        turn: i32,
    },
    /// Copies the state of a sequence outside its pages: states of recurrent layers, last sampled
    /// token and recent tokens.
    CopySequence {
        /// Source sequence.
        from: u32,
        /// Destination sequence.
        to: u32,
    },
    /// Zeroes the state of a sequence outside its pages. Needed only with recurrent layers: all
    /// other state is bounded by the sequence's length.
    ClearSequence {
        /// The sequence.
        sequence: u32,
    },
}
