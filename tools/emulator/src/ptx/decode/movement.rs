//! Instructions that move numbers between registers and memory.

use super::{Parts, Result, atomic, bytes, unknown};
use crate::machine::{Few, One, OneLong, Op, Register, Space, Special, Type, Value};
use crate::ptx::body::{Body, Symbol};
use crate::ptx::operand::Operand;

impl<'a> Body<'a> {
    pub(super) fn mov(&mut self, to: &Operand<'a>, from: &Operand<'a>) -> Result<Op> {
        match (to, from) {
            (Operand::Vector(to), from) => {
                let [low, high] = to.as_slice() else { return unknown() };
                let (low, high) = (self.word_register(low)?, self.word_register(high)?);
                Ok(match self.value(from, true)? {
                    Value::Word(a) => Op::Unpack { low, high, a },
                    Value::Long(a) => Op::UnpackLong { low, high, a },
                })
            }
            (to, Operand::Vector(_)) => {
                let [low, high] = self.words(from)?;
                Ok(match self.register(to)? {
                    Register::Word(to) => Op::Pack { to, low, high },
                    Register::Long(to) => Op::PackLong { to, low, high },
                    Register::Predicate(_) => return unknown(),
                })
            }
            (to, from) => {
                let to = self.register(to)?;
                if let Operand::Name(name) = from {
                    if let Some(which) = special(name) {
                        return Ok(Op::Special { to, which });
                    }
                    if let Symbol::Shared(offset) = self.symbol(name)? {
                        return Ok(Op::SharedAddress { to, offset });
                    }
                }
                match to {
                    Register::Word(to) => Ok(Op::One { op: One::Move, to, a: self.word(from)? }),
                    Register::Long(to) => {
                        Ok(Op::OneLong { op: OneLong::Move, to, a: self.long(from)? })
                    }
                    Register::Predicate(to) => match from {
                        Operand::Integer(value) => Ok(Op::SetPredicate { to, is: *value != 0 }),
                        from => Ok(Op::MovePredicate { to, a: self.predicate(from)? }),
                    },
                }
            }
        }
    }

    pub(super) fn cvta(
        &mut self,
        parts: &Parts<'_>,
        to: &Operand<'a>,
        from: &Operand<'a>,
    ) -> Result<Op> {
        let op = match (parts.has("to"), parts.space()) {
            (_, Space::Global) => OneLong::Move,
            (true, _) => OneLong::Plain,
            (false, Space::Shared) => OneLong::MarkShared,
            (false, Space::Local) => OneLong::MarkLocal,
            _ => return unknown(),
        };
        let a = match from {
            Operand::Name(name) => match self.symbol(name)? {
                Symbol::Shared(_) => return unknown(),
                _ => self.long(from)?,
            },
            from => self.long(from)?,
        };
        Ok(Op::OneLong { op, to: self.long_register(to)?, a })
    }

    pub(super) fn load(
        &mut self,
        parts: &Parts<'_>,
        to: &Operand<'a>,
        from: &Operand<'a>,
    ) -> Result<Op> {
        let of = parts.last_type()?;
        let to = self.one_or_list(to, Self::register)?;
        let (from, space) = self.address(from, parts.space())?;
        let to = Few::new(&to).ok_or("too many registers")?;
        let is_signed = matches!(of, Type::S8 | Type::S16 | Type::S32);
        Ok(Op::Load { space, to, bytes: bytes(of), is_signed, from })
    }

    pub(super) fn store(
        &mut self,
        parts: &Parts<'_>,
        to: &Operand<'a>,
        from: &Operand<'a>,
    ) -> Result<Op> {
        let bytes = bytes(parts.last_type()?);
        let from = self.one_or_list(from, |body, item| body.value(item, bytes == 8))?;
        let (to, space) = self.address(to, parts.space())?;
        let from = Few::new(&from).ok_or("too many values")?;
        Ok(Op::Store { space, from, bytes, to })
    }

    pub(super) fn atomic(&mut self, parts: &Parts<'_>, operands: &[Operand<'a>]) -> Result<Op> {
        let of = parts.last_type()?;
        let is_long = bytes(of) == 8;
        let [to, at, with] = operands else { return unknown() };
        let (at, space) = self.address(at, parts.space())?;
        let (op, to) = (atomic(parts)?, Some(self.register(to)?));
        Ok(Op::Atomic { op, space, is_long, to, at, with: self.value(with, is_long)? })
    }

    pub(super) fn copy(&mut self, parts: &Parts<'_>, operands: &[Operand<'a>]) -> Result<Op> {
        if parts.has("commit_group")
            || parts.has("wait_group")
            || parts.has("wait_all")
            || parts.has("prefetch")
        {
            return Ok(Op::Nothing); // copies complete when they are issued
        }
        if parts.has("bulk") {
            let [to, from, bytes, barrier, ..] = operands else { return unknown() };
            let (to, barrier) = (self.shared(to)?, self.shared(barrier)?);
            let from = self.address(from, Space::Global)?.0;
            return Ok(Op::CopyBulk { to, from, bytes: self.word(bytes)?, barrier });
        }
        let [to, from, Operand::Integer(bytes), ..] = operands else { return unknown() };
        let given = operands.get(3).map(|given| self.word(given)).transpose()?;
        let from = self.address(from, Space::Global)?.0;
        Ok(Op::CopyAsync { to: self.shared(to)?, from, bytes: *bytes as u32, given })
    }
}

fn special(name: &str) -> Option<Special> {
    let axis = |name: &str| ["x", "y", "z"].iter().position(|axis| *axis == name);
    let (base, of) = name.split_once('.').unwrap_or((name, ""));
    Some(match base {
        "%tid" => Special::Thread(axis(of)?),
        "%ntid" => Special::Threads(axis(of)?),
        "%ctaid" => Special::Block(axis(of)?),
        "%nctaid" => Special::Blocks(axis(of)?),
        "%laneid" => Special::Lane,
        "%cluster_ctarank" => Special::RankInCluster,
        "%cluster_nctarank" => Special::BlocksInCluster,
        "%clock" | "%clock64" => Special::Clock,
        "%globaltimer" => Special::Nanoseconds,
        _ => return None,
    })
}
