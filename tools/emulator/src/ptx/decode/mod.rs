//! Decodes statements to instructions.

mod arithmetic;
mod movement;
mod sources;
mod together;

use super::body::Body;
use super::operand::Operand;
use crate::machine::{Atomic, Few, Long, OneLong, Op, Space, Three, Type, Vote};

type Result<T> = std::result::Result<T, String>;

/// An opcode split at its dots.
struct Parts<'a>(Vec<&'a str>);

impl<'a> Parts<'a> {
    fn new(opcode: &'a str) -> Self {
        Self(opcode.split('.').collect())
    }

    fn has(&self, part: &str) -> bool {
        self.0.contains(&part)
    }

    fn base(&self) -> &'a str {
        self.0.first().copied().unwrap_or_default()
    }

    /// The last type in the opcode.
    fn last_type(&self) -> Result<Type> {
        let last = self.0.last().copied().unwrap_or_default();
        type_named(last).ok_or_else(|| format!("the type {last}"))
    }

    fn space(&self) -> Space {
        let of = |part: &&str| match *part {
            "global" => Some(Space::Global),
            "shared" | "shared::cta" | "shared::cluster" => Some(Space::Shared),
            "local" => Some(Space::Local),
            "param" => Some(Space::Param),
            _ => None,
        };
        self.0.iter().find_map(of).unwrap_or(Space::Generic)
    }
}

fn type_named(name: &str) -> Option<Type> {
    Some(match name {
        "u8" | "b8" => Type::U8,
        "s8" => Type::S8,
        "u16" | "b16" => Type::U16,
        "s16" => Type::S16,
        "u32" | "b32" => Type::U32,
        "s32" => Type::S32,
        "u64" | "b64" => Type::U64,
        "s64" => Type::S64,
        "f16" => Type::F16,
        "f32" => Type::F32,
        "f64" => Type::F64,
        _ => return None,
    })
}

fn bytes(of: Type) -> u32 {
    match of {
        Type::U8 | Type::S8 => 1,
        Type::U16 | Type::S16 | Type::F16 => 2,
        Type::U32 | Type::S32 | Type::F32 => 4,
        Type::U64 | Type::S64 | Type::F64 => 8,
    }
}

fn unknown<T>() -> Result<T> {
    Err("an unknown instruction".to_owned())
}

impl<'a> Body<'a> {
    /// Decodes one statement.
    pub(super) fn op(&mut self, opcode: &str, operands: &[Operand<'a>]) -> Result<Op> {
        let parts = Parts::new(opcode);
        let missing = Operand::Name("");
        let at = |i: usize| operands.get(i).unwrap_or(&missing);
        match parts.base() {
            "mov" => self.mov(at(0), at(1)),
            "cvta" => self.cvta(&parts, at(0), at(1)),
            "ld" | "ldu" => self.load(&parts, at(0), at(1)),
            "st" if parts.has("async") => {
                let from = Few::new(&self.list(at(1), Self::word)?).ok_or("too many values")?;
                Ok(Op::StoreAsync { to: self.shared(at(0))?, from, barrier: self.shared(at(2))? })
            }
            "st" => self.store(&parts, at(0), at(1)),
            "setp" => self.setp(&parts, operands),
            "selp" => self.selp(&parts, operands),
            "cvt" => self.cvt(&parts, operands),
            "bra" => match at(0) {
                Operand::Name(label) => self.branch(label),
                _ => unknown(),
            },
            "ret" => Ok(self.leave()),
            "exit" => Ok(Op::Exit),
            "trap" => Ok(Op::Trap),
            "add" | "sub" | "mul" | "div" | "rem" | "min" | "max" | "and" | "or" | "xor"
            | "shl" | "shr" | "copysign" => self.two(&parts, operands),
            "not" | "neg" | "abs" | "rcp" | "rsqrt" | "sqrt" | "ex2" | "lg2" | "popc" | "clz"
            | "brev" | "bfind" => self.one(&parts, at(0), at(1)),
            "mad" | "fma" => self.three(&parts, operands),
            "prmt" => {
                let [a, b, c] = [self.word(at(1))?, self.word(at(2))?, self.word(at(3))?];
                Ok(Op::Three { op: Three::Permute, to: self.word_register(at(0))?, a, b, c })
            }
            "bfi" if parts.has("b64") => {
                let (a, b) = (self.long(at(1))?, self.long(at(2))?);
                let (at_bit, bits) = (self.word(at(3))?, self.word(at(4))?);
                Ok(Op::InsertLong { to: self.long_register(at(0))?, a, b, at: at_bit, bits })
            }
            "bfi" => {
                let (a, b) = (self.word(at(1))?, self.word(at(2))?);
                let (at_bit, bits) = (self.word(at(3))?, self.word(at(4))?);
                Ok(Op::Insert { to: self.word_register(at(0))?, a, b, at: at_bit, bits })
            }
            "shfl" => self.shuffle(&parts, operands),
            "vote" => {
                let how = match parts.0.get(2) {
                    Some(&"ballot") => Vote::Ballot,
                    Some(&"all") => Vote::All,
                    Some(&"any") => Vote::Any,
                    _ => return unknown(),
                };
                Ok(Op::Vote {
                    how,
                    to: self.register(at(0))?,
                    a: self.guard(at(1))?,
                    members: self.word(at(2))?,
                })
            }
            "redux" => {
                let op = atomic(&parts)?;
                Ok(Op::Reduce {
                    op,
                    to: self.word_register(at(0))?,
                    a: self.word(at(1))?,
                    members: self.word(at(2))?,
                })
            }
            "elect" => match at(0) {
                Operand::Both(_, predicate) => Ok(Op::Elect {
                    to: self.predicate_named(predicate)?,
                    members: self.word(at(1))?,
                }),
                _ => unknown(),
            },
            "bar" | "barrier" => self.barrier(&parts, operands),
            "atom" => self.atomic(&parts, operands),
            "mapa" => Ok(Op::MapToRank {
                to: self.word_register(at(0))?,
                a: self.word(at(1))?,
                rank: self.word(at(2))?,
            }),
            "mma" => self.mma(&parts, operands),
            "ldmatrix" => {
                let to = self.list(at(0), Self::word_register)?;
                let to = Few::new(&to).ok_or("too many matrices")?;
                Ok(Op::LoadMatrix {
                    is_transposed: parts.has("trans"),
                    to,
                    from: self.shared(at(1))?,
                })
            }
            "movmatrix" => {
                Ok(Op::Transpose { to: self.word_register(at(0))?, a: self.word(at(1))? })
            }
            "cp" => self.copy(&parts, operands),
            "mbarrier" => match parts.0.get(1) {
                Some(&"init") => {
                    Ok(Op::BarrierInit { at: self.shared(at(0))?, count: self.word(at(1))? })
                }
                Some(&"arrive") if parts.has("expect_tx") => {
                    Ok(Op::BarrierArrive { at: self.shared(at(1))?, expected: self.word(at(2))? })
                }
                Some(&("try_wait" | "test_wait")) if parts.has("parity") => Ok(Op::BarrierTry {
                    to: self.predicate(at(0))?,
                    at: self.shared(at(1))?,
                    parity: self.word(at(2))?,
                }),
                _ => unknown(),
            },
            "createpolicy" => Ok(Op::OneLong {
                op: OneLong::Move,
                to: self.long_register(at(0))?,
                a: Long::Number(0),
            }),
            // All work of a stream is complete before the next work starts, and device memory is
            // host memory.
            "griddepcontrol" | "fence" | "membar" | "prefetch" => Ok(Op::Nothing),
            _ => unknown(),
        }
    }
}

fn atomic(parts: &Parts<'_>) -> Result<Atomic> {
    let of = |part: &&str| match *part {
        "add" => Some(Atomic::Add),
        "min" => Some(Atomic::MinU),
        "max" => Some(Atomic::MaxU),
        "and" => Some(Atomic::And),
        "or" => Some(Atomic::Or),
        "xor" => Some(Atomic::Xor),
        "exch" => Some(Atomic::Exchange),
        _ => None,
    };
    let op = parts.0.iter().find_map(of);
    let is_signed = matches!(parts.last_type()?, Type::S32 | Type::S64 | Type::F32 | Type::F64);
    op.filter(|op| !is_signed || *op == Atomic::Exchange)
        .ok_or_else(|| "an unknown operation".to_owned())
}
