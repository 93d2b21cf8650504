//! Arithmetic instructions.

use super::{Parts, Result, bytes, type_named, unknown};
use crate::machine::{
    Compare, Logic, Long, One, OneLong, Op, Register, Rounding, Shift, Three, Two, TwoLong, Type,
    Value,
};
use crate::ptx::body::Body;
use crate::ptx::operand::Operand;

impl<'a> Body<'a> {
    pub(super) fn setp(&mut self, parts: &Parts<'_>, operands: &[Operand<'a>]) -> Result<Op> {
        let [to, a, b] = operands else { return unknown() };
        let of = parts.last_type()?;
        let name = parts.0.get(1).copied().unwrap_or_default();
        let is_float = matches!(of, Type::F16 | Type::F32 | Type::F64);
        let (name, is_unordered) = match name.strip_suffix('u') {
            Some(name) if is_float => (name, true),
            _ => (name, false),
        };
        let compare = match name {
            "eq" => Compare::Eq,
            "ne" => Compare::Ne,
            "lt" | "lo" => Compare::Lt,
            "le" | "ls" => Compare::Le,
            "gt" | "hi" => Compare::Gt,
            "ge" | "hs" => Compare::Ge,
            _ => return unknown(),
        };
        let is_long = bytes(of) == 8;
        let (a, b) = (self.value(a, is_long)?, self.value(b, is_long)?);
        Ok(Op::Set { compare, of, is_unordered, to: self.predicate(to)?, a, b })
    }

    pub(super) fn selp(&mut self, parts: &Parts<'_>, operands: &[Operand<'a>]) -> Result<Op> {
        let [to, a, b, by] = operands else { return unknown() };
        let by = self.predicate(by)?;
        if bytes(parts.last_type()?) == 8 {
            return Ok(Op::SelectLong {
                to: self.long_register(to)?,
                a: self.long(a)?,
                b: self.long(b)?,
                by,
            });
        }
        Ok(Op::Select { to: self.word_register(to)?, a: self.word(a)?, b: self.word(b)?, by })
    }

    pub(super) fn cvt(&mut self, parts: &Parts<'_>, operands: &[Operand<'a>]) -> Result<Op> {
        if parts.has("f16x2") {
            let [to, high, low] = operands else { return unknown() };
            return Ok(Op::ConvertH2 {
                to: self.word_register(to)?,
                high: self.word(high)?,
                low: self.word(low)?,
            });
        }
        let [to, a] = operands else { return unknown() };
        let types: Vec<Type> = parts.0.iter().filter_map(|part| type_named(part)).collect();
        let [into, from] = types.as_slice() else { return unknown() };
        let of = |part: &&str| match *part {
            "rn" | "rni" => Some(Rounding::Nearest),
            "rz" | "rzi" => Some(Rounding::Zero),
            "rm" | "rmi" => Some(Rounding::Down),
            "rp" | "rpi" => Some(Rounding::Up),
            _ => None,
        };
        let rounding = parts.0.iter().find_map(of);
        // From a float of the same type: without `i` the value does not change.
        let rounding =
            rounding.filter(|_| into != from || parts.0.iter().any(|part| part.ends_with('i')));
        let keeps = into == from && rounding.is_none() && !parts.has("sat");
        let a = self.value(a, bytes(*from) == 8)?;
        if let (true, Value::Word(a)) = (keeps, a) {
            return Ok(Op::One { op: One::Move, to: self.word_register(to)?, a });
        }
        let rounding = rounding.unwrap_or(Rounding::Nearest);
        let to = self.register(to)?;
        Ok(Op::Convert { to, into: *into, a, from: *from, rounding, saturates: parts.has("sat") })
    }

    pub(super) fn two(&mut self, parts: &Parts<'_>, operands: &[Operand<'a>]) -> Result<Op> {
        let [to, a, b] = operands else { return unknown() };
        let base = parts.base();
        if parts.has("pred") {
            let op = match base {
                "and" => Logic::And,
                "or" => Logic::Or,
                "xor" => Logic::Xor,
                _ => return unknown(),
            };
            return Ok(Op::Logic {
                op,
                to: self.predicate(to)?,
                a: self.predicate(a)?,
                b: self.predicate(b)?,
            });
        }
        if parts.has("f16x2") {
            let op = match base {
                "add" => Two::AddH2,
                "sub" => Two::SubH2,
                "mul" => Two::MulH2,
                _ => return unknown(),
            };
            return Ok(Op::Two {
                op,
                to: self.word_register(to)?,
                a: self.word(a)?,
                b: self.word(b)?,
            });
        }
        let of = parts.last_type()?;
        if base == "mul" && parts.has("wide") {
            let is_signed = matches!(of, Type::S32 | Type::S16);
            let (a, b) = (self.word(a)?, self.word(b)?);
            return Ok(match (self.register(to)?, is_signed) {
                (Register::Long(to), _) => Op::Wide { is_signed, to, a, b, c: Long::Number(0) },
                (Register::Word(to), false) => Op::Two { op: Two::MulLow, to, a, b },
                _ => return unknown(),
            });
        }
        if bytes(of) < 8 {
            let op = two(base, of, parts)?;
            return Ok(Op::Two {
                op,
                to: self.word_register(to)?,
                a: self.word(a)?,
                b: self.word(b)?,
            });
        }
        let to = self.long_register(to)?;
        let shift = match (base, of) {
            ("shl", _) => Some(Shift::Left),
            ("shr", Type::S64) => Some(Shift::RightS),
            ("shr", _) => Some(Shift::RightU),
            _ => None,
        };
        if let Some(op) = shift {
            return Ok(Op::ShiftLong { op, to, a: self.long(a)?, by: self.word(b)? });
        }
        Ok(Op::TwoLong { op: two_long(base, of, parts)?, to, a: self.long(a)?, b: self.long(b)? })
    }

    pub(super) fn one(
        &mut self,
        parts: &Parts<'_>,
        to: &Operand<'a>,
        a: &Operand<'a>,
    ) -> Result<Op> {
        if parts.has("pred") {
            return Ok(Op::NotPredicate { to: self.predicate(to)?, a: self.predicate(a)? });
        }
        let of = parts.last_type()?;
        let base = parts.base();
        if bytes(of) == 8 {
            let op = match (base, of) {
                ("not", _) => OneLong::Not,
                ("neg", Type::F64) => OneLong::NegF,
                ("neg", _) => OneLong::Neg,
                ("abs", Type::F64) => OneLong::AbsF,
                _ => return unknown(),
            };
            return Ok(Op::OneLong { op, to: self.long_register(to)?, a: self.long(a)? });
        }
        let op = match (base, of) {
            ("not", Type::U16) => One::Not16,
            ("not", _) => One::Not,
            ("neg", Type::F32) => One::NegF,
            ("neg", Type::S32) => One::Neg,
            ("abs", Type::F32) => One::AbsF,
            ("abs", Type::S32) => One::Abs,
            ("rcp", Type::F32) => One::Reciprocal,
            ("rsqrt", Type::F32) => One::ReciprocalRoot,
            ("sqrt", Type::F32) => One::Root,
            ("ex2", Type::F32) if parts.has("ftz") => One::Exp2Flush,
            ("ex2", Type::F32) => One::Exp2,
            ("lg2", Type::F32) => One::Log2,
            ("popc", _) => One::CountOnes,
            ("clz", _) => One::LeadingZeros,
            ("brev", _) => One::Reverse,
            ("bfind", Type::U32) if parts.has("shiftamt") => One::ShiftToTop,
            _ => return unknown(),
        };
        Ok(Op::One { op, to: self.word_register(to)?, a: self.word(a)? })
    }

    pub(super) fn three(&mut self, parts: &Parts<'_>, operands: &[Operand<'a>]) -> Result<Op> {
        let [to, a, b, c] = operands else { return unknown() };
        if parts.has("wide") {
            let is_signed = matches!(parts.last_type()?, Type::S32);
            let (a, b, c) = (self.word(a)?, self.word(b)?, self.long(c)?);
            return Ok(Op::Wide { is_signed, to: self.long_register(to)?, a, b, c });
        }
        let op = match (parts.base(), parts.0.last().copied()) {
            ("fma", Some("f16x2")) => Three::FmaH2,
            ("fma", Some("f32")) if parts.has("rm") => Three::FmaDown,
            ("fma", Some("f32")) => Three::Fma,
            ("mad", Some("s32" | "u32")) if parts.has("lo") => Three::MulAdd,
            _ => return unknown(),
        };
        let (a, b, c) = (self.word(a)?, self.word(b)?, self.word(c)?);
        Ok(Op::Three { op, to: self.word_register(to)?, a, b, c })
    }
}

fn two(base: &str, of: Type, parts: &Parts<'_>) -> Result<Two> {
    let is_signed = matches!(of, Type::S8 | Type::S16 | Type::S32);
    let is_16 = bytes(of) == 2;
    Ok(match (base, of) {
        ("add", Type::F32) => Two::AddF,
        ("sub", Type::F32) => Two::SubF,
        ("mul", Type::F32) => Two::MulF,
        ("div", Type::F32) => Two::DivF,
        ("min", Type::F32) => Two::MinF,
        ("max", Type::F32) => Two::MaxF,
        ("copysign", Type::F32) => Two::CopySign,
        (_, Type::F16) => return unknown(),
        ("add", _) if is_16 => Two::Add16,
        ("sub", _) if is_16 => Two::Sub16,
        ("mul", _) if is_16 && parts.has("lo") => Two::Mul16,
        ("shl", _) if is_16 => Two::Shl16,
        ("add", _) => Two::Add,
        ("sub", _) => Two::Sub,
        ("mul", _) if parts.has("lo") => Two::MulLow,
        ("mul", _) if parts.has("hi") && is_signed => Two::MulHighS,
        ("mul", _) if parts.has("hi") => Two::MulHighU,
        ("div", _) if is_signed => Two::DivS,
        ("div", _) => Two::DivU,
        ("rem", _) if is_signed => Two::RemS,
        ("rem", _) => Two::RemU,
        ("min", Type::U32 | Type::U16) => Two::MinU,
        ("max", Type::U32 | Type::U16) => Two::MaxU,
        ("min", Type::S32) => Two::MinS,
        ("max", Type::S32) => Two::MaxS,
        ("and", _) => Two::And,
        ("or", _) => Two::Or,
        ("xor", _) => Two::Xor,
        ("shl", _) => Two::Shl,
        ("shr", Type::S32) => Two::ShrS,
        ("shr", Type::U32 | Type::U16) => Two::ShrU,
        _ => return unknown(),
    })
}

fn two_long(base: &str, of: Type, parts: &Parts<'_>) -> Result<TwoLong> {
    Ok(match (base, of) {
        ("add", Type::F64) => TwoLong::AddF,
        ("sub", Type::F64) => TwoLong::SubF,
        ("mul", Type::F64) => TwoLong::MulF,
        ("div", Type::F64) => TwoLong::DivF,
        ("min", Type::F64) => TwoLong::MinF,
        ("max", Type::F64) => TwoLong::MaxF,
        ("add", _) => TwoLong::Add,
        ("sub", _) => TwoLong::Sub,
        ("mul", _) if parts.has("lo") => TwoLong::MulLow,
        ("mul", Type::U64) if parts.has("hi") => TwoLong::MulHighU,
        ("div", Type::U64) => TwoLong::DivU,
        ("rem", Type::U64) => TwoLong::RemU,
        ("min", Type::S64) => TwoLong::MinS,
        ("max", Type::S64) => TwoLong::MaxS,
        ("min", _) => TwoLong::MinU,
        ("max", _) => TwoLong::MaxU,
        ("and", _) => TwoLong::And,
        ("or", _) => TwoLong::Or,
        ("xor", _) => TwoLong::Xor,
        _ => return unknown(),
    })
}
