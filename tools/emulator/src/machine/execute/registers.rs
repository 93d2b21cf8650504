//! Registers: sources, results, and lane-wise operations.

use super::each;
use crate::machine::alu;
use crate::machine::kinds::{One, OneLong, Shift, Three, Two, TwoLong};
use crate::machine::op::{Long, Register, Value, Word};
use crate::machine::tensor::{self, Lanes};
use crate::machine::warp::Warp;

/// Writes a number to some lanes.
#[inline(always)]
pub(super) fn put<T: Copy>(to: &mut [T; 32], lanes: u32, value: impl Fn(usize) -> T) {
    if lanes == u32::MAX {
        for (lane, to) in to.iter_mut().enumerate() {
            *to = value(lane);
        }
    } else {
        for (lane, to) in to.iter_mut().enumerate() {
            if lanes >> lane & 1 != 0 {
                *to = value(lane);
            }
        }
    }
}

impl Warp {
    #[inline(always)]
    pub(super) fn map_one(&mut self, to: u32, a: Word, lanes: u32, f: impl Fn(u32) -> u32) {
        let a = self.word(a);
        put(&mut self.words[to as usize], lanes, |i| f(a[i]));
    }

    #[inline(always)]
    pub(super) fn map_two(
        &mut self,
        to: u32,
        a: Word,
        b: Word,
        lanes: u32,
        f: impl Fn(u32, u32) -> u32,
    ) {
        let (a, b) = (self.word(a), self.word(b));
        put(&mut self.words[to as usize], lanes, |i| f(a[i], b[i]));
    }

    #[inline(always)]
    pub(super) fn map_three(
        &mut self,
        to: u32,
        of: [Word; 3],
        lanes: u32,
        f: impl Fn(u32, u32, u32) -> u32,
    ) {
        let [a, b, c] = of;
        let (a, b, c) = (self.word(a), self.word(b), self.word(c));
        put(&mut self.words[to as usize], lanes, |i| f(a[i], b[i], c[i]));
    }

    #[inline(always)]
    pub(super) fn map_long(
        &mut self,
        to: u32,
        a: Long,
        b: Long,
        lanes: u32,
        f: impl Fn(u64, u64) -> u64,
    ) {
        let (a, b) = (self.long(a), self.long(b));
        put(&mut self.longs[to as usize], lanes, |i| f(a[i], b[i]));
    }

    /// Each loop has one operation, so that the compiler can vectorise it over the lanes.
    #[inline(always)]
    pub(super) fn two(&mut self, op: Two, to: u32, a: Word, b: Word, lanes: u32) {
        macro_rules! of {
            ($($name:ident)*) => {
                match op {
                    $(Two::$name => {
                        self.map_two(to, a, b, lanes, |a, b| alu::two(Two::$name, a, b))
                    })*
                }
            };
        }
        of!(Add Sub MulLow MulHighU MulHighS DivU DivS RemU RemS MinU MaxU MinS MaxS And Or Xor
            Shl ShrU ShrS Add16 Sub16 Mul16 Shl16 AddF SubF MulF DivF MinF MaxF CopySign AddH2
            SubH2 MulH2);
    }

    #[inline(always)]
    pub(super) fn one(&mut self, op: One, to: u32, a: Word, lanes: u32) {
        macro_rules! of {
            ($($name:ident)*) => {
                match op {
                    $(One::$name => self.map_one(to, a, lanes, |a| alu::one(One::$name, a)),)*
                }
            };
        }
        of!(Move Not Not16 Neg Abs NegF AbsF Reciprocal ReciprocalRoot Root Exp2 Exp2Flush Log2
            CountOnes LeadingZeros Reverse ShiftToTop);
    }

    #[inline(always)]
    pub(super) fn three(&mut self, op: Three, to: u32, of: [Word; 3], lanes: u32) {
        macro_rules! of {
            ($($name:ident)*) => {
                match op {
                    $(Three::$name => {
                        self.map_three(to, of, lanes, |a, b, c| alu::three(Three::$name, a, b, c))
                    })*
                }
            };
        }
        of!(MulAdd Fma FmaDown FmaH2 Permute);
    }

    #[inline(always)]
    pub(super) fn two_long(&mut self, op: TwoLong, to: u32, a: Long, b: Long, lanes: u32) {
        macro_rules! of {
            ($($name:ident)*) => {
                match op {
                    $(TwoLong::$name => {
                        self.map_long(to, a, b, lanes, |a, b| alu::two_long(TwoLong::$name, a, b))
                    })*
                }
            };
        }
        of!(Add Sub MulLow MulHighU DivU RemU MinU MaxU MinS MaxS And Or Xor AddF SubF MulF DivF
            MinF MaxF);
    }

    #[inline(always)]
    pub(super) fn one_long(&mut self, op: OneLong, to: u32, a: Long, lanes: u32) {
        let a = self.long(a);
        put(&mut self.longs[to as usize], lanes, |i| alu::one_long(op, a[i]));
    }

    #[inline(always)]
    pub(super) fn shift_long(&mut self, op: Shift, to: u32, a: Long, by: Word, lanes: u32) {
        let (a, by) = (self.long(a), self.word(by));
        let shifted = |i: usize| match op {
            Shift::Left => a[i].checked_shl(by[i]).unwrap_or(0),
            Shift::RightU => a[i].checked_shr(by[i]).unwrap_or(0),
            Shift::RightS => (a[i].cast_signed() >> by[i].min(63)).cast_unsigned(),
        };
        put(&mut self.longs[to as usize], lanes, shifted);
    }

    #[inline(always)]
    pub(super) fn words_of<const N: usize>(&self, of: [Word; N]) -> [Lanes; N] {
        let mut all = [[0; 32]; N];
        for (to, source) in all.iter_mut().zip(of) {
            *to = self.word(source);
        }
        all
    }

    /// Bits of any source, in its width.
    #[inline(always)]
    pub(super) fn value(&self, value: Value) -> [u64; 32] {
        match value {
            Value::Word(word) => {
                let word = self.word(word);
                tensor::lanes(|i| word[i].into())
            }
            Value::Long(long) => self.long(long),
        }
    }

    #[inline(always)]
    pub(super) fn put_register(&mut self, to: Register, lanes: u32, value: impl Fn(usize) -> u64) {
        match to {
            Register::Word(to) => put(&mut self.words[to as usize], lanes, |i| value(i) as u32),
            Register::Long(to) => put(&mut self.longs[to as usize], lanes, value),
            Register::Predicate(to) => {
                let bits =
                    each(lanes).fold(0, |bits, lane| bits | u32::from(value(lane) != 0) << lane);
                self.put_predicate(to, lanes, bits);
            }
        }
    }

    #[inline(always)]
    pub(super) fn put_predicate(&mut self, to: u32, lanes: u32, bits: u32) {
        let to = &mut self.predicates[to as usize];
        *to = *to & !lanes | bits & lanes;
    }
}
