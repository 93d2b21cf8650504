//! Conversions between types.

use half::f16;

use super::kinds::{Rounding, Type};

/// A number during conversion.
enum Number {
    Integer(i128),
    Float(f64),
}

/// Converts bits of one type to bits of another. Integers wrap unless they `saturate`; floats to
/// integers always saturate, and NaN becomes 0.
pub(super) fn convert(
    bits: u64,
    from: Type,
    into: Type,
    rounding: Rounding,
    saturates: bool,
) -> u64 {
    let number = read(bits, from);
    match (number, into) {
        (Number::Integer(value), Type::F16 | Type::F32 | Type::F64) => write_integer(value, into),
        (Number::Integer(value), _) if saturates => clamp(value, into) as u64 & mask(into),
        (Number::Integer(value), _) => value as u64 & mask(into),
        (Number::Float(value), Type::F16 | Type::F32 | Type::F64) => {
            let is_integral = from == into && !saturates;
            let value = if is_integral { integral(value, rounding) } else { value };
            let value = if saturates {
                if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) }
            } else {
                value
            };
            write_float(value, into, rounding)
        }
        (Number::Float(value), _) => {
            let value = if value.is_nan() { 0.0 } else { integral(value, rounding) };
            clamp(value as i128, into) as u64 & mask(into)
        }
    }
}

fn read(bits: u64, of: Type) -> Number {
    match of {
        Type::U8 => Number::Integer((bits as u8).into()),
        Type::S8 => Number::Integer((bits as i8).into()),
        Type::U16 => Number::Integer((bits as u16).into()),
        Type::S16 => Number::Integer((bits as i16).into()),
        Type::U32 => Number::Integer((bits as u32).into()),
        Type::S32 => Number::Integer((bits as i32).into()),
        Type::U64 => Number::Integer(bits.into()),
        Type::S64 => Number::Integer((bits as i64).into()),
        Type::F16 => Number::Float(f16::from_bits(bits as u16).into()),
        Type::F32 => Number::Float(f32::from_bits(bits as u32).into()),
        Type::F64 => Number::Float(f64::from_bits(bits)),
    }
}

fn integral(value: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Nearest => value.round_ties_even(),
        Rounding::Zero => value.trunc(),
        Rounding::Down => value.floor(),
        Rounding::Up => value.ceil(),
    }
}

/// Rust rounds integers to the nearest float; an i128 holds every 64-bit integer exactly.
fn write_integer(value: i128, into: Type) -> u64 {
    match into {
        Type::F16 => f16::from_f64(value as f64).to_bits().into(),
        Type::F32 => (value as f32).to_bits().into(),
        _ => (value as f64).to_bits(),
    }
}

fn write_float(value: f64, into: Type, rounding: Rounding) -> u64 {
    match into {
        Type::F16 => f16::from_f64(value).to_bits().into(),
        Type::F32 => {
            let near = value as f32;
            let directed = match rounding {
                Rounding::Down if f64::from(near) > value => near.next_down(),
                Rounding::Up if f64::from(near) < value => near.next_up(),
                Rounding::Zero if f64::from(near).abs() > value.abs() => {
                    if near > 0.0 {
                        near.next_down()
                    } else {
                        near.next_up()
                    }
                }
                _ => near,
            };
            directed.to_bits().into()
        }
        _ => value.to_bits(),
    }
}

fn mask(of: Type) -> u64 {
    match of {
        Type::U8 | Type::S8 => 0xFF,
        Type::U16 | Type::S16 => 0xFFFF,
        Type::U32 | Type::S32 => 0xFFFF_FFFF,
        _ => u64::MAX,
    }
}

fn clamp(value: i128, into: Type) -> i128 {
    let (least, most) = match into {
        Type::U8 => (0, u8::MAX.into()),
        Type::S8 => (i8::MIN.into(), i8::MAX.into()),
        Type::U16 => (0, u16::MAX.into()),
        Type::S16 => (i16::MIN.into(), i16::MAX.into()),
        Type::U32 => (0, u32::MAX.into()),
        Type::S32 => (i32::MIN.into(), i32::MAX.into()),
        Type::S64 => (i64::MIN.into(), i64::MAX.into()),
        _ => (0, u64::MAX.into()),
    };
    value.clamp(least, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn float(value: f32, into: Type, rounding: Rounding) -> u64 {
        convert(value.to_bits().into(), Type::F32, into, rounding, false)
    }

    #[test]
    fn conversions_use_the_requested_rounding() {
        assert_eq!(float(2.5, Type::S32, Rounding::Nearest), 2);
        assert_eq!(float(-2.5, Type::S32, Rounding::Zero), u64::from((-2_i32).cast_unsigned()));
        assert_eq!(float(-1.0, Type::U32, Rounding::Zero), 0);
        assert_eq!(float(1e20, Type::S32, Rounding::Zero), i32::MAX as u64);
        assert_eq!(float(2.1, Type::F32, Rounding::Up), u64::from(3.0_f32.to_bits()));
        assert_eq!(float(1.0, Type::F16, Rounding::Nearest), 0x3C00);
        assert_eq!(
            convert(1.5_f32.to_bits().into(), Type::F32, Type::F32, Rounding::Nearest, true),
            u64::from(1.0_f32.to_bits())
        );
        assert_eq!(
            convert(u64::from(u32::MAX), Type::S32, Type::S64, Rounding::Nearest, false),
            u64::MAX
        );
        assert_eq!(convert(u64::MAX, Type::U64, Type::U16, Rounding::Nearest, false), 0xFFFF);
    }
}
