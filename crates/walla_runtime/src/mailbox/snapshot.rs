use core::array;

use super::sync::{AtomicU64, Ordering, fence};

/// Maximum tries of a reader before it accepts inconsistent numbers.
const MAX_LOOKS: usize = 4;

/// Numbers that one thread writes together and any thread reads together, without waiting (a
/// seqlock).
///
/// `turn` is odd while the writer writes. A reader that sees the same even `turn` before and after
/// reading has numbers of one moment. After [`MAX_LOOKS`] tries it returns a mixture (each number
/// was written, but at two moments) instead of waiting.
#[derive(Debug)]
pub(crate) struct Snapshot<const N: usize> {
    turn: AtomicU64,
    numbers: [AtomicU64; N],
}

impl<const N: usize> Snapshot<N> {
    /// All numbers are 0.
    pub(crate) fn new() -> Self {
        Self { turn: AtomicU64::new(0), numbers: array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Called by one thread only.
    pub(crate) fn store(&self, numbers: [u64; N]) {
        let turn = self.turn.load(Ordering::Relaxed);
        self.turn.store(turn + 1, Ordering::Relaxed);
        fence(Ordering::Release); // No number is stored before the odd turn.
        for (cell, number) in self.numbers.iter().zip(numbers) {
            cell.store(number, Ordering::Relaxed);
        }
        self.turn.store(turn + 2, Ordering::Release);
    }

    /// Returns the numbers of one moment, or, if the writer never pauses, of two moments.
    pub(crate) fn load(&self) -> [u64; N] {
        for _ in 1..MAX_LOOKS {
            let (numbers, of_one_moment) = self.look();
            if of_one_moment {
                return numbers;
            }
        }
        self.look().0
    }

    /// Returns the numbers, and whether they are of one moment.
    pub(crate) fn look(&self) -> ([u64; N], bool) {
        let before = self.turn.load(Ordering::Acquire);
        let numbers = array::from_fn(|i| self.numbers[i].load(Ordering::Relaxed));
        fence(Ordering::Acquire); // No number is loaded after the second load of `turn`.
        let after = self.turn.load(Ordering::Relaxed);
        (numbers, before.is_multiple_of(2) && before == after)
    }
}
