//! Arithmetic of one lane.

use half::f16;

use super::kinds::{Compare, One, OneLong, Three, Two, TwoLong, Type};
use super::op::{GENERIC_LOCAL, GENERIC_SHARED};
use super::tensor::{Lanes, half_to_float};

/// Applies a function of two halves to both halves of two words. In f32 sums and products of halves
/// are precise enough that rounding twice equals rounding once.
#[inline(always)]
fn halves(a: u32, b: u32, f: impl Fn(f32, f32) -> f32) -> u32 {
    let one = |a: u16, b: u16| {
        f16::from_f32(f(half_to_float(a.into()), half_to_float(b.into()))).to_bits()
    };
    u32::from(one(a as u16, b as u16)) | u32::from(one((a >> 16) as u16, (b >> 16) as u16)) << 16
}

#[inline(always)]
fn floats(a: u32, b: u32, f: impl Fn(f32, f32) -> f32) -> u32 {
    f(f32::from_bits(a), f32::from_bits(b)).to_bits()
}

#[inline(always)]
pub(super) fn two(op: Two, a: u32, b: u32) -> u32 {
    match op {
        Two::Add => a.wrapping_add(b),
        Two::Sub => a.wrapping_sub(b),
        Two::MulLow => a.wrapping_mul(b),
        Two::MulHighU => ((u64::from(a) * u64::from(b)) >> 32) as u32,
        Two::MulHighS => ((i64::from(a.cast_signed()) * i64::from(b.cast_signed())) >> 32) as u32,
        // PTX leaves division by zero undefined; chips return all ones.
        Two::DivU => a.checked_div(b).unwrap_or(u32::MAX),
        Two::RemU => a.checked_rem(b).unwrap_or(a),
        Two::DivS => {
            if b == 0 {
                u32::MAX
            } else {
                a.cast_signed().wrapping_div(b.cast_signed()).cast_unsigned()
            }
        }
        Two::RemS => {
            if b == 0 {
                a
            } else {
                a.cast_signed().wrapping_rem(b.cast_signed()).cast_unsigned()
            }
        }
        Two::MinU => a.min(b),
        Two::MaxU => a.max(b),
        Two::MinS => a.cast_signed().min(b.cast_signed()).cast_unsigned(),
        Two::MaxS => a.cast_signed().max(b.cast_signed()).cast_unsigned(),
        Two::And => a & b,
        Two::Or => a | b,
        Two::Xor => a ^ b,
        Two::Shl => {
            if b < 32 {
                a << b
            } else {
                0
            }
        }
        Two::ShrU => {
            if b < 32 {
                a >> b
            } else {
                0
            }
        }
        Two::ShrS => (a.cast_signed() >> b.min(31)).cast_unsigned(),
        Two::Add16 => a.wrapping_add(b) & 0xFFFF,
        Two::Sub16 => a.wrapping_sub(b) & 0xFFFF,
        Two::Mul16 => a.wrapping_mul(b) & 0xFFFF,
        Two::Shl16 => {
            if b < 16 {
                (a << b) & 0xFFFF
            } else {
                0
            }
        }
        Two::AddF => floats(a, b, |a, b| a + b),
        Two::SubF => floats(a, b, |a, b| a - b),
        Two::MulF => floats(a, b, |a, b| a * b),
        Two::DivF => floats(a, b, |a, b| a / b),
        Two::MinF => floats(a, b, f32::min),
        Two::MaxF => floats(a, b, f32::max),
        Two::CopySign => (b & 0x7FFF_FFFF) | (a & 0x8000_0000),
        Two::AddH2 => halves(a, b, |a, b| a + b),
        Two::SubH2 => halves(a, b, |a, b| a - b),
        Two::MulH2 => halves(a, b, |a, b| a * b),
    }
}

/// Flushes subnormal numbers to zero.
fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0.0_f32.copysign(x) } else { x }
}

#[inline(always)]
pub(super) fn one(op: One, a: u32) -> u32 {
    let float = |f: fn(f32) -> f32| f(f32::from_bits(a)).to_bits();
    match op {
        One::Move => a,
        One::Not => !a,
        One::Not16 => !a & 0xFFFF,
        One::Neg => a.wrapping_neg(),
        One::Abs => a.cast_signed().wrapping_abs().cast_unsigned(),
        One::NegF => a ^ 0x8000_0000,
        One::AbsF => a & 0x7FFF_FFFF,
        One::Reciprocal => float(|x| 1.0 / x),
        One::ReciprocalRoot => float(|x| (1.0 / f64::from(x).sqrt()) as f32),
        One::Root => float(f32::sqrt),
        One::Exp2 => float(f32::exp2),
        One::Exp2Flush => float(|x| flush(flush(x).exp2())),
        One::Log2 => float(f32::log2),
        One::CountOnes => a.count_ones(),
        One::LeadingZeros => a.leading_zeros(),
        One::Reverse => a.reverse_bits(),
        One::ShiftToTop => {
            if a == 0 {
                u32::MAX
            } else {
                a.leading_zeros()
            }
        }
    }
}

#[inline(always)]
pub(super) fn three(op: Three, a: u32, b: u32, c: u32) -> u32 {
    match op {
        Three::MulAdd => a.wrapping_mul(b).wrapping_add(c),
        Three::Fma => f32::from_bits(a).mul_add(f32::from_bits(b), f32::from_bits(c)).to_bits(),
        Three::FmaDown => {
            fma_down(f32::from_bits(a), f32::from_bits(b), f32::from_bits(c)).to_bits()
        }
        Three::FmaH2 => {
            let one = |a: u32, b: u32, c: u32| {
                let number = |bits: u32| f16::from_bits(bits as u16).to_f64();
                u32::from(f16::from_f64(number(a) * number(b) + number(c)).to_bits())
            };
            one(a, b, c) | one(a >> 16, b >> 16, c >> 16) << 16
        }
        Three::Permute => permute(a, b, c),
    }
}

/// The product is exact in f64; the sum is rounded there first, which matters only for numbers of
/// very different size.
fn fma_down(a: f32, b: f32, c: f32) -> f32 {
    let exact = f64::from(a) * f64::from(b) + f64::from(c);
    let near = exact as f32;
    if f64::from(near) > exact { near.next_down() } else { near }
}

/// Four bytes of the eight of `b` and `a`; the high bit of a selector repeats the byte's sign.
fn permute(a: u32, b: u32, selectors: u32) -> u32 {
    let bytes = (u64::from(b) << 32 | u64::from(a)).to_le_bytes();
    let pick = |i: u32| {
        let selector = selectors >> (4 * i) & 0xF;
        let byte = bytes[(selector & 7) as usize];
        if selector & 8 == 0 {
            byte
        } else if byte & 0x80 == 0 {
            0
        } else {
            0xFF
        }
    };
    u32::from_le_bytes([pick(0), pick(1), pick(2), pick(3)])
}

/// Inserts the lowest `bits` bits of `a` at bit `at` of `b`.
pub(super) fn insert(a: u64, b: u64, at: u32, bits: u32, width: u32) -> u64 {
    let (at, bits) = (at & 0xFF, bits & 0xFF);
    if at >= width || bits == 0 {
        return b;
    }
    let mask = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
    (b & !(mask << at)) | (a & mask) << at
}

#[inline(always)]
pub(super) fn two_long(op: TwoLong, a: u64, b: u64) -> u64 {
    let doubles = |f: fn(f64, f64) -> f64| f(f64::from_bits(a), f64::from_bits(b)).to_bits();
    match op {
        TwoLong::Add => a.wrapping_add(b),
        TwoLong::Sub => a.wrapping_sub(b),
        TwoLong::MulLow => a.wrapping_mul(b),
        TwoLong::MulHighU => ((u128::from(a) * u128::from(b)) >> 64) as u64,
        TwoLong::DivU => a.checked_div(b).unwrap_or(u64::MAX),
        TwoLong::RemU => a.checked_rem(b).unwrap_or(a),
        TwoLong::MinU => a.min(b),
        TwoLong::MaxU => a.max(b),
        TwoLong::MinS => a.cast_signed().min(b.cast_signed()).cast_unsigned(),
        TwoLong::MaxS => a.cast_signed().max(b.cast_signed()).cast_unsigned(),
        TwoLong::And => a & b,
        TwoLong::Or => a | b,
        TwoLong::Xor => a ^ b,
        TwoLong::AddF => doubles(|a, b| a + b),
        TwoLong::SubF => doubles(|a, b| a - b),
        TwoLong::MulF => doubles(|a, b| a * b),
        TwoLong::DivF => doubles(|a, b| a / b),
        TwoLong::MinF => doubles(f64::min),
        TwoLong::MaxF => doubles(f64::max),
    }
}

#[inline(always)]
pub(super) fn one_long(op: OneLong, a: u64) -> u64 {
    match op {
        OneLong::Move => a,
        OneLong::Not => !a,
        OneLong::Neg => a.wrapping_neg(),
        OneLong::NegF => a ^ 1 << 63,
        OneLong::AbsF => a & !(1 << 63),
        OneLong::Plain => a & !(GENERIC_SHARED | GENERIC_LOCAL),
        OneLong::MarkShared => a | GENERIC_SHARED,
        OneLong::MarkLocal => a | GENERIC_LOCAL,
    }
}

/// Mask of the lanes for which a comparison holds.
#[inline(always)]
fn ordered<T: PartialOrd>(compare: Compare, a: impl Fn(usize) -> T, b: impl Fn(usize) -> T) -> u32 {
    match compare {
        Compare::Eq => mask(|i| a(i) == b(i)),
        Compare::Ne => mask(|i| a(i) != b(i)),
        Compare::Lt => mask(|i| a(i) < b(i)),
        Compare::Le => mask(|i| a(i) <= b(i)),
        Compare::Gt => mask(|i| a(i) > b(i)),
        Compare::Ge => mask(|i| a(i) >= b(i)),
    }
}

/// Comparisons with NaN are false; unordered comparisons are true.
#[inline(always)]
fn floating<T: PartialOrd + Copy>(
    compare: Compare,
    is_unordered: bool,
    a: impl Fn(usize) -> T,
    b: impl Fn(usize) -> T,
) -> u32 {
    // NaN is not equal to itself.
    let is_none = mask(|i| a(i) != a(i) || b(i) != b(i));
    let yes = ordered(compare, a, b);
    if is_unordered { yes | is_none } else { yes & !is_none }
}

/// One bit for each lane.
#[inline(always)]
pub(super) fn mask(is: impl Fn(usize) -> bool) -> u32 {
    let bits = super::tensor::lanes(|lane| if is(lane) { 1_u32 << lane } else { 0 });
    bits.iter().fold(0, |all, bit| all | bit)
}

#[inline(always)]
pub(super) fn compare_words(
    compare: Compare,
    of: Type,
    is_unordered: bool,
    a: &Lanes,
    b: &Lanes,
) -> u32 {
    match of {
        Type::S32 => ordered(compare, |i| a[i].cast_signed(), |i| b[i].cast_signed()),
        Type::S16 => ordered(compare, |i| a[i] as i16, |i| b[i] as i16),
        Type::U16 | Type::U8 => ordered(compare, |i| a[i] as u16, |i| b[i] as u16),
        Type::F32 => {
            floating(compare, is_unordered, |i| f32::from_bits(a[i]), |i| f32::from_bits(b[i]))
        }
        Type::F16 => {
            let (a, b) = (|i: usize| half_to_float(a[i]), |i: usize| half_to_float(b[i]));
            floating(compare, is_unordered, a, b)
        }
        _ => ordered(compare, |i| a[i], |i| b[i]),
    }
}

pub(super) fn compare_longs(
    compare: Compare,
    of: Type,
    is_unordered: bool,
    a: &[u64; 32],
    b: &[u64; 32],
) -> u32 {
    match of {
        Type::S64 => ordered(compare, |i| a[i].cast_signed(), |i| b[i].cast_signed()),
        Type::F64 => {
            floating(compare, is_unordered, |i| f64::from_bits(a[i]), |i| f64::from_bits(b[i]))
        }
        _ => ordered(compare, |i| a[i], |i| b[i]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_instructions_match_the_ptx_manual() {
        assert_eq!(permute(0x4433_2211, 0x8877_6655, 0x7410), 0x8855_2211);
        assert_eq!(permute(0x0000_0080, 0, 0x8888), 0xFFFF_FFFF);
        assert_eq!(insert(0b101, 0, 4, 3, 32), 0b101_0000);
        assert_eq!(insert(7, 0xF0, 0, 2, 32), 0xF3);
        assert_eq!(two(Two::Shl, 1, 32), 0);
        assert_eq!(two(Two::ShrS, 0x8000_0000, 40), u32::MAX);
        assert_eq!(
            two(Two::CopySign, (-1.0_f32).to_bits(), 2.0_f32.to_bits()),
            (-2.0_f32).to_bits()
        );
        assert_eq!(one(One::ShiftToTop, 1), 31);
    }

    #[test]
    fn round_down_rounds_towards_negative_infinity() {
        assert_eq!(fma_down(1.0, 1e-9, 1.0), 1.0);
        assert_eq!(fma_down(-1.0, 1e-9, 1.0), 1.0_f32.next_down());
    }
}
