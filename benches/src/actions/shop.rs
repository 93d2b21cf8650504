//! Share of the tokens of calls that are sampled, on the actions of a shop.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use walla_grammar::{
    CallFormat, CallMarkers, Compiler, CompilerOptions, Grammar, GrammarOptions, GrammarStart,
    MaskOutcome, Vocabulary, call_grammar,
};
use walla_model::Gguf;
use walla_model::tokenizer::Tokenizer;
use walla_runtime::{
    ActionPolicy, Actions, AgentSpec, AskOptions, Client, Command, Engine, Prompt,
};
use walla_types::{Sampling, TokenId};

use super::host::{Heard, Host};
use super::schemas::{set, shop};

/// Agents that reply at the same time.
const AGENTS: usize = 16;

/// Tokens of calls.
#[derive(Debug, Default)]
pub struct Counts {
    pub calls: u64,
    pub tokens: u64,
    pub sampled: u64,
}

impl Counts {
    fn fewer_percent(&self) -> f64 {
        100.0 * (1.0 - self.sampled as f64 / self.tokens.max(1) as f64)
    }

    pub fn json(&self, model: &str, format: &str) -> Value {
        json!({
            "model": model, "format": format, "calls": self.calls, "tokens": self.tokens,
            "sampled": self.sampled, "fewer_percent": (self.fewer_percent() * 10.0).round() / 10.0,
        })
    }

    pub fn line(&self, model: &str, format: &str) -> String {
        let calls = self.calls.max(1) as f64;
        format!(
            "| {model} | {format} | {} | {:.1} | {:.1} | {:.0} % |",
            self.calls,
            self.tokens as f64 / calls,
            self.sampled as f64 / calls,
            self.fewer_percent(),
        )
    }
}

/// Calls of an engine: each reply is one required call. A step that draws no token of a call is not
/// counted.
pub fn measure(engine: &Engine, client: Client, calls: u64) -> Result<Counts, Box<dyn Error>> {
    let mut host = Host::new(engine, client)?;
    let mut agents = Vec::new();
    for n in 0..AGENTS as u64 {
        let policy = ActionPolicy::Required;
        let actions = Actions { max_calls: 1, policy, ..Actions::new(set(&shop())?) };
        let sampling = Sampling::builder().temperature(1.0).seed(n).build()?;
        let persona = "You are Greta, the smith of this town.";
        let spec = AgentSpec { sampling, actions: Some(actions), ..AgentSpec::new(persona) };
        agents.push(host.add(spec)?);
    }
    let mut counts = Counts::default();
    let mut next = |host: &mut Host<'_>, place: usize, ask: u64| {
        let agent = agents[place];
        host.send(Command::SetConversation { agent, turns: Vec::new() })?;
        let prompt = Prompt::Chat("Three horseshoes, please.".into());
        host.ask((place, agent), ask, prompt, AskOptions::default())
    };
    let mut heard = |_: usize, reply: Heard| {
        let usage = reply.usage;
        counts.calls += reply.calls.len() as u64;
        counts.tokens += u64::from(usage.call_tokens);
        counts.sampled += u64::from(usage.call_tokens - usage.forced_tokens.min(usage.call_tokens));
    };
    host.serve(AGENTS, calls, &mut next, &mut heard)?;
    Ok(counts)
}

/// The same for a vocabulary without a model: each draw takes a random token of its mask.
pub fn of_vocabulary(path: &Path, calls: u64) -> Result<(Counts, String), Box<dyn Error>> {
    let tokenizer = Arc::new(Tokenizer::from_gguf(&Gguf::open(path)?)?);
    let format = CallFormat::of(None, &tokenizer);
    let markers = CallMarkers::new(format, &tokenizer);
    let options = GrammarOptions { start: GrammarStart::Call, max_calls: 1 };
    let constraint = call_grammar(&markers, &set(&shop())?, options)?;
    let compiler = Compiler::new(Vocabulary::new(tokenizer)?, CompilerOptions::default());
    let grammar = compiler.compile(&constraint)?;
    let mut counts = Counts::default();
    for seed in 0..calls {
        walk(&grammar, seed, &mut counts)?;
    }
    Ok((counts, format!("{format:?}")))
}

fn walk(grammar: &Grammar, seed: u64, counts: &mut Counts) -> Result<(), Box<dyn Error>> {
    let mut matcher = grammar.matcher();
    let mut words = vec![0; grammar.vocabulary().mask_words()];
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut forced = Vec::new();
    loop {
        forced.clear();
        matcher.forced(&mut forced)?;
        for token in &forced {
            matcher.accept(*token)?;
        }
        counts.tokens += forced.len() as u64;
        if matcher.has_ended() || matcher.mask(&mut words)? == MaskOutcome::Ended {
            counts.calls += 1;
            return Ok(());
        }
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        matcher.accept(nth_token(&words, random).ok_or("an empty mask")?)?;
        counts.tokens += 1;
        counts.sampled += 1;
    }
}

/// A token of a mask, chosen by a random number.
fn nth_token(words: &[u32], random: u64) -> Option<TokenId> {
    let count: u32 = words.iter().map(|word| word.count_ones()).sum();
    let mut left = (random % u64::from(count.max(1))) as u32;
    for (index, word) in words.iter().enumerate() {
        if left < word.count_ones() {
            let bit = (0..32).filter(|bit| word >> bit & 1 == 1).nth(left as usize)?;
            return Some(TokenId(index as u32 * 32 + bit));
        }
        left -= word.count_ones();
    }
    None
}
