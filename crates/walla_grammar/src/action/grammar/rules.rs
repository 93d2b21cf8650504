//! Rules of a grammar in the dialect of `walla_grammar`.

use std::fmt::Write as _;

use serde_json::Value;

/// The rules of a grammar. Equal rules are written once.
#[derive(Debug, Default)]
pub(super) struct Rules {
    texts: Vec<String>,
}

impl Rules {
    /// The name of a rule with this text.
    pub fn add(&mut self, text: &str) -> String {
        let found = self.texts.iter().position(|other| other == text);
        let index = found.unwrap_or_else(|| {
            self.texts.push(text.to_owned());
            self.texts.len() - 1
        });
        format!("r{index}")
    }

    /// The grammar.
    pub fn finish(self, start: &str) -> String {
        let mut grammar = format!("start: {start}\n");
        for (index, text) in self.texts.iter().enumerate() {
            let _ = writeln!(grammar, "r{index}: {text}");
        }
        grammar
    }
}

/// JSON of a schema with the white space of Python's `json.dumps`.
pub(super) fn json_rule(schema: &Value) -> String {
    format!("%json:spaced {schema}")
}
