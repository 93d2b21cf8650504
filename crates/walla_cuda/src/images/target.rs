use std::fmt;

/// Kind of code in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// PTX that the driver compiles.
    Ptx,
    /// Machine code (cubin).
    Machine,
}

/// Compilation target of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// For example `sm_90a`.
    pub(crate) name: String,
    pub(super) kind: Kind,
    capability: (u32, u32),
    /// Uses features that only this compute capability has.
    is_specific: bool,
}

impl Target {
    /// `sm_90`, `sm_90a`: the last digit is the minor number.
    pub(crate) fn parse(name: &str, kind: Kind) -> Option<Self> {
        let digits = name.strip_prefix("sm_")?;
        let (digits, is_specific) = match digits.strip_suffix('a') {
            Some(digits) => (digits, true),
            None => (digits, false),
        };
        let number: u32 = digits.parse().ok().filter(|number| (10..1000).contains(number))?;
        let capability = (number / 10, number % 10);
        Some(Self { name: name.to_owned(), kind, capability, is_specific })
    }

    /// How well an image suits a GPU, or `None` if the GPU cannot run it. Best is machine code for
    /// exactly this GPU, then machine code for an earlier GPU of its generation, then PTX, which
    /// takes seconds to compile; newer targets score higher.
    pub(crate) fn score(&self, chip: (u32, u32)) -> Option<u32> {
        let (major, minor) = self.capability;
        let runs = match (self.is_specific, self.kind) {
            (true, _) => chip == self.capability,
            (false, Kind::Machine) => chip.0 == major && chip.1 >= minor,
            (false, Kind::Ptx) => chip >= self.capability,
        };
        let kind = match self.kind {
            Kind::Ptx => 0,
            Kind::Machine => 10_000,
        };
        runs.then_some(kind + 20 * major + 2 * minor + u32::from(self.is_specific))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Ptx => "PTX",
            Kind::Machine => "machine code",
        };
        write!(f, "{} {kind}", self.name)
    }
}
