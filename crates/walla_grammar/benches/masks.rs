//! Durations and sizes: `cargo bench -p walla_grammar`. Vocabularies of the reference data are
//! measured if it is there; the one with 262,144 tokens is the largest of them with additional
//! tokens.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use walla_grammar::{Compiler, CompilerOptions, Constraint, Grammar, MaskOutcome, Vocabulary};
use walla_model::Gguf;
use walla_model::tokenizer::Tokenizer;
use walla_types::TokenId;

const REPLIES: u64 = 40;
const MAX_TOKENS: usize = 120;

/// Constraints of a game, and two that are hard for the lexer.
fn constraints() -> Vec<(&'static str, Constraint)> {
    let names: Vec<String> = (0..64).map(|index| format!("item number {index}")).collect();
    vec![
        ("choice of 3", Constraint::choice(["yes", "no", "maybe"])),
        ("choice of 64", Constraint::choice(names)),
        ("regex", Constraint::regex("[A-Z][a-z]{2,10}( [A-Z][a-z]{2,10})?: [0-9]{1,4} gold")),
        (
            "give",
            Constraint::json_schema(
                r#"{"type":"object","properties":{"item":{"enum":["horseshoe","nails","sword"]},
                "to":{"type":"string","maxLength":40},"price":{"type":"integer","minimum":0,
                "maximum":500}},"required":["item","to","price"],"additionalProperties":false}"#,
            ),
        ),
        (
            "quest",
            Constraint::json_schema(
                r##"{"type":"object","properties":{"title":{"type":"string","maxLength":60},
                "reward":{"anyOf":[{"type":"null"},{"type":"integer","minimum":1}]},
                "steps":{"type":"array","maxItems":5,"items":{"$ref":"#/$defs/step"}}},
                "required":["title","reward","steps"],"additionalProperties":false,"$defs":{
                "step":{"type":"object","properties":{"text":{"type":"string"},"place":{"enum":
                ["forge","tavern","gate","mill"]},"done":{"type":"boolean"}},"required":
                ["text","place","done"],"additionalProperties":false}}}"##,
            ),
        ),
        ("any JSON object", Constraint::json_schema(r#"{"type":"object"}"#)),
        ("action", action()),
        ("hard regex", Constraint::regex("(.*a.{12}b){3}")),
        (
            "hard pattern",
            Constraint::json_schema(
                r#"{"type":"string","pattern":"(\\w{1,20} ){3,40}\\p{L}+","maxLength":500}"#,
            ),
        ),
    ]
}

/// Free text, then a call in the format of a model with text markers.
fn action() -> Constraint {
    Constraint::lark(
        r#"start: text ("CALL" call)?
        text: /(.|\n)*/
        call: %json {"type":"object","properties":{"name":{"enum":["give","move","refuse"]},
            "target":{"enum":["Greta","Odo","gate","forge"]},"count":{"type":"integer","minimum":0}},
            "required":["name","target","count"],"additionalProperties":false}"#,
    )
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// A random token of the mask.
fn sample(random: &mut Random, words: &[u32]) -> TokenId {
    let count: u32 = words.iter().map(|word| word.count_ones()).sum();
    let mut nth = (random.next() % u64::from(count)) as u32;
    for (index, &word) in words.iter().enumerate() {
        if nth < word.count_ones() {
            let bit = (0..32).filter(|bit| word >> bit & 1 == 1).nth(nth as usize);
            return TokenId(index as u32 * 32 + bit.expect("counted"));
        }
        nth -= word.count_ones();
    }
    unreachable!("the mask is not empty")
}

fn micros(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64() * 1e6
}

#[derive(Default)]
struct Times {
    clone: Vec<f64>,
    mask: Vec<f64>,
    accept: Vec<f64>,
    tokens: usize,
    forced: usize,
}

/// One reply. Each step's duration is the minimum of three runs with the same tokens: other
/// processes interrupt some steps, but not the same one three times.
fn reply(grammar: &Grammar, seed: u64, times: &mut Times) {
    let mut words = vec![0; grammar.vocabulary().mask_words()];
    let mut steps: Vec<[f64; 2]> = Vec::new();
    let mut outcomes = Vec::new();
    let mut clone = f64::INFINITY;
    for run in 0..3 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut matcher = None;
        clone = clone.min(micros(|| matcher = Some(grammar.matcher())));
        let mut matcher = matcher.expect("made");
        for step in 0..MAX_TOKENS {
            if matcher.has_ended() {
                break;
            }
            let mut outcome = Ok(MaskOutcome::Open);
            let mask = micros(|| outcome = matcher.mask(&mut words));
            let Ok(outcome) = outcome else { break }; // a limit: only in the hard constraints
            let token = sample(&mut random, &words);
            let mut result = Ok(());
            let accept = micros(|| result = matcher.accept(token));
            if run == 0 {
                steps.push([mask, accept]);
                outcomes.push(outcome);
            } else {
                let least = &mut steps[step];
                *least = [least[0].min(mask), least[1].min(accept)];
            }
            if result.is_err() {
                break;
            }
        }
    }
    times.clone.push(clone);
    times.tokens += steps.len();
    for ([mask, accept], outcome) in steps.into_iter().zip(outcomes) {
        match outcome {
            MaskOutcome::Forced(_) => times.forced += 1,
            _ => times.mask.push(mask),
        }
        times.accept.push(accept);
    }
}

fn replies(grammar: &Grammar) -> Times {
    let mut times = Times::default();
    (1..=REPLIES).for_each(|seed| reply(grammar, seed, &mut times));
    times
}

/// Mean, 99th percentile and maximum.
fn summary(times: &mut [f64]) -> String {
    times.sort_by(f64::total_cmp);
    let count = times.len().max(1);
    let mean = times.iter().sum::<f64>() / count as f64;
    let at = |share: f64| times.get((count as f64 * share) as usize).copied().unwrap_or_default();
    let max = times.last().copied().unwrap_or_default();
    format!("{mean:>7.1} {:>7.1} {max:>8.1}", at(0.99))
}

/// Resident memory of the process in bytes (Linux), else 0.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or_default() * 4096
}

fn measure(name: &str, tokenizer: Tokenizer) {
    let before = resident_bytes();
    let mut vocabulary = None;
    let build = micros(|| vocabulary = Some(Vocabulary::new(Arc::new(tokenizer)).expect("valid")));
    let vocabulary = vocabulary.expect("built");
    let bytes = resident_bytes().saturating_sub(before);
    println!(
        "\n{name}: {} tokens, built in {:.0} ms, {:.1} MiB",
        vocabulary.tokens(),
        build / 1e3,
        bytes as f64 / f64::from(1 << 20)
    );
    println!(
        "{:<16} {:>10} {:>10}   mask, µs: mean, p99, max   {:>8} {:>9}",
        "constraint", "compile µs", "matcher µs", "accept", "forced"
    );
    for (name, constraint) in constraints() {
        let compiler = Compiler::new(vocabulary.clone(), CompilerOptions::default());
        let mut compiled = None;
        let compile = micros(|| compiled = Some(compiler.compile(&constraint)));
        let grammar = compiled.expect("ran").expect("compiles");
        let mut times = replies(&grammar);
        let clone = times.clone.iter().sum::<f64>() / times.clone.len() as f64;
        let accept = times.accept.iter().sum::<f64>() / times.accept.len() as f64;
        println!(
            "{name:<16} {compile:>10.0} {clone:>10.1}   {}   {accept:>8.1} {:>8.0}%",
            summary(&mut times.mask),
            100.0 * times.forced as f64 / times.tokens as f64,
        );
    }
}

fn main() {
    let demo = Gguf::from_static(walla_demo_model::GGUF).expect("valid");
    measure("demo model", Tokenizer::from_gguf(&demo).expect("valid"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/tokenizers");
    for name in ["llama-spm", "llama-bpe", "qwen2"] {
        let Ok(file) = Gguf::open(folder.join(format!("{name}.gguf"))) else { continue };
        measure(name, Tokenizer::from_gguf(&file).expect("valid"));
    }
    let Ok(file) = Gguf::open(folder.join("llama-bpe.gguf")) else { return };
    let mut vocabulary = walla_model::tokenizer::Vocabulary::from_gguf(&file).expect("valid");
    // Pairs of words, as large vocabularies have.
    let words: Vec<&str> = vocabulary.tokens.iter().copied().skip(1_000).take(2_000).collect();
    let pairs = words.iter().flat_map(|a| words.iter().map(move |b| format!("{a}{b}")));
    let pairs: Vec<String> = pairs.step_by(29).take(262_144 - vocabulary.tokens.len()).collect();
    vocabulary.tokens.extend(pairs.iter().map(String::as_str));
    if let Some(types) = &mut vocabulary.token_types {
        types.resize(vocabulary.tokens.len(), 1);
    }
    measure("large", Tokenizer::new(&vocabulary).expect("valid"));
}
