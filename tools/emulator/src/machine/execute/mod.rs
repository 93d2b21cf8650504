//! Executes instructions on a warp's registers and on memory.

mod memory;
mod registers;

use half::f16;

use super::access::changed;
use super::kinds::{Logic, Shuffle, Space, Type, Vote};
use super::op::{Op, Value, WINDOW_BITS};
use super::team::Site;
use super::tensor::{self, Lanes};
use super::warp::{Stop, Warp};
use super::{alu, convert};
use memory::Counted;
use registers::put;

/// Lanes of a mask.
fn each(mut lanes: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = lanes.trailing_zeros();
        lanes &= lanes.wrapping_sub(1);
        (lane < 32).then_some(lane as usize)
    })
}

impl Warp {
    /// Executes an instruction for some lanes. `false`: the warp polled for a value that is not
    /// there yet.
    #[inline(always)]
    pub(super) fn execute(
        &mut self,
        op: &Op,
        lanes: u32,
        site: &mut Site<'_>,
    ) -> Result<bool, Stop> {
        match *op {
            Op::Nothing | Op::WarpBarrier { .. } => {}
            Op::Two { op, to, a, b } => self.two(op, to, a, b, lanes),
            Op::One { op, to, a } => self.one(op, to, a, lanes),
            Op::Three { op, to, a, b, c } => self.three(op, to, [a, b, c], lanes),
            Op::TwoLong { op, to, a, b } => self.two_long(op, to, a, b, lanes),
            Op::OneLong { op, to, a } => self.one_long(op, to, a, lanes),
            Op::ShiftLong { op, to, a, by } => self.shift_long(op, to, a, by, lanes),
            Op::Wide { is_signed, to, a, b, c } => {
                let (a, b, c) = (self.word(a), self.word(b), self.long(c));
                let product = |i: usize| {
                    if is_signed {
                        (i64::from(a[i].cast_signed()) * i64::from(b[i].cast_signed()))
                            .cast_unsigned()
                    } else {
                        u64::from(a[i]) * u64::from(b[i])
                    }
                };
                put(&mut self.longs[to as usize], lanes, |i| product(i).wrapping_add(c[i]));
            }
            Op::Insert { to, a, b, at, bits } => {
                let (a, b) = (self.word(a), self.word(b));
                let (at, bits) = (self.word(at), self.word(bits));
                let inserted =
                    |i: usize| alu::insert(a[i].into(), b[i].into(), at[i], bits[i], 32) as u32;
                put(&mut self.words[to as usize], lanes, inserted);
            }
            Op::InsertLong { to, a, b, at, bits } => {
                let (a, b, at, bits) = (self.long(a), self.long(b), self.word(at), self.word(bits));
                put(&mut self.longs[to as usize], lanes, |i| {
                    alu::insert(a[i], b[i], at[i], bits[i], 64)
                });
            }
            Op::Select { to, a, b, by } => {
                let (a, b, by) = (self.word(a), self.word(b), self.predicates[by as usize]);
                put(&mut self.words[to as usize], lanes, |i| {
                    if by >> i & 1 != 0 { a[i] } else { b[i] }
                });
            }
            Op::SelectLong { to, a, b, by } => {
                let (a, b, by) = (self.long(a), self.long(b), self.predicates[by as usize]);
                put(&mut self.longs[to as usize], lanes, |i| {
                    if by >> i & 1 != 0 { a[i] } else { b[i] }
                });
            }
            Op::Set { compare, of, is_unordered, to, a, b } => {
                let bits = match (a, b) {
                    (Value::Word(a), Value::Word(b)) => {
                        alu::compare_words(compare, of, is_unordered, &self.word(a), &self.word(b))
                    }
                    (a, b) => alu::compare_longs(
                        compare,
                        of,
                        is_unordered,
                        &self.value(a),
                        &self.value(b),
                    ),
                };
                self.put_predicate(to, lanes, bits);
            }
            Op::Logic { op, to, a, b } => {
                let (a, b) = (self.predicates[a as usize], self.predicates[b as usize]);
                let bits = match op {
                    Logic::And => a & b,
                    Logic::Or => a | b,
                    Logic::Xor => a ^ b,
                };
                self.put_predicate(to, lanes, bits);
            }
            Op::NotPredicate { to, a } => {
                self.put_predicate(to, lanes, !self.predicates[a as usize]);
            }
            Op::MovePredicate { to, a } => {
                self.put_predicate(to, lanes, self.predicates[a as usize]);
            }
            Op::SetPredicate { to, is } => {
                self.put_predicate(to, lanes, if is { u32::MAX } else { 0 });
            }
            Op::Convert { to, into, a, from, rounding, saturates } => {
                let a = self.value(a);
                match (from, into) {
                    // The most frequent conversions.
                    (Type::U32 | Type::U16, Type::U64 | Type::U32) => {
                        self.put_register(to, lanes, |i| a[i]);
                    }
                    (Type::U64, Type::U32) => self.put_register(to, lanes, |i| a[i] & 0xFFFF_FFFF),
                    (Type::F16, Type::F32) if !saturates => {
                        let float = |i: usize| tensor::half_to_float(a[i] as u32);
                        self.put_register(to, lanes, |i| float(i).to_bits().into());
                    }
                    (Type::S32, Type::F32) => {
                        self.put_register(to, lanes, |i| ((a[i] as i32) as f32).to_bits().into());
                    }
                    _ => self.put_register(to, lanes, |i| {
                        convert::convert(a[i], from, into, rounding, saturates)
                    }),
                }
            }
            Op::ConvertH2 { to, high, low } => {
                let half = |bits: u32| u32::from(f16::from_f32(f32::from_bits(bits)).to_bits());
                self.map_two(to, high, low, lanes, |high, low| half(high) << 16 | half(low));
            }
            Op::Pack { to, low, high } => {
                self.map_two(to, low, high, lanes, |low, high| low & 0xFFFF | high << 16);
            }
            Op::Unpack { low, high, a } => {
                let a = self.word(a);
                put(&mut self.words[low as usize], lanes, |i| a[i] & 0xFFFF);
                put(&mut self.words[high as usize], lanes, |i| a[i] >> 16);
            }
            Op::PackLong { to, low, high } => {
                let (low, high) = (self.word(low), self.word(high));
                put(&mut self.longs[to as usize], lanes, |i| {
                    u64::from(low[i]) | u64::from(high[i]) << 32
                });
            }
            Op::UnpackLong { low, high, a } => {
                let a = self.long(a);
                put(&mut self.words[low as usize], lanes, |i| a[i] as u32);
                put(&mut self.words[high as usize], lanes, |i| (a[i] >> 32) as u32);
            }
            Op::Special { to, which } => {
                let first = self.first_thread;
                self.put_register(to, lanes, |i| site.special(which, first + i as u32));
            }
            Op::SharedAddress { to, offset } => {
                let address = u64::from(site.window() + offset);
                self.put_register(to, lanes, |_| address);
            }
            Op::Shuffle { how, to, within, a, b, clamp, .. } => {
                let of = [self.word(a), self.word(b), self.word(clamp)];
                self.shuffle(how, to, within, of, lanes);
            }
            Op::Vote { how, to, a, .. } => {
                let yes = self.guarded(a, lanes);
                let answer = match how {
                    Vote::Ballot => yes.into(),
                    Vote::All => (yes == lanes).into(),
                    Vote::Any => (yes != 0).into(),
                };
                self.put_register(to, lanes, |_| answer);
            }
            Op::Reduce { op, to, a, .. } => {
                let a = self.word(a);
                let first = u64::from(a[lanes.trailing_zeros() as usize]);
                let rest = each(lanes & lanes.wrapping_sub(1));
                let all = rest.fold(first, |all, lane| changed(op, all, a[lane].into()));
                put(&mut self.words[to as usize], lanes, |_| all as u32);
            }
            Op::Elect { to, .. } => self.put_predicate(to, lanes, lanes & lanes.wrapping_neg()),
            Op::MapToRank { to, a, rank } => {
                self.map_two(to, a, rank, lanes, |a, rank| {
                    a & ((1 << WINDOW_BITS) - 1) | rank << WINDOW_BITS
                });
            }
            Op::Multiply { depth, to, a, b, c } => {
                let (a, b, c) = (self.words_of(a), self.words_of(b), self.words_of(c));
                let sums = tensor::multiply(depth as usize, &a, &b, &c);
                for (to, sum) in to.iter().zip(&sums) {
                    self.words[*to as usize] = *sum;
                }
            }
            Op::Transpose { to, a } => {
                let matrix = tensor::gather(&self.word(a));
                self.words[to as usize] = tensor::spread(&matrix, true);
            }
            Op::BarrierTry { to, at, parity } => {
                let (at, parity) = (self.addresses(at, Space::Shared, site), self.word(parity));
                let mut is_over = 0;
                for lane in each(lanes) {
                    let barrier = Counted(site.shared.read(at[lane], 8)?);
                    is_over |= u32::from(barrier.phase() != u64::from(parity[lane] & 1)) << lane;
                }
                self.put_predicate(to, lanes, is_over);
                return Ok(is_over == lanes);
            }
            ref of_memory => self.memory(of_memory, lanes, site)?,
        }
        Ok(true)
    }

    /// The manual's pseudo-code for `shfl.sync`. The value of an inactive source is undefined
    /// there; here it is its register's value.
    fn shuffle(
        &mut self,
        how: Shuffle,
        to: u32,
        within: Option<u32>,
        [a, b, clamp]: [Lanes; 3],
        lanes: u32,
    ) {
        let is_whole = clamp.iter().fold(0, |all, clamp| all | (clamp ^ 0x1F)) == 0;
        if is_whole && matches!(how, Shuffle::Butterfly | Shuffle::Index) {
            let base = |i: usize| if how == Shuffle::Butterfly { i } else { 0 };
            put(&mut self.words[to as usize], lanes, |i| a[(base(i) ^ b[i] as usize) & 31]);
            if let Some(within) = within {
                self.put_predicate(within, lanes, u32::MAX);
            }
            return;
        }
        let mut out = [0; 32];
        let mut inside = 0;
        for lane in 0..32_u32 {
            let i = lane as usize;
            let segment = clamp[i] >> 8 & 0x1F;
            let (limit, by) = (clamp[i] & 0x1F, b[i] & 0x1F);
            let (most, least) = ((lane & segment) | (limit & !segment), lane & segment);
            let (source, is_inside) = match how {
                Shuffle::Butterfly => (lane ^ by, lane ^ by <= most),
                Shuffle::Index => (least | (by & !segment), least | (by & !segment) <= most),
                Shuffle::Up => (
                    lane.wrapping_sub(by),
                    lane.cast_signed() - by.cast_signed() >= most.cast_signed(),
                ),
                Shuffle::Down => (lane + by, lane + by <= most),
            };
            out[i] = a[if is_inside { source as usize & 31 } else { i }];
            inside |= u32::from(is_inside) << lane;
        }
        put(&mut self.words[to as usize], lanes, |i| out[i]);
        if let Some(within) = within {
            self.put_predicate(within, lanes, inside);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_of_a_mask_are_listed() {
        assert_eq!(each(0b1010_0001).collect::<Vec<_>>(), [0, 5, 7]);
        assert_eq!(each(u32::MAX).count(), 32);
        assert_eq!(each(0).count(), 0);
    }
}
