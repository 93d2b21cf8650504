//! Parses operands.

use super::tokens::Token;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operand<'a> {
    /// A register, a variable, a label, a special register.
    Name(&'a str),
    /// A negated predicate.
    Negated(&'a str),
    Integer(i128),
    /// Bits of an f32.
    Float(u32),
    /// Bits of an f64.
    Double(u64),
    Vector(Vec<Operand<'a>>),
    /// `[base + offset]`.
    At(Box<Operand<'a>>, i64),
    /// `a|b`: a result and a predicate.
    Both(&'a str, &'a str),
    /// A parenthesised list of a call.
    List(Vec<Operand<'a>>),
}

/// Parses the operands of a statement without its `;`.
pub(super) fn operands<'a>(tokens: &[Token<'a>]) -> Result<Vec<Operand<'a>>, String> {
    let mut reader = Reader { tokens, at: 0 };
    let mut found = Vec::new();
    while reader.at < tokens.len() {
        found.push(reader.operand()?);
        if reader.at < tokens.len() {
            reader.expect(",")?;
        }
    }
    Ok(found)
}

struct Reader<'t, 'a> {
    tokens: &'t [Token<'a>],
    at: usize,
}

impl<'a> Reader<'_, 'a> {
    fn peek(&self) -> Option<&'a str> {
        self.tokens.get(self.at).map(|token| token.text)
    }

    fn next(&mut self) -> Result<&'a str, String> {
        let text = self.peek().ok_or("an operand is missing")?;
        self.at += 1;
        Ok(text)
    }

    fn expect(&mut self, wanted: &str) -> Result<(), String> {
        match self.next()? {
            text if text == wanted => Ok(()),
            text => Err(format!("{wanted} expected, found {text}")),
        }
    }

    fn operand(&mut self) -> Result<Operand<'a>, String> {
        match self.next()? {
            "{" => Ok(Operand::Vector(self.list("}")?)),
            "(" => Ok(Operand::List(self.list(")")?)),
            "[" => self.address(),
            "!" => Ok(Operand::Negated(self.next()?)),
            "-" => match number(self.next()?) {
                Some(Operand::Integer(value)) => Ok(Operand::Integer(-value)),
                _ => Err("a number expected behind -".to_owned()),
            },
            text => {
                let operand = number(text).unwrap_or(Operand::Name(text));
                if self.peek() != Some("|") {
                    return Ok(operand);
                }
                self.at += 1;
                Ok(Operand::Both(text, self.next()?))
            }
        }
    }

    fn list(&mut self, end: &str) -> Result<Vec<Operand<'a>>, String> {
        let mut found = Vec::new();
        while self.peek() != Some(end) {
            if !found.is_empty() {
                self.expect(",")?;
            }
            found.push(self.operand()?);
        }
        self.at += 1;
        Ok(found)
    }

    fn address(&mut self) -> Result<Operand<'a>, String> {
        let base = self.operand()?;
        let mut offset = 0;
        loop {
            match self.next()? {
                "]" => return Ok(Operand::At(Box::new(base), offset)),
                "+" => match self.operand()? {
                    Operand::Integer(value) => offset += value as i64,
                    other => return Err(format!("a distance expected, found {other:?}")),
                },
                text => return Err(format!("] expected, found {text}")),
            }
        }
    }
}

/// `12`, `0x1F`, `0f3F800000`, `0d3FF0000000000000`.
fn number(text: &str) -> Option<Operand<'static>> {
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let of_base =
        |prefixes: [&str; 2]| prefixes.iter().find_map(|prefix| text.strip_prefix(prefix));
    if let Some(bits) = of_base(["0f", "0F"]) {
        return u32::from_str_radix(bits, 16).ok().map(Operand::Float);
    }
    if let Some(bits) = of_base(["0d", "0D"]) {
        return u64::from_str_radix(bits, 16).ok().map(Operand::Double);
    }
    let integer = match of_base(["0x", "0X"]) {
        Some(digits) => i128::from_str_radix(digits.trim_end_matches('U'), 16),
        None => text.trim_end_matches('U').parse(),
    };
    integer.ok().map(Operand::Integer)
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tokens;
    use super::*;

    #[test]
    fn operands_are_read() {
        let tokens = tokens("%r1|%p2, [%rd3+-4], {%f1, _}, -7, 0f3F800000, !%p1", 1);
        let expected = [
            Operand::Both("%r1", "%p2"),
            Operand::At(Box::new(Operand::Name("%rd3")), -4),
            Operand::Vector(vec![Operand::Name("%f1"), Operand::Name("_")]),
            Operand::Integer(-7),
            Operand::Float(0x3F80_0000),
            Operand::Negated("%p1"),
        ];
        assert_eq!(operands(&tokens).unwrap(), expected);
    }
}
