//! Which operation, on what: the small words of instructions.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Generic,
    Global,
    Shared,
    Local,
    Param,
}

/// Of two words. Shifts take amounts above 31 as PTX does: everything goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Two {
    Add,
    Sub,
    MulLow,
    MulHighU,
    MulHighS,
    DivU,
    DivS,
    RemU,
    RemS,
    MinU,
    MaxU,
    MinS,
    MaxS,
    And,
    Or,
    Xor,
    Shl,
    ShrU,
    ShrS,
    Add16,
    Sub16,
    Mul16,
    Shl16,
    AddF,
    SubF,
    MulF,
    DivF,
    MinF,
    MaxF,
    CopySign,
    AddH2,
    SubH2,
    MulH2,
}

/// Of one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum One {
    Move,
    Not,
    Not16,
    Neg,
    Abs,
    NegF,
    AbsF,
    Reciprocal,
    ReciprocalRoot,
    Root,
    Exp2,
    Exp2Flush,
    Log2,
    CountOnes,
    LeadingZeros,
    Reverse,
    /// The shift that brings the highest one to the top; all ones where there is none.
    ShiftToTop,
}

/// Of three words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Three {
    MulAdd,
    Fma,
    FmaDown,
    FmaH2,
    Permute,
}

/// Of two longs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TwoLong {
    Add,
    Sub,
    MulLow,
    MulHighU,
    DivU,
    RemU,
    MinU,
    MaxU,
    MinS,
    MaxS,
    And,
    Or,
    Xor,
    AddF,
    SubF,
    MulF,
    DivF,
    MinF,
    MaxF,
}

/// Of one long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OneLong {
    Move,
    Not,
    Neg,
    NegF,
    AbsF,
    /// Clears the mark of a generic address.
    Plain,
    /// Sets it.
    MarkShared,
    MarkLocal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shift {
    Left,
    RightU,
    RightS,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// How bits are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    U8,
    S8,
    U16,
    S16,
    U32,
    S32,
    U64,
    S64,
    F16,
    F32,
    F64,
}

/// To which integer, or which number of the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    Nearest,
    Zero,
    Down,
    Up,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Logic {
    And,
    Or,
    Xor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Thread(usize),
    Threads(usize),
    Block(usize),
    Blocks(usize),
    Lane,
    RankInCluster,
    BlocksInCluster,
    Clock,
    Nanoseconds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Butterfly,
    Index,
    Up,
    Down,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    Ballot,
    All,
    Any,
}

/// What an atomic operation does with the old and the new value; also reductions of a warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atomic {
    Add,
    MinU,
    MaxU,
    And,
    Or,
    Xor,
    Exchange,
}
