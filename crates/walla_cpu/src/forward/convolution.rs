//! Causal convolutions per channel, whose latest inputs are the state of a sequence.

use walla_device::step::StepRow;

use crate::cache::ConvLayer;

/// Location of an earlier input of a convolution.
enum Earlier {
    /// In this row of the step.
    Row(usize),
    /// In this entry of the sequence's state.
    State(usize),
    /// Before the first token.
    Zero,
}

/// Inputs of a causal convolution per channel.
pub(super) struct Inputs<'a> {
    /// Joined products; the inputs `u` are the first part.
    pub product: &'a [f32],
    pub padded: usize,
    pub rows: &'a [StepRow],
}

impl<'a> Inputs<'a> {
    pub(super) fn row(&self, row: usize) -> &'a [f32] {
        &self.product[row * self.padded..][..self.padded]
    }

    /// Location of the input `back` tokens before row `row`. The state's latest entry precedes the
    /// sequence's first row of the step.
    fn earlier(&self, taps: usize, row: usize, back: usize) -> Earlier {
        if (self.rows[row].position as usize) < back {
            return Earlier::Zero;
        }
        let mut at = row;
        for walked in 0..back {
            match usize::try_from(self.rows[at].previous) {
                Ok(previous) => at = previous,
                Err(_) => return Earlier::State(taps - 1 - (back - walked)),
            }
        }
        Earlier::Row(at)
    }

    /// `out = sum_t kernel[:, t] * u(p - (taps - 1) + t)` for the channels from `first` on, oldest
    /// first.
    pub(super) fn convolve(
        &self,
        conv: &ConvLayer,
        kernel: &[f32],
        row: usize,
        first: usize,
        out: &mut [f32],
    ) {
        let (taps, width) = (conv.taps, conv.width);
        let state = conv.state(self.rows[row].sequence as usize);
        let kernel = &kernel[first * taps..][..out.len() * taps];
        let input = |tap: usize| match self.earlier(taps, row, taps - 1 - tap) {
            Earlier::Zero => None,
            Earlier::Row(row) => Some(&self.row(row)[first..]),
            Earlier::State(entry) => Some(&state[entry * width + first..]),
        };
        // The usual number of taps, in one pass over the kernel.
        let (quads, rest) = kernel.as_chunks::<4>();
        if let [Some(a), Some(b), Some(c), Some(d)] = [0, 1, 2, 3].map(|tap| {
            let is_usual = taps == 4 && rest.is_empty();
            input(tap.min(taps - 1)).filter(|_| is_usual)
        }) {
            for (((((out, [p, q, r, s]), a), b), c), d) in
                out.iter_mut().zip(quads).zip(a).zip(b).zip(c).zip(d)
            {
                // With `0.0 +`, as in the loop below: without it a sum of negative zeros differs.
                *out = (((0.0 + p * a) + q * b) + r * c) + s * d;
            }
            return;
        }
        out.fill(0.0);
        for tap in 0..taps {
            let Some(u) = input(tap) else { continue };
            let kernel = kernel.iter().skip(tap).step_by(taps);
            for ((out, u), kernel) in out.iter_mut().zip(u).zip(kernel) {
                *out += kernel * u;
            }
        }
    }

    /// Stores the new states of all sequences.
    pub(super) fn leave_states(&self, conv: &mut ConvLayer) {
        let ends = self.rows.iter().enumerate();
        for (r, row) in ends.filter(|(_, row)| row.flags & StepRow::LAST_OF_SEQUENCE != 0) {
            self.leave_state(conv, r, row.sequence as usize);
        }
    }

    /// Stores the inputs of the `taps - 1` tokens that end with `row`.
    ///
    /// Entries move only towards the start, so a pass from the oldest on reads each entry before it
    /// is overwritten.
    fn leave_state(&self, conv: &mut ConvLayer, row: usize, sequence: usize) {
        let (taps, width) = (conv.taps, conv.width);
        let state = conv.state_mut(sequence);
        for entry in 0..taps - 1 {
            let to = entry * width;
            match self.earlier(taps, row, taps - 2 - entry) {
                Earlier::Zero => state[to..to + width].fill(0.0),
                Earlier::Row(row) => state[to..to + width].copy_from_slice(&self.row(row)[..width]),
                Earlier::State(from) => state.copy_within(from * width..(from + 1) * width, to),
            }
        }
    }
}
