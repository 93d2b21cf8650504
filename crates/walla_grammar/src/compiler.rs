//! Compiles constraints to grammars.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Logger, regex_to_lark};
use serde_json::Value;

use crate::cache::Cache;
use crate::schema::{self, At, JsonWhitespace};
use crate::vocabulary::first_line;
use crate::work::Budget;
use crate::{
    Constraint, ConstraintError, ConstraintKind, Grammar, Vocabulary, lark, messages, regex, work,
};

/// Limits and settings of a [`Compiler`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompilerOptions {
    /// White space between the tokens of JSON. Default: [`JsonWhitespace::Compact`].
    pub whitespace: JsonWhitespace,
    /// Maximum length of a source in bytes. Default: 256 KiB.
    pub max_source_bytes: usize,
    /// Maximum number of schemas in a JSON schema, of values in all of its `enum` and `const`, of
    /// names in all of its `required`, and of texts in a choice. Default: 10,000 each.
    pub max_nodes: usize,
    /// Maximum number of symbols in the productions of a grammar. Default: 20,000.
    pub max_grammar_symbols: usize,
    /// Maximum work to build the lexer, in steps of about 20 ns, and, as estimated before, of one
    /// derivative of all its expressions. Default: 1,000,000.
    pub compile_fuel: u64,
    /// Maximum work of the lexer for one mask, in steps of about 70 ns. Default: 200,000.
    pub mask_fuel: u64,
    /// Maximum number of parser items for one mask, of about 50 ns each. Default: 50,000.
    pub max_mask_items: usize,
    /// Maximum time of one mask. Most take some 50 µs, and those at the other limits some
    /// milliseconds, but the work for one item is not limited: in an ambiguous grammar it grows
    /// with the text. Default: 5 s, so that no reply ends because other programs use the processor.
    pub max_mask_time: Duration,
    /// Maximum number of lexer states of one reply, of 1 to 2 kB each. Default: 50,000.
    pub max_lexer_states: usize,
    /// Maximum number of cached results. Default: 256.
    pub max_cache_entries: usize,
    /// Maximum size of cached grammars in bytes, estimated. Default: 64 MiB.
    pub max_cache_bytes: usize,
}

impl Default for CompilerOptions {
    fn default() -> Self {
        Self {
            whitespace: JsonWhitespace::Compact,
            max_source_bytes: 256 << 10,
            max_nodes: 10_000,
            max_grammar_symbols: 20_000,
            compile_fuel: 1_000_000,
            mask_fuel: 200_000,
            max_mask_items: 50_000,
            max_mask_time: Duration::from_secs(5),
            max_lexer_states: 50_000,
            max_cache_entries: 256,
            max_cache_bytes: 64 << 20,
        }
    }
}

/// Stack of a compilation in bytes. The limits of depths and counts keep it below a quarter in an
/// optimised build. Memory is used as far as the stack is.
const STACK_BYTES: usize = 64 << 20;

/// Result of a compilation; failures are cached too.
type Compiled = Result<Arc<Grammar>, ConstraintError>;

/// A compilation that is in progress or has ended.
type Cell = Arc<OnceLock<Compiled>>;

/// Compiles constraints for one vocabulary and caches the results.
///
/// All methods take `&self`, so threads can share a compiler. A compilation takes milliseconds, and
/// the caller waits for it: call it on a worker thread, not in a frame. A thread that needs a
/// constraint that another thread compiles waits for its result.
///
/// # Examples
/// ```
/// # fn run(vocabulary: walla_grammar::Vocabulary) -> Result<(), Box<dyn std::error::Error>> {
/// use walla_grammar::{Compiler, CompilerOptions, Constraint};
///
/// let compiler = Compiler::new(vocabulary, CompilerOptions::default());
/// let grammar = compiler.compile(&Constraint::choice(["yes", "no"]))?;
/// let matcher = grammar.matcher();
/// assert!(!matcher.has_ended());
/// # Ok(())
/// # }
/// ```
pub struct Compiler {
    vocabulary: Vocabulary,
    options: CompilerOptions,
    cache: Mutex<Cache<Constraint, Cell>>,
    compilations: AtomicU64,
    /// Memory of vocabulary and cache, so that reading it waits for no lock.
    bytes: AtomicUsize,
}

impl fmt::Debug for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiler").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Compiler {
    /// A compiler with an empty cache.
    #[must_use]
    pub fn new(vocabulary: Vocabulary, options: CompilerOptions) -> Self {
        let cache = Mutex::new(Cache::new(options.max_cache_entries, options.max_cache_bytes));
        let bytes = AtomicUsize::new(vocabulary.bytes());
        Self { vocabulary, options, cache, compilations: AtomicU64::new(0), bytes }
    }

    /// The vocabulary.
    #[must_use]
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// The grammar of a constraint, from the cache if it is there.
    ///
    /// # Errors
    /// [`ConstraintError`] names the defect or the exceeded limit.
    pub fn compile(&self, constraint: &Constraint) -> Result<Arc<Grammar>, ConstraintError> {
        let bytes = constraint.source_bytes();
        self.options.check_source_bytes(bytes)?; // not cached: the key would be large
        let cell = {
            let mut cache = self.cache();
            cache.get(constraint).unwrap_or_else(|| {
                // Shared before the work: other threads wait for the cell, not for the lock.
                let cell = Cell::default();
                self.insert(&mut cache, constraint, &cell, bytes);
                cell
            })
        };
        if let Some(compiled) = cell.get() {
            return compiled.clone();
        }
        let mut is_first = false;
        let compiled = cell.get_or_init(|| {
            is_first = true;
            self.compilations.fetch_add(1, Ordering::Relaxed);
            with_stack(|| self.compile_anew(constraint)).map(Arc::new)
        });
        if is_first && let Ok(grammar) = compiled {
            // Its size was not known before.
            self.insert(&mut self.cache(), constraint, &cell, bytes + grammar.bytes());
        }
        compiled.clone()
    }

    fn insert(
        &self,
        cache: &mut Cache<Constraint, Cell>,
        constraint: &Constraint,
        cell: &Cell,
        bytes: usize,
    ) {
        let before = cache.bytes();
        cache.insert(constraint.clone(), Arc::clone(cell), bytes);
        // Modulo 2^64, so that the order of two changes does not matter.
        self.bytes.fetch_add(cache.bytes().wrapping_sub(before), Ordering::Relaxed);
    }

    /// Estimated memory of the vocabulary's tables and the cached grammars in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Number of compilations so far: calls of [`compile`](Self::compile) whose result was not
    /// cached.
    #[must_use]
    pub fn compilations(&self) -> u64 {
        self.compilations.load(Ordering::Relaxed)
    }

    /// Number of cached results and their estimated size in bytes.
    #[must_use]
    pub fn cached(&self) -> (usize, usize) {
        let cache = self.cache();
        (cache.len(), cache.bytes())
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, Cache<Constraint, Cell>> {
        // The cache is consistent at every point where it could panic.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn compile_anew(&self, constraint: &Constraint) -> Result<Grammar, ConstraintError> {
        let options = &self.options;
        let mut budget = Budget::new(options.compile_fuel);
        let text = constraint.source();
        let source = match constraint.kind() {
            ConstraintKind::JsonSchema => {
                TopLevelGrammar::from_json_schema(schema::lower(text, options, &mut budget)?)
            }
            ConstraintKind::Regex => {
                regex::check(text)?;
                let text = regex_to_lark(text, "");
                budget.pay(work::of_regex(&text).work)?;
                TopLevelGrammar::from_lark(format!("start: /{text}/"))
            }
            ConstraintKind::Choice => {
                let texts = constraint.sources();
                if texts.is_empty() || texts.contains(&"") {
                    return Err(ConstraintError::EmptyChoice);
                }
                work::limit("the number of texts", texts.len() as u64, options.max_nodes as u64)?;
                let quoted: Vec<String> = texts.into_iter().map(lark::quote).collect();
                TopLevelGrammar::from_lark(format!("start: TEXT\nTEXT: {}", quoted.join("|")))
            }
            ConstraintKind::Lark => {
                let lowered = lark::lower(text, &self.vocabulary, options, &mut budget)?;
                let source = TopLevelGrammar::from_lark(lowered);
                self.check_first_rules(&source)?;
                source
            }
        };
        let parser = self.vocabulary.factory().create_parser_from_init_ext(
            GrammarInit::Serialized(source),
            Logger::new(0, 0),
            InferenceCapabilities {
                ff_tokens: self.vocabulary.has_forced_tokens(),
                ..InferenceCapabilities::default()
            },
            options.limits(),
        );
        let parser =
            parser.map_err(|error| named(constraint, &format!("{error:#}"), options.max_nodes))?;
        let bytes = constraint.source_bytes();
        Grammar::new(parser, self.vocabulary.clone(), bytes, options.max_mask_time)
    }

    /// Refuses a grammar whose first rules take the library too long to expand: it does so without
    /// a limit of time when it prepares the grammar.
    fn check_first_rules(&self, source: &TopLevelGrammar) -> Result<(), ConstraintError> {
        let environment = self.vocabulary.factory().tok_env().clone();
        let compiled = catch_unwind(AssertUnwindSafe(|| {
            let source = GrammarInit::Serialized(source.clone());
            let limits = self.options.limits();
            source.to_cgrammar(Some(environment), &mut Logger::new(0, 0), limits, Vec::new())
        }));
        // Other defects are named later.
        compiled.map_or(Ok(()), |grammar| work::check_first_rules(&grammar))
    }
}

/// Compiles on a thread with a stack of known size: the library recurses.
fn with_stack<T: Send>(
    compile: impl FnOnce() -> Result<T, ConstraintError> + Send,
) -> Result<T, ConstraintError> {
    let internal = |message: String| ConstraintError::Internal { message };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("walla-grammar".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, compile)
            .map_err(|error| internal(error.to_string()))?;
        thread.join().unwrap_or_else(|_| Err(internal("the compiler panicked".to_owned())))
    })
}

/// The latest checked schemas: a game makes the same actions for each of its characters, in a
/// frame.
static CHECKED: LazyLock<Mutex<Cache<String, Result<(), ConstraintError>>>> = LazyLock::new(|| {
    let CompilerOptions { max_cache_entries, max_source_bytes, .. } = CompilerOptions::default();
    Mutex::new(Cache::new(max_cache_entries, 4 * max_source_bytes))
});

/// Refuses a schema that does not compile for any vocabulary.
pub(crate) fn check_json_schema(schema: &Value) -> Result<(), ConstraintError> {
    let options = CompilerOptions::default();
    let text = schema.to_string();
    options.check_source_bytes(text.len())?;
    let cache = || CHECKED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(checked) = cache().get(&text) {
        return checked;
    }
    // Without the lock: a rare second check costs less than a frame that waits for another's.
    let checked = check_anew(schema, &text, &options);
    let bytes = text.len();
    cache().insert(text, checked.clone(), bytes);
    checked
}

fn check_anew(
    schema: &Value,
    text: &str,
    options: &CompilerOptions,
) -> Result<(), ConstraintError> {
    with_stack(|| {
        let mut budget = Budget::new(options.compile_fuel);
        let lowered = schema::lower_value(schema, options, options.whitespace, &mut budget)?;
        let mut limits = options.limits();
        let source = GrammarInit::Serialized(TopLevelGrammar::from_json_schema(lowered));
        let compiled = catch_unwind(AssertUnwindSafe(|| {
            let grammar =
                source.to_cgrammar(None, &mut Logger::new(0, 0), limits.clone(), Vec::new())?;
            grammar.lexer_spec().to_regex_vec(&mut limits).map(drop)
        }));
        compiled.map_err(|error| {
            let source = Constraint::json_schema(text);
            named(&source, &format!("{error:#}"), options.max_nodes)
        })
    })
}

impl CompilerOptions {
    fn check_source_bytes(&self, bytes: usize) -> Result<(), ConstraintError> {
        let max_bytes = self.max_source_bytes as u64;
        work::limit("the length of the source in bytes", bytes as u64, max_bytes)
    }

    fn limits(&self) -> ParserLimits {
        ParserLimits {
            initial_lexer_fuel: self.compile_fuel,
            step_lexer_fuel: self.mask_fuel,
            step_max_items: self.max_mask_items,
            max_lexer_states: self.max_lexer_states,
            max_grammar_size: self.max_grammar_symbols,
            // An object of 1,000 optional properties has 4,000 items in one row. The limit of all
            // rows of a mask bounds the work.
            max_items_in_row: self.max_mask_items,
            verbose_errors: false,
            ..ParserLimits::default()
        }
    }
}

/// The typed error for a message of the library.
fn named(source: &Constraint, message: &str, max_nodes: usize) -> ConstraintError {
    let line = first_line(message);
    let has = |text: &str| message.contains(text);
    // The place is not known: the pointer is empty.
    let unsupported = |keyword, reason: &str| At::root().unsupported(keyword, reason);
    let kind = source.kind();
    let is_schema = kind == ConstraintKind::JsonSchema || has("failed to compile JSON schema");
    if is_schema && has("intersection stack level") {
        // Only properties with patterns are combined by the library.
        return unsupported("patternProperties", "its schemas are too deep to combine");
    }
    if line.starts_with("panic: ") {
        return ConstraintError::Internal { message: line };
    }
    if let Some(message) = messages::limit(message, "compile_fuel") {
        return ConstraintError::TooComplex { message };
    }
    if has("Unsatisfiable schema") || has("unsatisfiable") || has("Regex is empty") {
        let reason = match schema::find_empty_text(source.source(), max_nodes) {
            Some(reason) => reason,
            None if has("Regex is empty") || has("length constraints") => {
                "no string matches its pattern, format and length".to_owned()
            }
            None if is_schema => "the schema allows no value".to_owned(),
            None => line,
        };
        return ConstraintError::Unsatisfiable { reason };
    }
    if is_schema && has("min/maxProperties") {
        let reason = "only exact for required properties and one further property";
        return unsupported("minProperties", reason);
    }
    if is_schema && has("patternProperty") {
        return unsupported("patternProperties", "two patterns may match the same name");
    }
    if is_schema && has("circular references") {
        let reason = "a recursive reference cannot be combined with other keywords";
        return unsupported("$ref", reason);
    }
    match kind {
        ConstraintKind::JsonSchema | ConstraintKind::Choice => {
            ConstraintError::Internal { message: line }
        }
        ConstraintKind::Regex => {
            ConstraintError::Regex { offset: 0, message: regex::refused(&line) }
        }
        ConstraintKind::Lark => ConstraintError::Lark { message: regex::refused(&line) },
    }
}
