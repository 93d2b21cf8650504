//! Instructions that lanes or warps execute together.

use super::{Parts, Result, unknown};
use crate::machine::{Op, Shuffle, Word};
use crate::ptx::body::Body;
use crate::ptx::operand::Operand;

impl<'a> Body<'a> {
    pub(super) fn shuffle(&mut self, parts: &Parts<'_>, operands: &[Operand<'a>]) -> Result<Op> {
        let [to, a, b, clamp, members] = operands else { return unknown() };
        let how = match parts.0.get(2) {
            Some(&"bfly") => Shuffle::Butterfly,
            Some(&"idx") => Shuffle::Index,
            Some(&"up") => Shuffle::Up,
            Some(&"down") => Shuffle::Down,
            _ => return unknown(),
        };
        let (to, within) = match to {
            Operand::Both(to, within) => {
                (self.word_register(&Operand::Name(to))?, Some(self.predicate_named(within)?))
            }
            to => (self.word_register(to)?, None),
        };
        let (a, b) = (self.word(a)?, self.word(b)?);
        Ok(Op::Shuffle {
            how,
            to,
            within,
            a,
            b,
            clamp: self.word(clamp)?,
            members: self.word(members)?,
        })
    }

    pub(super) fn barrier(&mut self, parts: &Parts<'_>, operands: &[Operand<'a>]) -> Result<Op> {
        if parts.has("cluster") {
            return Ok(if parts.has("arrive") { Op::ClusterArrive } else { Op::ClusterWait });
        }
        match operands {
            [members] if parts.has("warp") => Ok(Op::WarpBarrier { members: self.word(members)? }),
            [id] if parts.has("sync") => Ok(Op::Barrier { id: self.word(id)?, threads: None }),
            [id, threads] if parts.has("sync") => {
                Ok(Op::Barrier { id: self.word(id)?, threads: Some(self.word(threads)?) })
            }
            _ => unknown(),
        }
    }

    pub(super) fn mma(&mut self, parts: &Parts<'_>, operands: &[Operand<'a>]) -> Result<Op> {
        let depth = if parts.has("m16n8k16") {
            16
        } else if parts.has("m16n8k8") {
            8
        } else {
            return unknown();
        };
        let types = parts.0.iter().rev().take(4).rev().copied().collect::<Vec<_>>();
        let ([to, a, b, c], ["f32", "f16", "f16", "f32"]) = (operands, types.as_slice()) else {
            return unknown();
        };
        let to = self.list(to, Self::word_register)?;
        let to = to.try_into().map_err(|_| "four sums expected".to_owned())?;
        let zero = Word::Number(0);
        let (a, b) = if depth == 16 {
            (self.words(a)?, self.words(b)?)
        } else {
            let [first, second] = self.words(a)?;
            let [of_b] = self.words(b)?;
            ([first, second, zero, zero], [of_b, zero])
        };
        Ok(Op::Multiply { depth, to, a, b, c: self.words(c)? })
    }
}
