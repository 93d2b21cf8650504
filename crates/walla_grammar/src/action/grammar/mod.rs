//! Grammars of calls.
//!
//! The formats of JSON embed the schemas of the arguments. The others have [rules](values) for
//! values in their syntax.

mod rules;
mod values;

use crate::Constraint;
use serde_json::Value;

use crate::action::markers::Spelling;
use crate::lark::quote;
use crate::schema::{self, Kind, Schema, Type};
use crate::unmarked::Syntax;
use crate::{ActionError, ActionSet, ActionSpec, CallFormat, CallMarkers, Delimiter};
use rules::{Rules, json_rule};
use values::Values;

/// Where the text of a grammar begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GrammarStart {
    /// Behind the opening delimiter, because the model opened a call. For Llama behind
    /// `<|python_tag|>`, or at the `{` that opens the call.
    BehindOpen,
    /// At the opening delimiter, because a call is required. For Llama at `{`.
    Call,
}

/// Options of [`call_grammar`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GrammarOptions {
    /// Where the text begins.
    pub start: GrammarStart,
    /// Maximum number of calls, from 1 to [`MAX_CALLS`](Self::MAX_CALLS); larger values and 0 are
    /// clamped. Formats with one call per reply have one. Default: 1.
    pub max_calls: u32,
}

impl GrammarOptions {
    /// Maximum of [`max_calls`](Self::max_calls).
    pub const MAX_CALLS: u32 = 16;
}

/// A constraint for the text of calls, up to and including the closing delimiter. Their arguments
/// are valid by the schemas of the [possible](ActionSpec::is_possible) actions.
///
/// - The text has the white space and the order of keys of the vendor's chat template. So it has
///   the same tokens in later prompts. Properties have the order of the schema; for Gemma 4 they
///   are sorted, as its template does.
/// - A text without `maxLength` has at most 200 characters, a list without `maxItems` at most 16
///   items, and numbers are within ±(2^53 - 1), with at most six decimals. So the length of a call
///   is bounded.
/// - Texts have no control characters other than tab and line feed. In
///   [`CallFormat::QwenXml`] free texts have no `<`, in [`CallFormat::Lfm2`] line feeds are
///   escapes. In [`CallFormat::Gemma4`] they have no `<` if `<|"|>` is not a special token.
/// - Delimiters that are special tokens are only allowed as these tokens.
///
/// Equal arguments return equal constraints, which share a compiled grammar.
///
/// # Errors
/// [`ActionError::NoAction`] if no action is possible. For the formats without JSON,
/// [`ActionError::Of`] with [`ActionError::Unwritable`] if a choice contains syntax of the format,
/// or with [`ActionError::Schema`] if alternatives cannot be distinguished.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use walla_grammar::{
///     ActionSet, ActionSpec, CallFormat, CallMarkers, GrammarOptions, GrammarStart, call_grammar,
/// };
/// use walla_model::{Gguf, tokenizer::Tokenizer};
///
/// let tokenizer = Tokenizer::from_gguf(&Gguf::from_static(walla_demo_model::GGUF)?)?;
/// let markers = CallMarkers::new(CallFormat::Plain, &tokenizer);
/// let actions = ActionSet::new([ActionSpec::new("wave", "", &json!({"type": "object"}))?])?;
/// let options = GrammarOptions { start: GrammarStart::BehindOpen, max_calls: 1 };
/// let constraint = call_grammar(&markers, &actions, options)?;
/// # let _ = constraint;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn call_grammar(
    markers: &CallMarkers,
    actions: &ActionSet,
    options: GrammarOptions,
) -> Result<Constraint, ActionError> {
    let mut rules = Rules::default();
    let mut calls = Vec::new();
    for action in actions.possible() {
        let rule = call(markers, action, &mut rules);
        calls.push(rule.map_err(|error| error.of(action.name()))?);
    }
    if calls.is_empty() {
        return Err(ActionError::NoAction);
    }
    let call = rules.add(&calls.join(" | "));
    let format = markers.format();
    let max_calls = options.max_calls.clamp(1, GrammarOptions::MAX_CALLS);
    let more = max_calls.min(format.max_calls().unwrap_or(max_calls)) - 1;
    let open = spelled(markers.spelling(Delimiter::Open));
    let close = spelled(markers.spelling(Delimiter::Close));
    let (block, separator) = match format {
        CallFormat::HermesJson | CallFormat::Plain | CallFormat::QwenXml => {
            (format!("{call} {close}"), Some("\"\\n\""))
        }
        CallFormat::Gemma4 => (format!("{call} {close}"), Some("")),
        CallFormat::MistralNamed => (call, Some("")),
        CallFormat::LlamaJson => (call, None),
        CallFormat::MistralList | CallFormat::Phi4 | CallFormat::Lfm2 => {
            // Vocabularies of SentencePiece write a space behind the delimiter.
            let is_mistral = format == CallFormat::MistralList;
            let start = if is_mistral { "(\"[\" | \" [\")" } else { "\"[\"" };
            let others = repeated(&format!("\", \" {call}"), more);
            (format!("{start} {call} {others} \"]\" {close}"), None)
        }
    };
    let block = rules.add(&block);
    let others = match separator {
        Some(separator) => repeated(&format!("{separator} {open} {block}"), more),
        None => String::new(),
    };
    let is_open = options.start == GrammarStart::BehindOpen || format == CallFormat::LlamaJson;
    let start = if is_open { "" } else { open.as_str() };
    Ok(Constraint::lark(rules.finish(&format!("{start} {block} {others}"))))
}

/// The beginning of a call [without markers](crate::unmarked), as [`call_grammar`] with
/// [`GrammarStart::BehindOpen`] writes it. `text` begins with the call and ends behind its name, at
/// most with a sign and white space. `None` if the format has another syntax.
#[must_use]
pub fn unmarked_start(format: CallFormat, syntax: Syntax, text: &[u8]) -> Option<Vec<u8>> {
    let behind = |start: &[u8]| Some([start, text].concat());
    match (format, syntax) {
        (CallFormat::QwenXml, Syntax::Xml) => behind(b"\n"),
        (CallFormat::Gemma4, Syntax::Gemma) => behind(b""),
        (CallFormat::Lfm2, Syntax::Python) if text.starts_with(b"[") => behind(b""),
        (CallFormat::Lfm2, Syntax::Python) => behind(b"["),
        (_, Syntax::Json) => {
            let is_list = text.starts_with(b"[");
            let start = match format {
                CallFormat::HermesJson | CallFormat::Plain if !is_list => "\n{\"name\": \"",
                CallFormat::LlamaJson if !is_list => "{\"name\": \"",
                CallFormat::MistralList | CallFormat::Phi4 => "[{\"name\": \"",
                _ => return None,
            };
            let text = std::str::from_utf8(text).ok()?;
            let behind_key = text.split_once("name")?.1.get(1..)?.split_once(':')?.1.trim_start();
            let (name, rest) = behind_key.get(1..)?.split_once(['"', '\''])?;
            Some(format!("{start}{name}\"{}", rest.trim_end()).into_bytes())
        }
        _ => None,
    }
}

/// Up to `more` repetitions.
fn repeated(text: &str, more: u32) -> String {
    if more == 0 { String::new() } else { format!("({text}){{0,{more}}}") }
}

/// A delimiter in a grammar. A token that ends the generation ends the grammar.
fn spelled(spelling: Option<Spelling>) -> String {
    match spelling {
        Some(Spelling::Token { ends_generation: true, .. }) | None => String::new(),
        Some(Spelling::Token { text, .. }) => format!("%special {}", quote(text)),
        Some(Spelling::Text(text)) => quote(text),
    }
}

/// The rule of a call of one action, without delimiters.
fn call(
    markers: &CallMarkers,
    action: &ActionSpec,
    rules: &mut Rules,
) -> Result<String, ActionError> {
    let format = markers.format();
    let arguments = action.arguments();
    let (start, end) = format.around(action.name());
    let values = match format {
        CallFormat::QwenXml => Values::new(markers, rules).parameters(arguments)?,
        CallFormat::Lfm2 => Values::new(markers, rules).arguments(arguments)?,
        CallFormat::Gemma4 => Values::new(markers, rules).object(arguments, "")?,
        _ if arguments.properties.is_empty() => quote("{}"),
        _ => rules.add(&json_rule(&schema::of_type(&Type::Object(arguments.clone())))),
    };
    let separator = match format {
        CallFormat::MistralNamed => spelled(markers.spelling(Delimiter::Args)) + " ",
        _ => String::new(),
    };
    let end = if end.is_empty() { String::new() } else { format!(" {}", quote(end)) };
    let text = format!("{} {separator}{values}{end}", quote(&start));
    Ok(rules.add(&text))
}

/// A text in a schema that a predicate selects.
fn find_text<'s>(schema: &'s Schema, is: &dyn Fn(&str) -> bool) -> Option<&'s str> {
    match schema.kind() {
        Kind::Values(values) => values.iter().filter_map(Value::as_str).find(|text| is(text)),
        Kind::Type(_) | Kind::Any(_) => {
            schema.children().into_iter().find_map(|schema| find_text(schema, is))
        }
    }
}
