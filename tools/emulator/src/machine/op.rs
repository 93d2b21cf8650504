//! Decoded instructions.
//!
//! A warp has three register files; each register has a value per lane: 32 bits (also for 8 and 16,
//! the rest zero), 64 bits, and predicates. Addresses of shared memory are cluster addresses: the
//! block's rank above [`WINDOW_BITS`], the byte below.

use super::kinds::{
    Atomic, Compare, Logic, One, OneLong, Rounding, Shift, Shuffle, Space, Special, Three, Two,
    TwoLong, Type, Vote,
};

/// Bits of an address within one block's shared memory.
pub(crate) const WINDOW_BITS: u32 = 18;

/// Tags a generic address as shared memory. Host addresses have less than 48 bits.
pub(crate) const GENERIC_SHARED: u64 = 1 << 62;

/// Tags a generic address as local memory of the thread.
pub(crate) const GENERIC_LOCAL: u64 = 1 << 61;

/// Code of a kernel.
#[derive(Debug)]
pub(crate) struct Code {
    pub(crate) instructions: Vec<Instruction>,
    /// Number of 32-bit registers, 64-bit registers, and predicates.
    pub(crate) registers: [u32; 3],
    /// Bytes of local memory per thread.
    pub(crate) local_bytes: u32,
}

/// One instruction.
#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    pub(crate) guard: Option<Guard>,
    pub(crate) op: Op,
    /// Line in the PTX.
    pub(crate) line: u32,
}

/// Predicate of an instruction: lanes for which it holds execute it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guard {
    pub(crate) register: u32,
    pub(crate) is_negated: bool,
}

/// A register index in its file, or an immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source<T> {
    Register(u32),
    Number(T),
}

pub(crate) type Word = Source<u32>;
pub(crate) type Long = Source<u64>;

/// A register: file and index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    Word(u32),
    Long(u32),
    Predicate(u32),
}

/// A value of 32 or of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Word(Word),
    Long(Long),
}

/// Address operand: base and offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) base: Value,
    pub(crate) offset: i64,
}

/// Several registers, or sources, of one access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Few<T> {
    items: [T; 4],
    count: u8,
}

impl<T: Copy> Few<T> {
    /// At least one, at most four.
    pub(crate) fn new(of: &[T]) -> Option<Self> {
        let first = *of.first()?;
        let mut items = [first; 4];
        items.get_mut(..of.len())?.copy_from_slice(of);
        Some(Self { items, count: of.len() as u8 })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.items.iter().take(usize::from(self.count)).copied()
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Nothing,
    Two {
        op: Two,
        to: u32,
        a: Word,
        b: Word,
    },
    One {
        op: One,
        to: u32,
        a: Word,
    },
    Three {
        op: Three,
        to: u32,
        a: Word,
        b: Word,
        c: Word,
    },
    /// Inserts bits of `a` at `at` of `b`.
    Insert {
        to: u32,
        a: Word,
        b: Word,
        at: Word,
        bits: Word,
    },
    InsertLong {
        to: u32,
        a: Long,
        b: Long,
        at: Word,
        bits: Word,
    },
    TwoLong {
        op: TwoLong,
        to: u32,
        a: Long,
        b: Long,
    },
    OneLong {
        op: OneLong,
        to: u32,
        a: Long,
    },
    ShiftLong {
        op: Shift,
        to: u32,
        a: Long,
        by: Word,
    },
    /// Product of two words, plus a long.
    Wide {
        is_signed: bool,
        to: u32,
        a: Word,
        b: Word,
        c: Long,
    },
    Select {
        to: u32,
        a: Word,
        b: Word,
        by: u32,
    },
    SelectLong {
        to: u32,
        a: Long,
        b: Long,
        by: u32,
    },
    Set {
        compare: Compare,
        of: Type,
        is_unordered: bool,
        to: u32,
        a: Value,
        b: Value,
    },
    Logic {
        op: Logic,
        to: u32,
        a: u32,
        b: u32,
    },
    NotPredicate {
        to: u32,
        a: u32,
    },
    MovePredicate {
        to: u32,
        a: u32,
    },
    SetPredicate {
        to: u32,
        is: bool,
    },
    Convert {
        to: Register,
        into: Type,
        a: Value,
        from: Type,
        rounding: Rounding,
        saturates: bool,
    },
    /// Converts two numbers to halves, the first in the upper half.
    ConvertH2 {
        to: u32,
        high: Word,
        low: Word,
    },
    /// Packs two halves into a word, or two words into a long, and unpacks them.
    Pack {
        to: u32,
        low: Word,
        high: Word,
    },
    Unpack {
        low: u32,
        high: u32,
        a: Word,
    },
    PackLong {
        to: u32,
        low: Word,
        high: Word,
    },
    UnpackLong {
        low: u32,
        high: u32,
        a: Long,
    },
    Special {
        to: Register,
        which: Special,
    },
    /// Address of a shared variable.
    SharedAddress {
        to: Register,
        offset: u32,
    },
    Load {
        space: Space,
        to: Few<Register>,
        bytes: u32,
        is_signed: bool,
        from: Address,
    },
    Store {
        space: Space,
        from: Few<Value>,
        bytes: u32,
        to: Address,
    },
    Atomic {
        op: Atomic,
        space: Space,
        is_long: bool,
        to: Option<Register>,
        at: Address,
        with: Value,
    },
    Shuffle {
        how: Shuffle,
        to: u32,
        within: Option<u32>,
        a: Word,
        b: Word,
        clamp: Word,
        members: Word,
    },
    Vote {
        how: Vote,
        to: Register,
        a: Guard,
        members: Word,
    },
    Reduce {
        op: Atomic,
        to: u32,
        a: Word,
        members: Word,
    },
    Elect {
        to: u32,
        members: Word,
    },
    WarpBarrier {
        members: Word,
    },
    Barrier {
        id: Word,
        threads: Option<Word>,
    },
    ClusterArrive,
    ClusterWait,
    /// Address of the same byte in the block of that rank.
    MapToRank {
        to: u32,
        a: Word,
        rank: Word,
    },
    Multiply {
        depth: u32,
        to: [u32; 4],
        a: [Word; 4],
        b: [Word; 2],
        c: [Word; 4],
    },
    LoadMatrix {
        is_transposed: bool,
        to: Few<u32>,
        from: Address,
    },
    Transpose {
        to: u32,
        a: Word,
    },
    CopyAsync {
        to: Address,
        from: Address,
        bytes: u32,
        given: Option<Word>,
    },
    CopyBulk {
        to: Address,
        from: Address,
        bytes: Word,
        barrier: Address,
    },
    StoreAsync {
        to: Address,
        from: Few<Word>,
        barrier: Address,
    },
    BarrierInit {
        at: Address,
        count: Word,
    },
    BarrierArrive {
        at: Address,
        expected: Word,
    },
    BarrierTry {
        to: u32,
        at: Address,
        parity: Word,
    },
    Branch {
        target: u32,
    },
    Exit,
    Trap,
}
