//! Sizes of grammars and matchers, from the counters of the library. The library counts its bytes
//! too, but only some of them. The factors follow from its structures, and were compared with the
//! counts of an allocator.

use std::collections::HashSet;

use llguidance::TokenParser;

/// Bytes of a symbol with its name and its list of rules.
const SYMBOL_BYTES: usize = 620;

/// Bytes of an element of a rule, padded.
const ELEMENT_BYTES: usize = 40;

/// Bytes of a lexeme: the library keeps its definition twice.
const LEXEME_BYTES: usize = 250;

/// Bytes of an expression that the library does not count.
const EXPRESSION_BYTES: usize = 8;

/// The library counts 64 bytes for a derivative, which has some 20.
const DERIVATIVE_EXCESS: usize = 44;

/// Bytes of a lexer and a parser without states.
const BASE_BYTES: usize = 8 << 10;

/// The part that all matchers of a grammar share.
pub(crate) fn of_grammar(parser: &TokenParser) -> usize {
    let grammar = parser.parser.grammar();
    let (mut known, mut open) = (HashSet::from([grammar.start()]), vec![grammar.start()]);
    let mut elements = 0;
    while let Some(symbol) = open.pop() {
        for &rule in grammar.rules_of(symbol) {
            let (parts, _, _) = grammar.rule_rhs(rule);
            elements += parts.len() + 2; // the end, and the padding
            open.extend(parts.iter().copied().filter(|&part| known.insert(part)));
        }
    }
    let symbols = known.len() * SYMBOL_BYTES + elements * ELEMENT_BYTES;
    // The vectors of the expressions have unused capacity.
    symbols + 2 * of_definitions(parser)
}

/// The part that each matcher has for itself.
pub(crate) fn of_lexer(parser: &TokenParser) -> usize {
    let stats = parser.parser.lexer_stats();
    let expressions = stats.num_ast_nodes + stats.num_derived;
    let states = stats.num_bytes.saturating_sub(stats.num_derivatives * DERIVATIVE_EXCESS);
    BASE_BYTES + states + expressions * EXPRESSION_BYTES + of_definitions(parser)
}

/// The expressions of the lexemes as they were defined.
fn of_definitions(parser: &TokenParser) -> usize {
    let spec = parser.parser.grammar().lexer_spec();
    let expressions = spec.regex_builder.exprset();
    let lexemes = spec.lexemes.len() * LEXEME_BYTES;
    expressions.num_bytes() + expressions.len() * EXPRESSION_BYTES + lexemes
}
