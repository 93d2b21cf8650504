//! Decodes operands to registers, immediates and addresses.

use super::Result;
use crate::machine::{Address, Guard, Long, Register, Source, Space, Value, Word};
use crate::ptx::body::{Body, Symbol};
use crate::ptx::operand::Operand;

impl<'a> Body<'a> {
    pub(in crate::ptx) fn predicate_named(&mut self, name: &'a str) -> Result<u32> {
        match self.symbol(name)? {
            Symbol::Register(Register::Predicate(register)) => Ok(register),
            _ => Err(format!("{name} is no predicate")),
        }
    }

    pub(super) fn register(&mut self, operand: &Operand<'a>) -> Result<Register> {
        match operand {
            // A discarded result is written to a new register.
            Operand::Name("_") => Ok(self.new_register(0)),
            Operand::Name(name) => match self.symbol(name)? {
                Symbol::Register(register) => Ok(register),
                _ => Err(format!("{name} is no register")),
            },
            other => Err(format!("a register expected, found {other:?}")),
        }
    }

    pub(super) fn word_register(&mut self, operand: &Operand<'a>) -> Result<u32> {
        match self.register(operand)? {
            Register::Word(register) => Ok(register),
            _ => Err(format!("{operand:?} has not 32 bits")),
        }
    }

    pub(super) fn long_register(&mut self, operand: &Operand<'a>) -> Result<u32> {
        match self.register(operand)? {
            Register::Long(register) => Ok(register),
            _ => Err(format!("{operand:?} has not 64 bits")),
        }
    }

    pub(super) fn predicate(&mut self, operand: &Operand<'a>) -> Result<u32> {
        match operand {
            Operand::Name(name) => self.predicate_named(name),
            other => Err(format!("a predicate expected, found {other:?}")),
        }
    }

    pub(super) fn guard(&mut self, operand: &Operand<'a>) -> Result<Guard> {
        match operand {
            Operand::Negated(name) => {
                Ok(Guard { register: self.predicate_named(name)?, is_negated: true })
            }
            other => Ok(Guard { register: self.predicate(other)?, is_negated: false }),
        }
    }

    /// A source in its register's width; immediates have `bits` bits.
    pub(super) fn value(&mut self, operand: &Operand<'a>, is_long: bool) -> Result<Value> {
        let number = |value: u64| {
            if is_long {
                Value::Long(Long::Number(value))
            } else {
                Value::Word(Word::Number(value as u32))
            }
        };
        Ok(match operand {
            Operand::Integer(value) => number(*value as u64),
            Operand::Float(bits) => number(u64::from(*bits)),
            Operand::Double(bits) => number(*bits),
            Operand::Name(name) => match self.symbol(name)? {
                Symbol::Register(Register::Word(register)) => {
                    Value::Word(Source::Register(register))
                }
                Symbol::Register(Register::Long(register)) => {
                    Value::Long(Source::Register(register))
                }
                Symbol::Register(Register::Predicate(_)) => {
                    return Err(format!("{name} is a predicate"));
                }
                Symbol::Local(offset) | Symbol::Param(offset) => number(u64::from(offset)),
                Symbol::Global(address) => number(address),
                Symbol::Shared(_) => return Err(format!("the address of {name}")),
            },
            other => return Err(format!("a value expected, found {other:?}")),
        })
    }

    pub(super) fn word(&mut self, operand: &Operand<'a>) -> Result<Word> {
        match self.value(operand, false)? {
            Value::Word(word) => Ok(word),
            Value::Long(_) => Err(format!("{operand:?} has 64 bits")),
        }
    }

    pub(super) fn long(&mut self, operand: &Operand<'a>) -> Result<Long> {
        match self.value(operand, true)? {
            Value::Long(long) => Ok(long),
            Value::Word(_) => Err(format!("{operand:?} has 32 bits")),
        }
    }

    /// An address, and its actual state space: parameters of functions are in the thread's local
    /// memory.
    pub(super) fn address(
        &mut self,
        operand: &Operand<'a>,
        space: Space,
    ) -> Result<(Address, Space)> {
        let Operand::At(base, offset) = operand else {
            return Err(format!("an address expected, found {operand:?}"));
        };
        let symbol = match &**base {
            Operand::Name(name) => Some(self.symbol(name)?),
            _ => None,
        };
        let (base, space) = match symbol {
            Some(Symbol::Shared(offset)) => (Value::Word(Word::Number(offset)), Space::Shared),
            Some(Symbol::Local(offset)) => (Value::Long(Long::Number(offset.into())), Space::Local),
            Some(Symbol::Param(offset)) => (Value::Long(Long::Number(offset.into())), Space::Param),
            Some(Symbol::Global(address)) => (Value::Long(Long::Number(address)), Space::Global),
            _ if space == Space::Param && self.is_in_function() => {
                (self.value(base, true)?, Space::Local)
            }
            _ => (self.value(base, space != Space::Shared)?, space),
        };
        Ok((Address { base, offset: *offset }, space))
    }

    pub(super) fn shared(&mut self, operand: &Operand<'a>) -> Result<Address> {
        Ok(self.address(operand, Space::Shared)?.0)
    }

    pub(super) fn words<const N: usize>(&mut self, operand: &Operand<'a>) -> Result<[Word; N]> {
        self.list(operand, Self::word)?
            .try_into()
            .map_err(|_| "a list of another length".to_owned())
    }

    /// Decodes each operand of a list.
    pub(super) fn list<T>(
        &mut self,
        operand: &Operand<'a>,
        mut each: impl FnMut(&mut Self, &Operand<'a>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let Operand::Vector(list) = operand else { return Err("a list expected".to_owned()) };
        list.iter().map(|item| each(self, item)).collect()
    }

    /// The same for a list or a single operand.
    pub(super) fn one_or_list<T>(
        &mut self,
        operand: &Operand<'a>,
        mut each: impl FnMut(&mut Self, &Operand<'a>) -> Result<T>,
    ) -> Result<Vec<T>> {
        match operand {
            Operand::Vector(_) => self.list(operand, each),
            one => Ok(vec![each(self, one)?]),
        }
    }
}
