//! Licence expressions: SPDX, and the older form in which `/` means `OR`.

use std::collections::BTreeSet;

/// A parsed expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// One licence, with its exception where it has one: `Apache-2.0 WITH LLVM-exception`.
    License(String),
    /// All licences apply.
    All(Vec<Expression>),
    /// The user chooses one.
    Any(Vec<Expression>),
}

impl Expression {
    /// Parses an expression.
    ///
    /// # Errors
    /// The reason, for a text that is no expression.
    pub fn parse(text: &str) -> Result<Self, String> {
        let spaced = text.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
        let mut words = Words(spaced.split_whitespace().collect(), 0);
        let expression = words.any()?;
        match words.peek() {
            None => Ok(expression),
            Some(word) => Err(format!("unexpected {word:?}")),
        }
    }

    /// Whether the allowed licences satisfy the expression.
    pub fn is_met_by(&self, allowed: &BTreeSet<String>) -> bool {
        match self {
            Self::License(name) => allowed.contains(name),
            Self::All(parts) => parts.iter().all(|part| part.is_met_by(allowed)),
            Self::Any(parts) => parts.iter().any(|part| part.is_met_by(allowed)),
        }
    }
}

/// Words and a cursor. `AND` binds tighter than `OR`.
struct Words<'a>(Vec<&'a str>, usize);

impl<'a> Words<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.0.get(self.1).copied()
    }

    fn take(&mut self, wanted: &str) -> bool {
        let found = self.peek() == Some(wanted);
        self.1 += usize::from(found);
        found
    }

    fn any(&mut self) -> Result<Expression, String> {
        let mut parts = vec![self.all()?];
        while self.take("OR") {
            parts.push(self.all()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::Any(parts) })
    }

    fn all(&mut self) -> Result<Expression, String> {
        let mut parts = vec![self.single()?];
        while self.take("AND") {
            parts.push(self.single()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::All(parts) })
    }

    fn single(&mut self) -> Result<Expression, String> {
        if self.take("(") {
            let inner = self.any()?;
            return if self.take(")") { Ok(inner) } else { Err("missing )".to_owned()) };
        }
        let name = self.name()?;
        if self.take("WITH") {
            return Ok(Expression::License(format!("{name} WITH {}", self.name()?)));
        }
        Ok(Expression::License(name.to_owned()))
    }

    fn name(&mut self) -> Result<&'a str, String> {
        match self.peek() {
            Some(")" | "AND" | "OR" | "WITH") | None => Err("a licence is missing".to_owned()),
            Some(name) => {
                self.1 += 1;
                Ok(name)
            }
        }
    }
}
