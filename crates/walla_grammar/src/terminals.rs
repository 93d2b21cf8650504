//! Bounds of the work of the terminals of a Lark grammar.

use std::collections::{BTreeMap, HashMap};

use crate::ConstraintError;
use crate::work::{Bound, Budget, of_regex};

/// Replaces a part of a grammar that is no terminal.
pub(crate) const OPAQUE: &str = "<>";

/// The tokens of a grammar, without comments and with one line feed between two lines.
#[derive(Debug, Default)]
pub(crate) struct Tokens<'t> {
    source: &'t str,
    /// Start and end of each token in the source; [`OPAQUE`] for an empty one.
    spans: Vec<(usize, usize)>,
}

impl<'t> Tokens<'t> {
    pub(crate) fn of(source: &'t str) -> Self {
        Self { source, spans: Vec::new() }
    }

    /// Adds a token, or a character of one.
    pub(crate) fn push(&mut self, start: usize, token: &str) {
        let end = start + token.len();
        let is_blank = token.trim().is_empty() && token != "\n";
        if is_blank || token.starts_with('#') || token.starts_with("//") {
            return;
        }
        if let Some(last) = self.spans.last_mut() {
            let before = self.source.get(last.0..last.1).unwrap_or_default();
            if before == "\n" && token == "\n" {
                return;
            }
            // A name, or the flags of a text or an expression.
            let is_part = match before.chars().next() {
                Some('"') => token == "i",
                Some('/') => token.starts_with(|c: char| c.is_ascii_alphabetic()),
                Some(c) if is_name(c) => token.starts_with(|c| is_name(c) || c == '-'),
                _ => false,
            };
            if is_part && last.1 == start {
                last.1 = end;
                return;
            }
        }
        self.spans.push((start, end));
    }

    /// Adds a part that is no terminal.
    pub(crate) fn push_opaque(&mut self, at: usize) {
        self.spans.push((at, at));
    }

    fn list(&self) -> Vec<&'t str> {
        let text = |&(start, end): &(usize, usize)| match self.source.get(start..end) {
            None | Some("") => OPAQUE,
            Some(text) => text,
        };
        self.spans.iter().map(text).collect()
    }

    /// Takes the work of all terminals, and of the expressions in rules.
    pub(crate) fn check(&self, budget: &mut Budget) -> Result<(), ConstraintError> {
        let all = self.list();
        // A line that starts with "|" continues the one before.
        let continues = |index: usize| all.get(index + 1) == Some(&"|");
        let tokens = all.iter().enumerate();
        let tokens = tokens.filter(|&(index, token)| *token != "\n" || !continues(index));
        let tokens: Vec<&str> = tokens.map(|(_, token)| *token).collect();
        let mut definitions: BTreeMap<&str, Vec<&[&str]>> = BTreeMap::new();
        let mut rules = Vec::new();
        for line in tokens.split(|token| *token == "\n") {
            let name = line.iter().find(|token| !["?", "!"].contains(token));
            let colon = line.iter().position(|token| *token == ":");
            match (name, colon) {
                (Some(name), Some(colon)) if is_terminal(name) => {
                    let body = line.get(colon + 1..).unwrap_or_default();
                    definitions.entry(name).or_default().push(body);
                }
                (_, Some(colon)) => rules.push(line.get(colon + 1..).unwrap_or_default()),
                (_, None) => rules.push(line),
            }
        }
        let names: Vec<&str> = definitions.keys().copied().collect();
        let mut terminals = Terminals { definitions, bounds: HashMap::new() };
        for name in names {
            budget.pay(terminals.terminal(name)?.work)?;
        }
        for body in rules {
            let mut reader = Reader { terminals: &mut terminals, body, is_rule: true };
            while !reader.body.is_empty() {
                budget.pay(reader.either()?.work)?;
                reader.take();
            }
        }
        Ok(())
    }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_terminal(name: &str) -> bool {
    name.trim_start_matches('_').starts_with(|c: char| c.is_ascii_uppercase())
}

struct Terminals<'t> {
    /// Bodies by name; several if nested grammars define the name too.
    definitions: BTreeMap<&'t str, Vec<&'t [&'t str]>>,
    /// `None` while it is computed.
    bounds: HashMap<&'t str, Option<Bound>>,
}

impl<'t> Terminals<'t> {
    fn terminal(&mut self, name: &'t str) -> Result<Bound, ConstraintError> {
        if let Some(known) = self.bounds.get(name) {
            // The library refuses a name that leads back to itself.
            return Ok(known.clone().unwrap_or_else(Bound::empty));
        }
        self.bounds.insert(name, None);
        let bodies = self.definitions.get(name).cloned().unwrap_or_default();
        let mut all = Vec::new();
        for body in bodies {
            all.push(Reader { terminals: self, body, is_rule: false }.either()?);
        }
        let bound = if all.len() == 1 { all.remove(0) } else { Bound::either(all) };
        self.bounds.insert(name, Some(bound.clone()));
        Ok(bound)
    }
}

/// Reads the body of a definition. A part that is not sound is skipped: the library refuses it.
struct Reader<'r, 't> {
    terminals: &'r mut Terminals<'t>,
    body: &'t [&'t str],
    /// In a rule only the work of its expressions counts: they are not combined to one.
    is_rule: bool,
}

impl<'t> Reader<'_, 't> {
    fn peek(&self) -> Option<&'t str> {
        self.body.first().copied()
    }

    fn take(&mut self) -> Option<&'t str> {
        let (first, rest) = self.body.split_first()?;
        self.body = rest;
        Some(first)
    }

    fn take_if(&mut self, token: &str) -> bool {
        let is_next = self.peek() == Some(token);
        if is_next {
            self.take();
        }
        is_next
    }

    fn either(&mut self) -> Result<Bound, ConstraintError> {
        let mut all = vec![self.intersection()?];
        while self.take_if("|") {
            all.push(self.intersection()?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { self.combined(all, Bound::either) })
    }

    fn intersection(&mut self) -> Result<Bound, ConstraintError> {
        let mut all = vec![self.sequence()?];
        while self.take_if("&") {
            all.push(self.sequence()?);
        }
        if all.len() > 1 { Bound::all(all) } else { Ok(all.remove(0)) }
    }

    fn sequence(&mut self) -> Result<Bound, ConstraintError> {
        let mut all = Vec::new();
        while let Some(token) = self.peek() {
            match token {
                "|" | "&" | ")" | "]" | "}" => break,
                "-" => {
                    // The name of an alternative: "-> name".
                    self.take();
                    self.take_if(">");
                    self.take();
                }
                _ => all.push(self.repeated()?),
            }
        }
        Ok(if all.len() == 1 { all.remove(0) } else { self.combined(all, Bound::concat) })
    }

    fn combined(&self, all: Vec<Bound>, combine: fn(Vec<Bound>) -> Bound) -> Bound {
        if !self.is_rule {
            return combine(all);
        }
        let work = all.iter().fold(0, |sum: u64, bound| sum.saturating_add(bound.work));
        Bound::of_work(work)
    }

    fn repeated(&mut self) -> Result<Bound, ConstraintError> {
        let atom = self.atom()?;
        let min = self.repetition();
        Ok(match min.filter(|_| !self.is_rule) {
            Some(min) => atom.repeated(min),
            None => atom,
        })
    }

    /// Takes the sign of a repetition behind an atom. Returns the minimum number of repetitions.
    fn repetition(&mut self) -> Option<u32> {
        match self.peek()? {
            "?" | "*" => {
                self.take();
                Some(0)
            }
            "+" => {
                self.take();
                Some(1)
            }
            "{" => {
                self.take();
                let min = self.peek().and_then(|text| text.parse().ok()).unwrap_or(0);
                while self.take().is_some_and(|token| token != "}") {}
                Some(min)
            }
            "~" => {
                // Otherwise a complement follows.
                let min = self.body.get(1).and_then(|text| text.parse().ok())?;
                self.take();
                self.take();
                while self.take_if(".") {}
                let is_number = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
                if self.peek().is_some_and(is_number) {
                    self.take();
                }
                Some(min)
            }
            _ => None,
        }
    }

    fn atom(&mut self) -> Result<Bound, ConstraintError> {
        if self.take_if("~") {
            let was_rule = std::mem::replace(&mut self.is_rule, false);
            let inner = self.atom();
            self.is_rule = was_rule;
            return inner.map(Bound::not);
        }
        let Some(token) = self.take() else { return Ok(Bound::empty()) };
        Ok(match token {
            "(" | "[" => {
                let inner = self.either()?;
                self.take(); // the closing one
                if token == "[" && !self.is_rule { inner.repeated(0) } else { inner }
            }
            "%" => {
                // "%regex", whose parts share their continuations, and other directives.
                self.take();
                if self.take_if("{") {
                    let mut depth = 1;
                    while depth > 0 {
                        match self.take() {
                            Some("{") => depth += 1,
                            Some("}") | None => depth -= 1,
                            Some(_) => {}
                        }
                    }
                }
                Bound::empty()
            }
            _ if token.starts_with('"') => {
                let (quoted, folds) = match token.strip_suffix('i') {
                    Some(quoted) => (quoted, true),
                    None => (token, false),
                };
                let text = quoted.trim_matches('"');
                if !folds && self.body.starts_with(&[".", "."]) {
                    let high = self.body.get(2).map_or("", |high| high.trim_matches('"'));
                    self.take();
                    self.take();
                    self.take();
                    let escape = |text: &str| regex_syntax::escape(text);
                    of_regex(&format!("[{}-{}]", escape(text), escape(high)))
                } else if folds {
                    of_regex(&format!("(?i){}", regex_syntax::escape(text)))
                } else if text.is_empty() {
                    Bound::empty()
                } else {
                    Bound::text(text)
                }
            }
            _ if token.starts_with('/') => {
                let end = token.rfind('/').unwrap_or_default();
                let (regex, flags) = token.split_at_checked(end).unwrap_or((token, ""));
                let regex = regex.get(1..).unwrap_or_default();
                match flags.get(1..) {
                    None | Some("") => of_regex(regex),
                    Some(flags) => of_regex(&format!("(?{flags}){regex}")),
                }
            }
            _ if is_terminal(token) && !self.is_rule => self.terminals.terminal(token)?,
            _ => Bound::empty(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result for the work of a grammar.
    fn check(source: &str) -> Result<u64, ConstraintError> {
        let mut tokens = Tokens::of(source);
        let mut at = 0;
        while at < source.len() {
            let length = crate::lark::token_bytes(&source[at..]);
            tokens.push(at, &source[at..at + length]);
            at += length;
        }
        let mut budget = Budget::new(1_000_000);
        tokens.check(&mut budget).map(|()| budget.used())
    }

    #[test]
    fn terminals_are_read_as_the_library_reads_them() {
        let chain = "\"a\"? ".repeat(400);
        let long = check(&format!("start: T\nT: {chain}")).unwrap();
        assert!(long > 50_000, "{long}");
        for same in [
            format!("start: A\nA: B\nB: {chain}"),
            format!("start: A\n?A.2: ({chain})"),
            format!("start: A\nA:\n | [{chain}]"),
            format!("start: A\nA: \"x\" # x\n\n // y\n | {chain}"),
            format!("start: ~({chain})"),
            format!("start: /{}/", "a?".repeat(400)),
            format!("start: a\n%ignore /{}/", "a?".repeat(400)),
            format!("start: \"x\"i~3 \"b\"..\"d\"{{2,3}} X -> name\nX: {chain} # T"),
        ] {
            let work = check(&same).unwrap();
            assert!(work > 50_000 && work < 4 * long, "{work}: {}", &same[..30]);
        }
        // In a rule each text is an expression.
        assert!(check(&format!("start: {chain}")).unwrap() < 2_000);
    }

    #[test]
    fn intersections_are_found_in_terminals() {
        let search = |digit: usize| format!("/(.|\\n)*a(.|\\n)*{digit}(.|\\n)*/");
        let all = |count: usize| (0..count).map(search).collect::<Vec<_>>().join(" & ");
        for source in [
            format!("start: T\nT: {}", all(12)),
            format!("start: T\nT: \"x\" ({})* | \"y\"", all(12)),
            format!("start: T\nT: A & B\nA: {}\nB: {}", all(7), all(7)),
        ] {
            let error = check(&source).unwrap_err().to_string();
            assert!(error.contains("combinations of the patterns"), "{error}");
        }
        assert!(check(&format!("start: T\nT: {}", all(2))).is_ok());
    }
}
