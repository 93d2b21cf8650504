//! Operations and types of instructions.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Generic,
    Global,
    Shared,
    Local,
    Param,
}

/// Operations on two words. Shifts by more than 31 behave as in PTX: all bits are shifted out.
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

/// Operations on one word.
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
    /// The shift that moves the highest set bit to the top; all ones if no bit is set.
    ShiftToTop,
}

/// Operations on three words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Three {
    MulAdd,
    Fma,
    FmaDown,
    FmaH2,
    Permute,
}

/// Operations on two longs.
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

/// Operations on one long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OneLong {
    Move,
    Not,
    Neg,
    NegF,
    AbsF,
    /// Clears the tag of a generic address.
    Plain,
    /// Sets the tag for shared memory.
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

/// Interpretation of bits.
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

/// Rounding: to which integer, or to which number of the type.
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

/// Atomic operation on the old and the new value; also used for reductions of a warp.
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
