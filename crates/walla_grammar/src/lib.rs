//! Constraints of replies, and actions of agents.
//!
//! A constraint limits the text of a reply by a JSON schema, a regular expression, a list of texts
//! or a grammar. An action is an ability of a character, which a model uses by a call; a grammar
//! limits the text of calls too. Adapts [`llguidance`] to the tokenizers of [`walla_model`].
//!
//! | type | lifetime | purpose |
//! |---|---|---|
//! | [`Constraint`] | plain data | a condition on the text of a reply |
//! | [`Vocabulary`] | one per model | the tokens, prepared for masks |
//! | [`Compiler`] | one per model | compiles constraints, with limits and a cache |
//! | [`Grammar`] | one per constraint | shared by all replies with this constraint |
//! | [`Matcher`] | one per reply | masks, forced tokens and the end of the reply |
//! | [`ActionSpec`], [`ActionSet`] | plain data | names, descriptions and schemas of actions |
//! | [`CallFormat`] | one per model | the syntax of calls |
//! | [`CallMarkers`] | one per model | the delimiters of calls as tokens or text |
//! | [`call_grammar`] | one per set | a constraint for the text of calls |
//! | [`CallParser`] | one per reply | reads calls while tokens arrive |
//! | [`CallReader`] | one per agent | separates calls from speech |
//! | [`check`] | one call | validates and converts the arguments |
//! | [`render`] | one call | writes a call in a format |
//! | [`call_json`] | one call | writes a call as JSON, for a conversation |
//!
//! A reply proceeds in steps: [`Matcher::mask`], sample a token of the mask, [`Matcher::accept`].
//! [`Matcher::forced`] returns the tokens that need no sampling. The reply is complete when
//! [`Matcher::has_ended`]. A reply that is cut before that, for example by a limit of tokens, is
//! not valid.
//!
//! # Limits
//!
//! Sources may come from model output or from players: every one is a value or a typed error within
//! the limits of [`CompilerOptions`]. The library checks its limits between two steps, and some of
//! its steps have no bound, so sources with such steps are refused before it runs: at most 16
//! patterns and formats apply to one string, with at most 4,096 combinations of alternatives that
//! share characters; a chain of optional parts may have some 1,000; and the first rules of a Lark
//! grammar may expand to some 1,000 left-recursive alternatives. Panics of the library are caught
//! and become [`ConstraintError::Internal`] or [`MatchError::Internal`]. The library installs a
//! panic hook when it is used first; the hook calls the previous one for all other panics. Nothing
//! is written to standard error.
//!
//! # JSON schemas
//!
//! A keyword is enforced or refused with [`ConstraintError::UnsupportedKeyword`]; none is ignored.
//!
//! | keyword | condition |
//! |---|---|
//! | `type`, `const`, `enum` | |
//! | `minimum`, `maximum`, `exclusiveMinimum`, `exclusiveMaximum` | within ±(2^53 - 1); others are refused |
//! | `multipleOf` | an exact decimal with at most six decimals; up to 1,000 without the decimal point |
//! | `minLength`, `maxLength`, `minItems`, `maxItems` | up to 65,535 |
//! | `pattern` | at most 16 for one string; ECMA-262 without assertions other than `^` and `$`, backreferences and flags |
//! | `format` | `date`, `time`, `date-time`, `duration`, `email`, `hostname`, `ipv4`, `ipv6`, `uri`, `uuid`; of numbers the names that `schemars` writes (`int32`, `uint8`, `float` …), as a range |
//! | `items`, `prefixItems` | |
//! | `properties`, `required` | at most 1,000; fewer if their schemas need more work than [`CompilerOptions::compile_fuel`] |
//! | `additionalProperties` | |
//! | `patternProperties` | at most 32 patterns, and 2,000 pairs of patterns in a document, that match no common name; not combined with another schema of properties |
//! | `minProperties`, `maxProperties` | for required properties and one further property |
//! | `allOf`, `anyOf` | |
//! | `oneOf` | of alternatives with different types, ranges or constants, so that one value matches at most one |
//! | `$ref`, `$defs`, `definitions` | JSON pointers in the document; a recursive reference has no other keywords that restrict properties or items |
//! | `uniqueItems` | `false` |
//! | `title`, `description`, `default`, `examples`, `example`, `deprecated`, `readOnly`, `writeOnly`, `$comment`, `$anchor`, `$schema`, `$id` at the root | no effect on validity |
//!
//! The grammar allows a subset of the valid texts:
//!
//! - Properties are written in the order of the schema, additional ones at the end.
//! - JSON is [compact](JsonWhitespace) by default.
//! - Numbers are within ±(2^53 - 1) and have no exponent. Integers have no decimals and are never
//!   `-0`, so every JSON parser reads them exactly.
//! - Numbers have at most six decimals, so their texts have at most 24 characters. With an
//!   exclusive bound of more than nine digits, numbers have at most 15 digits, less the digits of
//!   the bound, as decimals, so that no parser reads a number as the bound. A range narrower than
//!   six steps of the last decimal allows its bounds, its middle and the numbers with these
//!   decimals. Values of `enum` and `const` have all their digits; beyond 2^53 - 1 they are
//!   integers of 64 bits with a sign that floating point has, such as 2^60, and others are refused.
//! - Strings have no `\u` escapes. Control characters other than `\b`, `\f`, `\n`, `\r` and `\t`
//!   cannot be written.
//! - Formats of text allow common forms only, for example no leap seconds.
//!
//! Strings, arrays and additional properties without a limit have no limit in the grammar: only the
//! limit of the reply ends them. Set `maxLength` and `maxItems`, and `additionalProperties` to
//! `false`. A name may occur twice among additional properties; parsers use the last one.
//!
//! # Lark grammars
//!
//! The [syntax](https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md) has rules,
//! terminals, regular expressions, `%json { … }` and special tokens, such as `<tool_call>`. A
//! special token is a [reserved token](walla_model::tokenizer::Tokenizer::is_reserved) of the
//! vocabulary, named by its text. A name that the vocabulary does not have is an error, as is a
//! token that ends a generation. Text in quotes never becomes a special token. Refused are
//! `%llguidance`, because it changes limits, and ids of tokens (`<[5]>`).
//!
//! Two additions to the syntax:
//!
//! - `%special "[ARGS]"` is the special token with this text, for texts that are not of the form
//!   `<…>` or contain white space.
//! - `%json:spaced { … }`, `%json:compact { … }` and `%json:flexible { … }` set the [white
//!   space](JsonWhitespace) of an embedded schema, independent of
//!   [`CompilerOptions::whitespace`].
//!
//! # Actions
//!
//! 1. The prompt has the actions: [`ActionSet::tools`] for a template that takes tools, otherwise
//!    [`ActionSet::description`] in the system message.
//! 2. The reply is speech until a call opens: a token with [`Delimiter::Open`], the text
//!    [`CallMarkers::open_text`], or for Llama a first `{`. Then [`CallParser::begin`]. A reply
//!    that has to call an action is limited from its first token on ([`GrammarStart::Call`]).
//! 3. Inside the call, [`call_grammar`] with [`GrammarStart::BehindOpen`] limits the tokens, and
//!    [`CallParser::push`] reads them.
//! 4. After [`Progress::Closed`] the rest is speech again. [`CallParser::take_calls`] returns the
//!    calls, [`check`] validates them.
//!
//! A call without its marker is found by [`unmarked::beginning`] and read behind
//! [`CallParser::begin_unmarked`].
//!
//! Text of players never opens a call: it is encoded without special tokens, and it is not part of
//! a reply.
//!
//! # Examples
//!
//! ```
//! use std::sync::Arc;
//! use walla_grammar::{Compiler, CompilerOptions, Constraint, MaskOutcome, Vocabulary};
//! use walla_model::{Gguf, tokenizer::Tokenizer};
//!
//! let file = Gguf::from_static(walla_demo_model::GGUF)?;
//! let tokenizer = Arc::new(Tokenizer::from_gguf(&file)?);
//! let compiler = Compiler::new(Vocabulary::new(tokenizer)?, CompilerOptions::default());
//! let order = Constraint::json_schema(
//!     r#"{"type": "object", "properties": {"item": {"enum": ["nails", "sword"]}},
//!         "required": ["item"], "additionalProperties": false}"#,
//! );
//! let mut matcher = compiler.compile(&order)?.matcher();
//! let mut forced = Vec::new();
//! assert!(matcher.forced(&mut forced)? > 0); // {"item":"
//! for token in forced {
//!     matcher.accept(token)?;
//! }
//! let mut words = vec![0; compiler.vocabulary().mask_words()];
//! assert_eq!(matcher.mask(&mut words)?, MaskOutcome::Open); // n… or s…
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ```
//! use serde_json::json;
//! use walla_grammar::{
//!     ActionSet, ActionSpec, CallFormat, CallMarkers, CallParser, Input, Progress,
//!     check,
//! };
//! use walla_model::{Gguf, tokenizer::Tokenizer};
//!
//! let give = ActionSpec::new(
//!     "give",
//!     "Hands an item over the counter.",
//!     &json!({"type": "object", "properties": {"item": {"enum": ["nails", "sword"]}}}),
//! )?;
//! let actions = ActionSet::new([give])?;
//! let tokenizer = Tokenizer::from_gguf(&Gguf::from_static(walla_demo_model::GGUF)?)?;
//! let markers = CallMarkers::new(CallFormat::Plain, &tokenizer);
//! let mut parser = CallParser::new(&markers, CallParser::MAX_BYTES);
//!
//! parser.begin(); // behind <tool_call>
//! let text = b"\n{\"name\": \"give\", \"arguments\": {\"item\": \"nails\"}}\n</tool_call> There!";
//! let Progress::Closed { consumed } = parser.push(Input::Text(text)) else { unreachable!() };
//! assert_eq!(&text[consumed..], b" There!");
//! let call = parser.take_calls().next().unwrap()?;
//! assert_eq!(check(&actions, call)?.arguments["item"], "nails");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

mod action;
mod cache;
mod compiler;
mod constraint;
mod error;
mod grammar;
mod lark;
mod matcher;
mod messages;
mod regex;
mod schema;
mod size;
mod terminals;
mod vocabulary;
mod watch;
mod work;

pub use action::*;
pub use compiler::{Compiler, CompilerOptions};
pub use constraint::{Constraint, ConstraintKind};
pub use error::{ConstraintError, MatchError, VocabularyError};
pub use grammar::Grammar;
pub use matcher::{MaskOutcome, Matcher};
pub use schema::JsonWhitespace;
pub use vocabulary::{Vocabulary, VocabularyOptions};

/// Stores JSON as its text in formats that do not describe themselves. Their readers parse it for a
/// value of any type.
///
/// # Errors
/// The serializer's errors.
#[cfg(feature = "serde")]
#[doc(hidden)]
pub fn json_text<T: serde::Serialize, S: serde::Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    if serializer.is_human_readable() {
        return value.serialize(serializer);
    }
    let text = serde_json::to_string(value).map_err(serde::ser::Error::custom)?;
    serializer.serialize_str(&text)
}
