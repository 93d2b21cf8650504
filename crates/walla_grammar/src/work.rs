//! Bounds of the work of expressions, found before the library runs.
//!
//! The library counts its work and checks the count between two derivatives. One derivative is not
//! bounded: that of an intersection has one alternative for each combination of the alternatives of
//! its parts, and that of a chain of parts that may be empty has one for each of them, at each of
//! them. So an expression is refused if one derivative may need more work than a compilation.

use std::collections::{BTreeSet, HashMap, HashSet};

use llguidance::earley::CGrammar;
use llguidance::regex_to_lark;
use regex_syntax::hir::{Class, Hir, HirKind, Look};

use crate::ConstraintError;

/// Maximum number of expressions whose intersection is one string.
const MAX_PARTS: usize = 16;

/// Maximum number of combinations of alternatives in a derivative of an intersection.
const MAX_COMBINATIONS: u64 = 4_096;

/// Maximum number of comparisons to expand the first rules of a grammar, of about 0.1 ns.
const MAX_COMPARISONS: u64 = 1_000_000_000;

/// Characters in the classes of a bound: 128 of ASCII, and the others by their last six bits, which
/// their last byte has.
const SYMBOLS: usize = 192;

/// Maximum number of first bytes of a class that is not ASCII.
const MAX_LEADS: usize = 64;

/// A set of [symbols](SYMBOLS).
type Symbols = [u64; SYMBOLS / 64];

const ALL: Symbols = [u64::MAX; SYMBOLS / 64];

/// Work that is left for one source, in the steps of
/// [`compile_fuel`](crate::CompilerOptions::compile_fuel).
#[derive(Debug)]
pub(crate) struct Budget {
    max: u64,
    used: u64,
}

impl Budget {
    pub(crate) fn new(max: u64) -> Self {
        Self { max, used: 0 }
    }

    /// The work that was taken.
    #[cfg(test)]
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Takes the work of an expression.
    pub(crate) fn pay(&mut self, work: u64) -> Result<(), ConstraintError> {
        // Saturating, here and below: the bound of a hostile expression exceeds 64 bits.
        self.used = self.used.saturating_add(work);
        limit("the work of regular expressions in steps of compile_fuel", self.used, self.max)
    }
}

pub(crate) fn limit(what: &'static str, value: u64, max: u64) -> Result<(), ConstraintError> {
    let error = ConstraintError::TooLarge { what, value, max_value: max };
    if value > max { Err(error) } else { Ok(()) }
}

/// A bound of the derivatives of an expression.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bound {
    is_nullable: bool,
    /// Alternatives of a derivative.
    first: u64,
    /// Parts of all alternatives together.
    parts: u64,
    /// Steps of a derivative of the expression and of the expressions in it.
    pub(crate) work: u64,
    /// Different classes of characters.
    classes: BTreeSet<Symbols>,
    /// Alternatives of intersections in it, by symbol; empty without intersections.
    inner: Vec<u64>,
}

impl Bound {
    /// The empty text.
    pub(crate) fn empty() -> Self {
        Self { is_nullable: true, work: 1, ..Self::default() }
    }

    /// Work alone.
    pub(crate) fn of_work(work: u64) -> Self {
        Self { work, ..Self::default() }
    }

    /// A text, which is not empty.
    pub(crate) fn text(text: &str) -> Self {
        let classes = text.chars().map(|c| symbols(c, c)).collect();
        let work = 1 + text.len() as u64 / 8;
        Self { first: 1, parts: 1, work, classes, ..Self::default() }
    }

    /// One character of ranges.
    fn class(ranges: impl Iterator<Item = (char, char)>) -> Self {
        let (mut class, mut first) = (Symbols::default(), 0);
        for (low, high) in ranges {
            class.iter_mut().zip(symbols(low, high)).for_each(|(word, other)| *word |= other);
            first += if high.is_ascii() { 0 } else { 8 };
        }
        let first = first.clamp(1, MAX_LEADS) as u64;
        let classes = BTreeSet::from([class]);
        Self { first, parts: first, work: first, classes, ..Self::default() }
    }

    /// Any text.
    pub(crate) fn any() -> Self {
        Self::class([('\0', char::MAX)].into_iter()).repeated(0)
    }

    /// As the expression, at least `min` times.
    pub(crate) fn repeated(mut self, min: u32) -> Self {
        self.is_nullable |= min == 0;
        self.parts = self.parts.saturating_add(self.first);
        self.work = self.work.saturating_add(self.parts);
        self
    }

    pub(crate) fn concat(parts: Vec<Self>) -> Self {
        let mut whole = Self { is_nullable: true, ..Self::default() };
        // From the end: the derivative of a part contains all parts behind it.
        for (behind, part) in parts.into_iter().rev().enumerate() {
            let (is_open, first, rest) = (part.is_nullable, part.first, part.parts);
            let own = rest.saturating_add(first.saturating_mul(behind as u64));
            let (was_nullable, behind_first, behind_parts) =
                (whole.is_nullable, whole.first, whole.parts);
            whole.join(part);
            whole.is_nullable = was_nullable && is_open;
            whole.first = first.saturating_add(if is_open { behind_first } else { 0 });
            whole.parts = own.saturating_add(if is_open { behind_parts } else { 0 });
            whole.work = whole.work.saturating_add(rest.saturating_add(whole.first));
        }
        whole
    }

    pub(crate) fn either(parts: Vec<Self>) -> Self {
        let mut whole = Self::default();
        for part in parts {
            let is_nullable = whole.is_nullable || part.is_nullable;
            let first = whole.first.saturating_add(part.first);
            let all = whole.parts.saturating_add(part.parts);
            whole.join(part);
            (whole.is_nullable, whole.first, whole.parts) = (is_nullable, first, all);
        }
        whole.work = whole.work.saturating_add(whole.first);
        whole
    }

    /// All texts that the expression does not match.
    pub(crate) fn not(mut self) -> Self {
        self.is_nullable = !self.is_nullable;
        // Alternatives of a complement have no bytes in common.
        let disjoint = self.first.saturating_add(1).min(256);
        self.work = self.work.saturating_add(self.first.saturating_mul(disjoint));
        (self.first, self.parts) = (disjoint, disjoint);
        (self.classes, self.inner) = (BTreeSet::from([ALL]), Vec::new());
        self
    }

    /// Texts that all expressions match.
    ///
    /// # Errors
    /// [`ConstraintError::TooLarge`] if the derivatives have too many alternatives.
    pub(crate) fn all(parts: Vec<Self>) -> Result<Self, ConstraintError> {
        limit("the number of patterns of a string", parts.len() as u64, MAX_PARTS as u64)?;
        let mut whole = Self { is_nullable: true, inner: vec![0; SYMBOLS], ..Self::default() };
        // Symbols that are in the same classes of all parts have the same combinations.
        let mut groups: HashMap<Vec<bool>, u64> = HashMap::new();
        for symbol in 0..SYMBOLS {
            let has = |class: &Symbols| contains(class, symbol);
            let counts = parts.iter().map(|part| {
                let inner = part.inner.get(symbol).copied().unwrap_or_default();
                inner.saturating_add(part.classes.iter().filter(|class| has(class)).count() as u64)
            });
            let count = counts.fold(1, u64::saturating_mul);
            let classes = parts.iter().flat_map(|part| part.classes.iter().map(has)).collect();
            let known = groups.entry(classes).or_default();
            *known = count.max(*known);
            if let Some(own) = whole.inner.get_mut(symbol) {
                *own = count;
            }
        }
        let combinations = groups.into_values().fold(0, u64::saturating_add);
        let what = "the number of combinations of the patterns of a string";
        limit(what, combinations, MAX_COMBINATIONS)?;
        let (count, mut max_first) = (parts.len() as u64, 0);
        for part in parts {
            whole.is_nullable &= part.is_nullable;
            max_first = max_first.max(part.first);
            let own = part.work.saturating_add(part.classes.len() as u64);
            whole.work = whole.work.saturating_add(own);
        }
        whole.first = combinations;
        whole.parts = combinations;
        let pairs = combinations.saturating_mul(max_first.saturating_add(count));
        whole.work = whole.work.saturating_add(pairs);
        Ok(whole)
    }

    /// Adds the work and the classes of a part.
    fn join(&mut self, mut part: Self) {
        self.work = self.work.saturating_add(part.work);
        if self.classes.len() < part.classes.len() {
            std::mem::swap(&mut self.classes, &mut part.classes);
        }
        self.classes.append(&mut part.classes);
        if self.inner.is_empty() {
            self.inner = part.inner;
        } else {
            let both = self.inner.iter_mut().zip(part.inner);
            both.for_each(|(own, other)| *own = own.saturating_add(other));
        }
    }
}

/// Refuses a grammar whose start needs too many comparisons. The library expands each symbol that a
/// rule can start with, once for each such rule, and searches each expansion among all.
pub(crate) fn check_first_rules(grammar: &CGrammar) -> Result<(), ConstraintError> {
    let mut known = HashSet::from([grammar.start()]);
    let mut open = vec![grammar.start()];
    let (mut rules, mut expansions) = (0_u64, 0_u64);
    while let Some(symbol) = open.pop() {
        for &rule in grammar.rules_of(symbol) {
            for &part in grammar.rule_rhs(rule).0 {
                rules += 1;
                expansions += grammar.rules_of(part).len() as u64;
                if known.insert(part) {
                    open.push(part);
                }
                if !grammar.sym_data(part).is_nullable {
                    break;
                }
            }
        }
    }
    let what = "the number of comparisons to expand the first rules";
    limit(what, expansions.saturating_mul(rules), MAX_COMPARISONS)
}

/// The bound of a sound expression that matches whole texts.
pub(crate) fn of_regex(regex: &str) -> Bound {
    // An expression that is not sound is refused elsewhere.
    regex_syntax::parse(regex).map_or_else(|_| Bound::empty(), |hir| of_hir(&hir))
}

/// The bound of a `pattern`, which may match a part of the text.
pub(crate) fn of_pattern(pattern: &str) -> Bound {
    let Ok(hir) = regex_syntax::parse(&regex_to_lark(pattern, "dw")) else { return Bound::empty() };
    let looks = hir.properties();
    let side = |is_anchored: bool| if is_anchored { Bound::empty() } else { Bound::any() };
    let before = side(looks.look_set_prefix().contains(Look::Start));
    let behind = side(looks.look_set_suffix().contains(Look::End));
    Bound::concat(vec![before, of_hir(&hir), behind])
}

fn of_hir(hir: &Hir) -> Bound {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => Bound::empty(),
        HirKind::Literal(text) => Bound::text(&String::from_utf8_lossy(&text.0)),
        HirKind::Class(Class::Unicode(class)) => {
            Bound::class(class.ranges().iter().map(|range| (range.start(), range.end())))
        }
        HirKind::Class(Class::Bytes(class)) => {
            let ranges = class.ranges().iter();
            Bound::class(ranges.map(|range| (range.start().into(), range.end().into())))
        }
        HirKind::Repetition(repetition) => of_hir(&repetition.sub).repeated(repetition.min),
        HirKind::Capture(capture) => of_hir(&capture.sub),
        HirKind::Concat(parts) => Bound::concat(parts.iter().map(of_hir).collect()),
        HirKind::Alternation(parts) => Bound::either(parts.iter().map(of_hir).collect()),
    }
}

/// The symbols of a range of characters.
fn symbols(low: char, high: char) -> Symbols {
    let (low, high) = (u32::from(low), u32::from(high));
    let mut all = Symbols::default();
    let mut add = |symbol: u32| {
        if let Some(word) = all.get_mut(symbol as usize / 64) {
            *word |= 1 << (symbol % 64);
        }
    };
    (low..=high.min(127)).for_each(&mut add);
    let others = low.max(128)..=high.min(low.max(128) + 63);
    others.for_each(|c| add(128 + c % 64));
    all
}

fn contains(class: &Symbols, symbol: usize) -> bool {
    class.get(symbol / 64).is_some_and(|word| word >> (symbol % 64) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(patterns: &[&str]) -> Result<Bound, ConstraintError> {
        Bound::all(patterns.iter().map(|pattern| of_pattern(pattern)).collect())
    }

    #[test]
    fn combinations_are_counted_for_characters_that_patterns_share() {
        assert!(all(&["[A-Z]", "[a-z]", "[0-9]", "[!@#$%]"]).is_ok());
        let many = (0..10).map(|digit| format!("a.*{digit}")).collect::<Vec<_>>();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let error = all(&many).unwrap_err().to_string();
        assert!(error.contains("combinations of the patterns"), "{error}");
        assert!(all(&many[..4]).is_ok());
        assert!(all(&["a"; 17]).unwrap_err().to_string().contains("patterns of a string is 17"));
    }

    #[test]
    fn chains_of_optional_parts_need_the_square_of_their_length() {
        let work = |count: usize| of_regex(&"a?".repeat(count)).work;
        assert!(work(2_000) > 3 * work(1_000) && work(1_000) > 400_000);
        assert!(of_regex(&"ab?".repeat(1_000)).work < 10_000);
        assert!(of_regex("(a?){1000}").work < 10);
    }
}
